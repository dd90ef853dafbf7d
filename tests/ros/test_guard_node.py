from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from std_msgs.msg import Bool

from serl.ros.guard_topics import ESTOP

from .cell import Cell, Lateness, Stop, eventually

pytestmark = pytest.mark.ros

NOTICED_S, STOOD_S, ESTOP_S = 0.2, 0.3, 0.15


@pytest.fixture
def cell(tmp_path: Path) -> Iterator[Cell]:
    with Cell(tmp_path) as made:
        yield made


def stops(
    cell: Cell,
    strike: Callable[[], float],
    sign: str,
    noticed_s: float = NOTICED_S,
    stood_s: float = STOOD_S,
) -> Stop:
    """Strike, and see the arm stand in time; a machine that is late may add what it is late by."""
    eventually(cell.moves)
    with Lateness() as late:
        stop = cell.stopped(strike(), sign)
    allowed_s = 3.0 * late.worst_s
    assert stop.noticed_s <= noticed_s + allowed_s, (stop, late.worst_s)
    assert stop.stood_s <= stood_s + allowed_s, (stop, late.worst_s)
    assert stop.travel_m <= 0.0375
    return stop


def test_an_actor_that_hangs_or_dies_stops_the_arm(cell: Cell) -> None:
    cell.start_all()
    stops(cell, lambda: cell.signal("actor", signal.SIGSTOP), "state hold: heartbeat lost")
    cell.signal("actor", signal.SIGCONT)
    cell.until("policy")  # which goes on by itself
    stops(cell, lambda: cell.signal("actor", signal.SIGKILL), "state hold: heartbeat lost")
    cell.start_actor()
    cell.until("policy")  # and so does the next one, once the lease is over
    assert not any(word.startswith("protective") for _, word in cell.states)


def test_a_person_who_is_lost_is_not_replaced_by_the_policy(cell: Cell) -> None:
    cell.start_all("teleop")
    stops(cell, lambda: cell.signal("actor", signal.SIGKILL), "state hold: heartbeat lost")
    cell.start_actor("policy")
    cell.until("hold: a person was lost")
    cell.start_actor("teleop")
    assert cell.call("disarm")[0]
    cell.until("disarmed")


def test_a_guard_that_hangs_or_dies_leaves_an_arm_that_holds(cell: Cell) -> None:
    cell.start_all()
    stops(cell, lambda: cell.signal("guard", signal.SIGSTOP), "holds")
    cell.signal("guard", signal.SIGCONT)
    eventually(cell.moves)
    stops(cell, lambda: cell.signal("guard", signal.SIGKILL), "holds")
    cell.states.clear()
    cell.start_guard()
    cell.until("protective stop: the guard ended while it was armed")
    assert not cell.call("arm")[0]
    assert not cell.moves()
    eventually(lambda: cell.call("ack")[0])
    cell.until("disarmed")
    cell.arm()
    cell.until("policy")


def test_an_arm_that_falls_silent_is_held(cell: Cell) -> None:
    cell.start_all()

    def silence(**faults: object) -> float:
        begin_s = time.monotonic()
        cell.break_arm(**faults)
        return begin_s

    stops(cell, lambda: silence(silent=True), "state hold: pose is stale")
    cell.break_arm()
    cell.until("policy")
    stops(cell, lambda: silence(nan=True), "state hold: pose is not finite")
    cell.break_arm()
    cell.until("policy")
    stops(cell, lambda: silence(force_n=60.0), "state protective stop: force 60 N")
    ok, why = cell.call("ack")
    assert (ok, why) == (False, "not now: force 60 N")
    cell.break_arm(error="reflex")
    cell.until("protective stop: force 60 N")
    eventually(lambda: cell.call("ack")[1] == "not now: the arm reports reflex")
    cell.break_arm()  # nobody but the arm's own people clears it
    eventually(lambda: cell.call("ack")[0])
    cell.until("disarmed")


def test_an_emergency_stop_lasts_through_a_restart(cell: Cell) -> None:
    cell.start_all()

    def press() -> float:
        begin_s = time.monotonic()
        assert cell.call("estop")[0]
        assert cell.latch.read_text() == "serl latch: estop\nthe service estop\n"
        return begin_s

    stops(cell, press, "state estop", ESTOP_S, ESTOP_S)
    for service in ("arm", "reset"):
        assert not cell.call(service)[0]
    cell.signal("guard", signal.SIGKILL)
    cell.states.clear()
    cell.start_guard()
    cell.until("estop: the service estop")
    assert not cell.call("arm")[0]
    eventually(lambda: cell.call("ack")[0])
    assert cell.state.startswith("estop")
    assert not cell.call("arm")[0]
    assert cell.call("reset")[0]
    cell.arm()
    cell.until("policy")
    buttons = cell.publisher(ESTOP)
    buttons.publish(Bool(data=False))

    def publish() -> float:
        eventually(lambda: buttons.get_subscription_count() > 0)
        begin_s = time.monotonic()
        buttons.publish(Bool(data=True))
        return begin_s

    stops(cell, publish, "state estop", ESTOP_S, ESTOP_S)


def test_sigterm_brakes_and_leaves_a_clean_latch(cell: Cell) -> None:
    cell.start_all()
    guard = cell.processes["guard"]
    stops(cell, lambda: cell.signal("guard", signal.SIGTERM), "state hold: disarming")
    said, _ = guard.communicate(timeout=10)
    assert guard.returncode == 0
    assert cell.latch.read_text() == "serl latch: disarmed\n"
    assert "does not replace a hardware e-stop" in said
    assert "3.8 cm" in said


def test_it_does_not_command_an_arm_beside_somebody_else(cell: Cell) -> None:
    cell.start_arm()
    with cell.stranger():
        assert _refusal(cell).endswith("stranger")
    cell.start_guard()
    cell.until("disarmed")
    cell.arm()
    with cell.stranger():
        cell.until("protective stop: others publish")
        assert cell.call("ack")[0]
        assert "others publish" in cell.call("arm")[1]
    cell.arm()


def test_two_guards_of_an_arm_are_one_too_many(cell: Cell) -> None:
    cell.start_guard()
    cell.until("disarmed")
    assert "is in use by process" in _refusal(cell)


def test_it_refuses_an_arm_that_speaks_of_another_frame(cell: Cell) -> None:
    cell.start_arm(frame="world")
    assert "pose is in the frame 'world', expected 'base'" in _refusal(cell)


@pytest.mark.parametrize(
    ("path", "value", "line"),
    [
        (("motion", "box_low_m"), [0.7, -0.2, 0.05], "must be below box_high_m"),
        (("motion", "box_low_m"), None, "motion.box_low_m"),
        (("joint_low_rad",), None, "joint_low_rad: field required"),
        (("joint_low_rad",), [3.0] * 7, "must be below joint_high_rad"),
        (("motion", "limits", "speed_m_s"), 0.3, "speed_m_s"),
        (("heartbeat_s",), 0.2, "heartbeat_s"),
        (("reference",), [0.0] * 4, "reference"),
    ],
)
def test_it_refuses_bad_limits_with_one_line(
    cell: Cell, path: tuple[str, ...], value: object, line: str
) -> None:
    file = cell.folder / "guard.yaml"
    settings = json.loads(file.read_text())
    inner = settings
    for key in path[:-1]:
        inner = inner[key]
    if value is None:
        del inner[path[-1]]
    else:
        inner[path[-1]] = value
    file.write_text(json.dumps(settings))
    assert line in _refusal(cell)


@pytest.mark.skipif(os.getuid() == 0, reason="root may write everywhere")
def test_it_refuses_to_start_where_no_latch_can_be_kept(cell: Cell) -> None:
    cell.latch.parent.chmod(0o500)
    assert "panda.latch" in _refusal(cell)


def _refusal(cell: Cell) -> str:
    """The one line with which a guard refuses to start."""
    process = cell.start_guard()
    said, why = process.communicate(timeout=60)
    assert process.returncode == 2, (said, why)
    assert len(why.splitlines()) == 1
    return why.strip()
