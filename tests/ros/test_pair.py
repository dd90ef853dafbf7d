"""Two arms behind topics, each in a namespace of its own, as one robot, over real DDS."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from serl import plugins
from serl.bimanual import Pair
from serl.errors import SerlError
from serl.robot import Robot
from serl.ros.arm.robot import RosArm
from serl.ros.node import RosNode
from serl.ros.testing.bench import SPAWN
from serl.ros.testing.processes import eventually
from serl.tasks.reach import ReachConfig
from serl.testing import RobotSuite

from ..support.upstream import file_of
from .conftest import Run

pytestmark = pytest.mark.ros

MOTION = ReachConfig().motion.model_copy(update={"box_high_m": (0.70, 0.30, 0.60)})


class Two:
    """Two fakes of an FR3 in processes of their own, and the actor's end of both."""

    def __init__(self, folder: Path) -> None:
        self.processes, self.node = Run(folder), RosNode("test", folder, local=True)
        self.drivers: dict[str, subprocess.Popen[str]] = {}

    def __enter__(self) -> Two:
        self.node.__enter__()
        for side in ("left", "right"):
            place = self.node.absolute(side)
            self.drivers[side] = self.processes.start(*SPAWN, str(file_of("franka")), place)
        self.arms = [self._arm(side) for side in self.drivers]
        return self

    def __exit__(self, *failure: object) -> None:
        for driver in self.drivers.values():
            driver.send_signal(signal.SIGCONT)
        self.processes.end()
        self.node.__exit__(None, None, None)

    def _arm(self, side: str) -> RosArm:
        profile = plugins.load("robot", "franka")
        return RosArm(self.node, side, profile, ReachConfig(motion=MOTION), lease=side)

    def pair(self) -> Pair:
        """Well, and ready to be driven."""
        pair = Pair(*self.arms)
        self.wait()
        pair.recover()
        return pair

    def wait(self) -> None:
        for arm in self.arms:
            arm.observe_when_fresh(60.0)


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Two]:
    with Two(tmp_path_factory.mktemp("two")) as made:
        yield made


class TestPairOfRosArms(RobotSuite):
    @pytest.fixture(autouse=True)
    def _ready(self, two: Two) -> None:
        self.two = two

    def make(self) -> Pair:
        return self.two.pair()

    def pass_period(self, robot: Robot) -> None:
        time.sleep(0.1)  # real time passes
        self.two.wait()


def test_a_driver_that_hangs_stops_both_arms_until_both_are_well(two: Two) -> None:
    pair = two.pair()
    assert pair.action_spec.unit.split() == [
        f"{side}_{axis}" for side in ("left", "right") for axis in "xyz"
    ]
    two.drivers["right"].send_signal(signal.SIGSTOP)

    def silent() -> bool:
        try:
            pair.observe()
        except SerlError as error:
            return "right/" in str(error)
        return False

    eventually(silent)
    assert all(arm.stop_reason for arm in two.arms)
    assert not pair.act(np.ones(6, np.float32)).any()
    two.drivers["right"].send_signal(signal.SIGCONT)
    two.wait()
    pair.recover()
    two.wait()
    assert pair.observe().state["right_tcp_pose"].shape == (7,)
    assert all(arm.stop_reason is None for arm in two.arms)
