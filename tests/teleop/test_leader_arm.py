"""Leader arm: the robot moves by the same distance and never jumps."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serl.geometry import Quaternion, Vector, from_rotation_vector
from serl.teleop.leader_arm import MAPPING, LeaderArm
from serl.teleop.mapping import read_wish
from serl.testing import DeviceSuite

from .bench import Clock

FULL_M, FULL_RAD = 0.015, 0.1
UPRIGHT = (0.0, 0.0, 0.0, 1.0)


class LeaderBench(Clock):
    """Bench of a leader arm that each push moves 10 mm forward."""

    def __init__(self) -> None:
        super().__init__()
        self.device = LeaderArm(FULL_M, FULL_RAD, now_s=self.now_s)
        self.mapping, self.x_m, self.alive = MAPPING, 0.3, True

    def push(self) -> None:
        if self.device.read() is None:
            self.release()
        self.x_m += 0.01
        self.release()

    def release(self) -> None:
        if self.alive:
            self.device.receive((self.x_m, 0.0, 0.2), UPRIGHT)

    def die(self) -> None:
        self.alive = False


class TestLeaderArm(DeviceSuite):
    def make(self) -> LeaderBench:
        return LeaderBench()


def axes(arm: LeaderArm) -> dict[str, float]:
    report = arm.read()
    assert report is not None
    return {name: round(value, 4) for name, value in report.axes.items() if abs(value) > 1e-6}


def test_leader_motion_beyond_one_step_is_spread_over_next_steps() -> None:
    arm = LeaderArm(FULL_M, FULL_RAD, now_s=Clock().now_s)
    arm.receive((0.3, 0.0, 0.2), UPRIGHT)
    assert axes(arm) == {}
    arm.receive((0.3, -0.04, 0.2), UPRIGHT)
    assert [axes(arm) for _ in range(4)] == [{"y": -1.0}, {"y": -1.0}, {"y": -0.6667}, {}]


def test_leader_rotation_is_followed_about_its_axis() -> None:
    arm = LeaderArm(FULL_M, FULL_RAD, now_s=Clock().now_s)
    arm.receive((0.3, 0.0, 0.2), UPRIGHT)
    arm.receive((0.3, 0.0, 0.2), (0.0, 0.0, math.sin(0.125), math.cos(0.125)))  # 0.25 rad of yaw
    assert [axes(arm) for _ in range(4)] == [{"yaw": 1.0}, {"yaw": 1.0}, {"yaw": 0.5}, {}]


def test_leader_moved_during_silence_causes_no_jump() -> None:
    clock = Clock()
    arm = LeaderArm(FULL_M, FULL_RAD, now_s=clock.now_s)
    arm.receive((0.3, 0.0, 0.2), UPRIGHT)
    clock.wait(2.0)
    arm.receive((0.9, 0.0, 0.2), UPRIGHT)
    assert axes(arm) == {}


@pytest.mark.parametrize(
    ("position", "quaternion"),
    [
        ((math.nan, 0.0, 0.2), UPRIGHT),
        ((0.5, 0.0, 0.2), (0.0, 0.0, 0.0, 0.0)),
        ((0.5, 0.0, 0.2), (0.0, 0.0, math.inf, 1.0)),
    ],
)
def test_leader_ignores_invalid_pose(
    position: tuple[float, float, float], quaternion: tuple[float, float, float, float]
) -> None:
    arm = LeaderArm(FULL_M, FULL_RAD, now_s=Clock().now_s)
    assert arm.silence_s == math.inf
    arm.receive((0.3, 0.0, 0.2), UPRIGHT)
    arm.receive(position, quaternion)
    assert axes(arm) == {}


_NUMBER = st.one_of(st.floats(), st.floats(-1.0, 1.0))
_TURN = st.tuples(*[st.floats(-7.0, 7.0)] * 3).map(from_rotation_vector)
_POSE = st.tuples(
    st.tuples(*[_NUMBER] * 3), st.one_of(st.tuples(*[_NUMBER] * 4), _TURN), st.none() | _NUMBER
)


@settings(deadline=None)
@given(st.lists(_POSE, max_size=8), st.booleans(), st.booleans())
def test_any_poses_give_motion_within_bounds(
    poses: list[tuple[Vector, Quaternion, float | None]], limited: bool, in_tool_frame: bool
) -> None:
    limits = (0.05, 0.35) if limited else None
    arm = LeaderArm(FULL_M, FULL_RAD, Clock().now_s, limits, in_tool_frame)
    arm.robot_pose = (0.3, 0.0, 0.2), UPRIGHT
    for pose in (((0.3, 0.0, 0.2), UPRIGHT, 0.0), *poses):
        arm.receive(*pose)
        report = arm.read()
        assert report is not None
        wish = read_wish(report, MAPPING)
        assert wish is not None
        assert all(-1.0 <= value <= 1.0 for value in wish.motion)
