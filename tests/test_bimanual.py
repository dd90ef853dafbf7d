"""Pair of robots as one robot: conformance, and the effect of a failure of one arm."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest

from serl.bimanual import Pair
from serl.errors import BadInput, Silent
from serl.robot import GuardedRobot, Robot
from serl.sim.arm import SimArm
from serl.specs import Spec
from serl.tasks.pick_cube import PickCube
from serl.tasks.reach import Reach
from serl.testing import FakeRobot, RobotSuite
from serl.types import Action, ActionSource, Observation

ONES = np.ones(4, np.float32)


class FailingRobot(FakeRobot):
    """Robot with switchable failures.

    Attributes:
        is_silent: `observe` raises.
        refuses_actions: `act` raises.
        cannot_recover: `recover` raises.
        acted: executed actions.
        sources: action sources passed to `drive_as`.
    """

    is_silent = refuses_actions = cannot_recover = False

    def __init__(self) -> None:
        self.acted: list[list[float]] = []
        self.sources: list[ActionSource] = []
        super().__init__()

    def observe(self) -> Observation:
        if self.is_silent:
            raise Silent("no message")
        return super().observe()

    def act(self, action: Action) -> Action:
        if self.refuses_actions:
            raise Silent("no arm")
        self.acted.append(action.tolist())
        return super().act(action)

    def drive_as(self, source: ActionSource) -> None:
        self.sources.append(source)

    def recover(self) -> None:
        if self.cannot_recover:
            raise Silent("the pose is unknown")
        super().recover()


class TestPairOfSimulatedArms(RobotSuite):
    """Robot suite for a pair of different arms: one has a gripper and a cube."""

    def make(self) -> Pair:
        tasks = Reach(), PickCube()
        return Pair(*(SimArm(task.scene, task.config) for task in tasks))

    def pass_period(self, robot: Robot) -> None:
        for arm in (cast(Pair, robot).left, cast(Pair, robot).right):
            cast(SimArm, arm).advance(0.1)


@pytest.fixture
def pair() -> Pair:
    return Pair(FailingRobot(), FailingRobot())


def fakes(pair: Pair) -> tuple[FailingRobot, FailingRobot]:
    return cast(FailingRobot, pair.left), cast(FailingRobot, pair.right)


def test_pair_specs_prefix_names_with_left_and_right(pair: Pair) -> None:
    names = ["left_position", "left_velocity", "right_position", "right_velocity"]
    assert list(pair.observation_spec.state) == names
    assert list(pair.observe().state) == names
    assert pair.action_spec.shape == (4,)
    spec = Spec(task="t", observation=pair.observation_spec, action=pair.action_spec, rate_hz=10.0)
    assert spec.action_names == ["left_x", "left_y", "right_x", "right_y"]


def test_pair_splits_action_between_arms(pair: Pair) -> None:
    left, right = fakes(pair)
    executed = pair.act(np.array([1.0, 0.5, -0.5, -1.0], np.float32))
    assert (left.acted, right.acted) == ([[1.0, 0.5]], [[-0.5, -1.0]])
    assert executed.tolist() == pytest.approx([1.0, 0.5, -0.5, -1.0])


def test_pair_passes_action_source_to_both_arms(pair: Pair) -> None:
    assert isinstance(pair, GuardedRobot)
    pair.drive_as(ActionSource.HUMAN)
    assert [arm.sources for arm in fakes(pair)] == [[ActionSource.HUMAN], [ActionSource.HUMAN]]


def test_invalid_part_of_action_reaches_neither_arm(pair: Pair) -> None:
    with pytest.raises(BadInput):
        pair.act(np.array([0.0, 0.0, 0.0, np.nan], np.float32))
    assert fakes(pair)[0].acted == []


def test_pair_stamp_is_that_of_older_reading(pair: Pair) -> None:
    fakes(pair)[0].advance(0.1)
    stamps = pair.observe().stamps
    assert stamps == {"left_robot": 0.1, "right_robot": 0.0, "robot": 0.0}


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("call", ["observe", "act"])
def test_failure_of_one_arm_stops_both(pair: Pair, side: int, call: str) -> None:
    bad = fakes(pair)[side]
    bad.is_silent, bad.refuses_actions = call == "observe", call == "act"
    with pytest.raises(Silent):
        pair.observe() if call == "observe" else pair.act(ONES)
    assert pair.stop_reason
    assert all(each.stop_reason == pair.stop_reason for each in fakes(pair))
    bad.is_silent = bad.refuses_actions = False
    assert not pair.act(ONES).any()


@pytest.mark.parametrize("side", [0, 1])
def test_stop_of_one_arm_stops_other_at_next_action(pair: Pair, side: int) -> None:
    fakes(pair)[side].stop("its own guard")
    assert not pair.act(ONES).any()
    assert [each.stop_reason for each in fakes(pair)] == ["its own guard"] * 2
    assert all(not each.acted for each in fakes(pair))
    pair.recover()
    assert pair.act(ONES).all()


def test_pair_recovers_both_arms_or_neither(pair: Pair) -> None:
    left, right = fakes(pair)
    pair.stop("test")
    right.cannot_recover = True
    with pytest.raises(Silent):
        pair.recover()
    assert (left.stop_reason, right.stop_reason) == ("test", "test")
    assert not pair.act(ONES).any()
    right.cannot_recover = False
    pair.recover()
    assert (left.stop_reason, right.stop_reason, pair.stop_reason) == ("", "", None)


def test_failed_stop_of_left_arm_still_stops_right(pair: Pair) -> None:
    left, right = fakes(pair)

    def fail(reason: str) -> None:
        raise Silent("gone")

    cast(Any, left).stop = fail
    with pytest.raises(Silent):
        pair.stop("test")
    assert right.stop_reason == "test"


def test_failed_open_of_one_arm_closes_other() -> None:
    closed: list[str] = []

    class ConsoleAddress(FakeRobot):
        def __exit__(self, *failure: object) -> None:
            closed.append("left")

    class Locked(FakeRobot):
        def __enter__(self) -> Locked:
            raise Silent("no arm")

    with pytest.raises(Silent), Pair(ConsoleAddress(), Locked()):
        pass
    assert closed == ["left"]


def test_pair_of_same_robot_is_refused() -> None:
    robot = FakeRobot()
    with pytest.raises(BadInput, match="one twice"):
        Pair(robot, robot)
