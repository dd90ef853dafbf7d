from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serl.geometry import Vector, from_rotation_vector
from serl.motion import Limits, Pose
from serl.ros.arm.commander import VelocityFollower
from serl.setpoint import PROFILE_PERIOD_S, Setpoint, advance_setpoint, steer

LIMITS = Limits()
SLOW = Limits(speed_m_s=0.05, angular_speed_rad_s=0.25)
DOWN = (1.0, 0.0, 0.0, 0.0)
HERE = Pose((0.4, 0.0, 0.2), DOWN)
ZERO: Vector = (0.0, 0.0, 0.0)
STILL = (ZERO, ZERO)
MOVING = Setpoint(HERE, velocity=(0.1, 0.0, 0.0), angular_velocity=(0.0, 0.0, 0.5))


class ClockedFollower:
    """A velocity follower with a clock that advances 10 ms per call."""

    def __init__(self) -> None:
        self.follower, self.now_s = VelocityFollower(LIMITS), 100.0

    def __call__(
        self, setpoint: Setpoint, measured: Pose | None, pace: Limits | None, count: int = 1
    ) -> tuple[Vector, Vector]:
        for _ in range(count):
            self.now_s += PROFILE_PERIOD_S
            sent = self.follower.follow(setpoint, measured, pace, self.now_s)
        return sent


def test_follower_at_setpoint_ramps_to_setpoint_velocity() -> None:
    follow = ClockedFollower()
    assert follow(Setpoint(HERE), HERE, LIMITS) == STILL
    assert follow(MOVING, HERE, LIMITS)[0][0] < 0.01  # a ramp
    linear, angular = follow(MOVING, HERE, LIMITS, 40)
    assert linear == pytest.approx((0.1, 0.0, 0.0))
    assert angular == pytest.approx((0.0, 0.0, 0.5))


@pytest.mark.parametrize(("measured", "pace"), [(None, LIMITS), (HERE, None), (None, None)])
def test_follower_stops_within_100_ms_without_pose_or_pace(
    measured: Pose | None, pace: Limits | None
) -> None:
    follow = ClockedFollower()
    assert follow(MOVING, measured, pace) == STILL
    follow(MOVING, HERE, LIMITS, 40)
    speeds = [follow(MOVING, measured, pace)[0][0] for _ in range(10)]
    assert speeds == sorted(speeds, reverse=True)
    assert follow(MOVING, measured, pace) == STILL
    assert follow(MOVING, measured, pace, 100) == STILL


@pytest.mark.parametrize("behind_m", [0.01, 0.1, 10.0])
@pytest.mark.parametrize("pace", [LIMITS, SLOW])
def test_follower_speed_stays_within_limits(behind_m: float, pace: Limits) -> None:
    follow = ClockedFollower()
    goal = Setpoint(Pose((behind_m, 0.0, 0.0), DOWN), velocity=(0.15, 0.0, 0.0))
    turned = Pose((0.0, 0.0, 0.0), from_rotation_vector((0.0, 3.0, 0.0)))
    for _ in range(60):
        linear, angular = follow(goal, turned, pace)
        assert math.hypot(*linear) <= pace.speed_m_s + 1e-12
        assert math.hypot(*angular) <= pace.angular_speed_rad_s + 1e-12
    assert linear[0] > 0.04


def test_follower_returns_pushed_arm_at_limited_speed() -> None:
    follow = ClockedFollower()
    pushed = Pose((0.45, 0.0, 0.2), DOWN)
    linear, _ = follow(Setpoint(HERE), pushed, LIMITS, 50)
    assert linear == pytest.approx((-2.0 * LIMITS.lead_m, 0.0, 0.0))


def test_follower_restarts_from_rest_after_a_pause() -> None:
    follow = ClockedFollower()
    follow(MOVING, HERE, LIMITS, 40)
    follow.now_s += 0.2
    assert follow(MOVING, HERE, LIMITS)[0][0] < 0.01


def test_follower_reaches_target_despite_slip_and_drift() -> None:
    """Emulate an arm that executes 90 % of each velocity and drifts."""
    target = Pose((0.1, 0.0, 0.0), from_rotation_vector((0.0, 0.0, 0.3)))
    setpoint, place = Setpoint(Pose(ZERO, (0.0, 0.0, 0.0, 1.0))), 0.0
    angle, follow = 0.0, ClockedFollower()
    for _ in range(500):
        setpoint = advance_setpoint(setpoint, target, LIMITS, PROFILE_PERIOD_S)
        turned = from_rotation_vector((0.0, 0.0, angle))
        linear, angular = follow(setpoint, Pose((place, 0.0, 0.0), turned), LIMITS)
        place += (0.9 * linear[0] - 0.001) * PROFILE_PERIOD_S
        angle += 0.9 * angular[2] * PROFILE_PERIOD_S
    assert place == pytest.approx(0.1, abs=1e-3)
    assert angle == pytest.approx(0.3, abs=1e-3)


@settings(max_examples=30, deadline=None)
@given(
    goals=st.lists(
        st.tuples(*[st.floats(-0.4, 0.4)] * 3, st.integers(1, 30)), min_size=1, max_size=8
    ),
    fast=st.booleans(),
)
def test_steer_limits_speed_acceleration_and_jerk(
    goals: list[tuple[float, float, float, int]], fast: bool
) -> None:
    peak, jerk = (4.0, 150.0) if fast else (1.0, 20.0)
    velocity, acceleration = ZERO, ZERO
    for x, y, z, ticks in [*goals, (0.0, 0.0, 0.0, 80)]:
        for _ in range(ticks):
            before = velocity, acceleration
            velocity, acceleration = steer(*before, (x, y, z), 0.15, peak, jerk, PROFILE_PERIOD_S)
            assert math.hypot(*velocity) <= 0.15 + 1e-9
            assert math.hypot(*acceleration) <= peak + 1e-9
            assert math.dist(acceleration, before[1]) <= jerk * PROFILE_PERIOD_S + 1e-9
            assert velocity == pytest.approx(
                [v + PROFILE_PERIOD_S * a for v, a in zip(before[0], acceleration, strict=True)],
                abs=1e-12,
            )
    assert velocity == ZERO
