"""A simulation at twice the speed of the wall clock, whose guard and actor use its `/clock`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rclpy.parameter import Parameter
from rosgraph_msgs.msg import Clock

from serl import plugins
from serl.clock import WallClock
from serl.errors import SerlError
from serl.ros.arm import simulated
from serl.ros.arm.guard_topics import GUARD_STATE
from serl.ros.arm.simulated import SimulatedRosArm
from serl.ros.arm.topics import of_robot
from serl.ros.node import RosNode
from serl.ros.processes import arm_processes
from serl.ros.real_arm import simulated_arm
from serl.ros.testing.processes import eventually
from serl.ros.topics import Topic
from serl.runs.config import resolve
from serl.runs.folder import RunFolder
from serl.runs.task_setup import make_task
from serl.system.signed_order import key_path

from .conftest import Run

pytestmark = [pytest.mark.ros, pytest.mark.xdist_group("moving_arm")]  # not beside each other

ROBOT = "left"
BY_THE_CLOCK = ("--ros-args", "-p", "use_sim_time:=true")
_LIMIT_S = 60.0


class Rig:
    """A simulated arm at double speed and its guard; the test's process is the actor."""

    def __init__(
        self, folder: Path, *of_guard: str, tells: tuple[str, ...] = ("--rtf", "2", "--clock")
    ) -> None:
        config = resolve({"task": "reach", "robot": "sim", "demos": 0})
        self.task, self.run = make_task(config), RunFolder.create(folder, config, datetime.now())
        self.clock: list[tuple[float, float]] = []  # simulation and wall time
        self.said, self.counts = "", dict[str, float]()
        self._processes, self._of_guard, self._tells = Run(self.run.path), of_guard, tells
        self.node = RosNode("actor", self.run.path, local=True)

    def __enter__(self) -> Rig:
        self.node.__enter__()
        self.node.handle.set_parameters([Parameter("use_sim_time", value=True)])
        self.node.subscribe(Topic("/clock", Clock, 10), self._hear_clock)
        self.node.subscribe(of_robot(GUARD_STATE, ROBOT), self._hear_guard)
        arm, guard = arm_processes(self.run, ROBOT)
        self._processes.start("-m", arm.module, *arm.arguments, *self._tells)
        self._processes.start("-m", guard.module, *guard.arguments, *self._of_guard)
        return self

    def __exit__(self, *failure: Any) -> None:
        self._processes.end()
        self.node.__exit__(*failure)

    def arm(self) -> SimulatedRosArm:
        scene, config = self.task.scene, self.task.config
        profile = plugins.load("robot", "sim")
        arm = SimulatedRosArm(self.node, ROBOT, profile, config, scene.tracked, guarded=True)
        assert arm.guard is not None
        arm.guard.key = key_path(simulated_arm(self.run, ROBOT).latch)
        return arm

    def _hear_clock(self, message: Any) -> None:
        now = message.clock
        self.clock.append((now.sec + 1e-9 * now.nanosec, time.monotonic()))

    def _hear_guard(self, message: Any) -> None:
        self.said = message.message
        pairs = {pair.key: pair.value for pair in message.values}
        self.counts = {key: float(value) for key, value in pairs.items() if ": " in key}


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with Rig(tmp_path, *BY_THE_CLOCK) as made:
        yield made


def test_guard_and_actor_drive_double_speed_arm_by_its_clock(rig: Rig) -> None:
    arm = rig.arm()
    start = arm.reset(0).state["tcp_pose"][:3]
    clock, begun_s = WallClock(rig.task.config.rate_hz, arm.beat), time.monotonic()
    clock.start()
    way_m = 0.0
    while way_m < 0.03 and time.monotonic() - begun_s < _LIMIT_S:
        clock.wait()
        place = arm.observe_when_fresh(_LIMIT_S).state["tcp_pose"][:3]
        way_m = float(np.linalg.norm(place - start))
        arm.act(np.full(arm.action_spec.shape, 0.5, np.float32))
    assert way_m >= 0.03, (rig.said, rig.counts)
    eventually(lambda: rig.clock[-1][1] - rig.clock[0][1] > 5.0, _LIMIT_S)
    (first_s, begun_s), (last_s, ended_s) = rig.clock[0], rig.clock[-1]
    assert 1.6 < (last_s - first_s) / (ended_s - begun_s) < 2.5


def test_actor_without_clock_ends_with_one_line_and_arm_stays_disarmed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(simulated, "_ATTEMPTS", 1)  # retries fail, too
    with Rig(tmp_path, *BY_THE_CLOCK, tells=()) as rig:
        with pytest.raises(SerlError, match="use_sim_time is true, and /clock has no publisher"):
            rig.arm().reset(0)
        eventually(lambda: rig.said)
        assert rig.said == "disarmed"


def test_guard_on_wall_clock_rejects_stamps_of_double_speed_arm(tmp_path: Path) -> None:
    with Rig(tmp_path) as rig:
        eventually(lambda: rig.counts.get("pose: future", 0.0) > 100.0, _LIMIT_S)
        assert rig.said == "disarmed"
