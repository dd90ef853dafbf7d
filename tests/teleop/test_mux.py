"""Teleop mux: several operators and a script at one robot, one active at a time."""

from __future__ import annotations

from serl.intervention import Event, Teleop
from serl.specs import ArraySpec
from serl.teleop.mux import TeleopMux
from serl.testing import TeleopSuite

from .pad import SPEC, Bench, Two, moved


class TestTeleopMux(TeleopSuite):
    def make(self) -> tuple[Teleop, ArraySpec]:
        bench = Bench()
        bench.pad.hold()
        bench.pad.hit("stop")
        return TeleopMux([bench.person, Bench().person], Bench().person), SPEC


def test_mux_holds_robot_for_silent_owner_until_release() -> None:
    two = Two()
    two.first.pad.hold()
    two.tick()
    two.first.pad.alive = False
    two.second.pad.axes["x"] = 1.0
    two.second.pad.hold()
    for _ in range(4):
        action = two.tick()
    assert moved(action) == [0.0, 0.0]
    assert two.one.silent == "pad"
    two.one.release()
    assert moved(two.tick()) == [1.0, 0.0]
    assert two.one.silent == ""


def test_mux_merges_events_of_all_operators() -> None:
    two = Two()
    two.first.pad.hit("yes")
    two.second.pad.hit("stop")
    two.second.pad.hit("yes")
    two.tick()
    assert two.one.events() == (Event.SUCCESS, Event.STOP)
    assert two.one.events() == ()
