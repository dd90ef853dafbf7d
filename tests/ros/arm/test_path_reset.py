"""The reset along a taught path on a fake FR3, through a real guard."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from serl.clock import WallClock
from serl.loop import EpisodeKey, RecordCallback
from serl.motion import Pose
from serl.real_task import RealTask, RealTaskConfig
from serl.reset import ResetConfig, Waypoint
from serl.ros.arm.guard_client import GuardClient
from serl.ros.arm.station import Station
from serl.ros.testing import ProfileBench
from serl.ros.testing.fake_driver import DOWN
from serl.ros.testing.processes import ROBOT
from serl.teleop.stop import StopLatch
from serl.training.actor import Actor, ActorConfig
from serl.training.arm_reset import ArmReset
from serl.types import ActionSource, Record, Step

from ...support.acting import FakeSite
from ...support.upstream import file_of

pytestmark = pytest.mark.ros

PLACE_M, HOME_M = (0.32, 0.02, 0.42), (0.31, 0.0, 0.46)
PATH = (
    Waypoint(position_m=(0.32, 0.02, 0.45), orientation=DOWN, closed=True),
    Waypoint(position_m=PLACE_M, orientation=DOWN, closed=False),
)
HELD = 0.0  # the fake's hand closes on nothing


def actor_of(bench: ProfileBench, reset: ArmReset, task: RealTask, steps: list[Step]) -> Actor:
    """Return an actor that only resets; its person answers the stops of a busy machine."""

    def sink(record: Record) -> None:
        if isinstance(record, Step):
            steps.append(record)

    def person() -> bool:
        if bench.state.startswith(("disarmed", "protective stop")):
            bench.take()
        return False

    station = Station(bench.arm, StopLatch(bench.folder / "stopped"), person)
    policy: Any = SimpleNamespace(version=0)
    return Actor(
        EpisodeKey("run", "actor", 0, 0),
        bench.arm,
        task,
        policy,
        WallClock(10.0, bench.arm.beat),
        [RecordCallback(sink)],
        FakeSite(held=station.standby),
        ActorConfig(),
        reset,
    )


def test_path_reset_puts_part_down_and_returns_to_start_through_the_guard(tmp_path: Path) -> None:
    config = ResetConfig(kind="path", path=PATH, held=HELD, range_m=0.01, lift_m=0.02)
    rng, steps = np.random.default_rng(0), list[Step]()
    with ProfileBench(tmp_path, "franka", file_of("franka")) as bench:
        settings = RealTaskConfig(motion=bench.motion, observe="state", origin_m=(0.0, 0.0, 0.0))
        (task := RealTask(settings)).name = "press"
        reset = ArmReset(task, bench.arm, config, bench.motion, Pose(HOME_M, DOWN), rng)
        bench.arm.guard = GuardClient(bench.node, ROBOT, bench.arm.remote)
        bench.make_ready()
        bench.drive(until=lambda: bench.opening() < 0.02, gripper=-1.0)
        since = len(bench.states)
        assert actor_of(bench, reset, task, steps).bring_to_start()
        assert bench.has_reported("reset", since)
        assert 1e3 * math.dist(bench.position().tolist(), reset.start.position) < 3.0
        assert bench.arm.gains is None, "the gains of episodes are back"
    assert {step.source for step in steps} == {ActionSource.SCRIPT}
    readings = [step.observation.state for step in steps]
    opened = next(each for each in readings if each["gripper"][0] > 0.5)
    assert math.dist(opened["tcp_from_start"].tolist(), PLACE_M) < 0.02
