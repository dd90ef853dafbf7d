import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serl.geometry import (
    Quaternion,
    Vector,
    from_rotation_vector,
    multiply,
    rotation_between,
)
from serl.motion import Limits, Pose
from serl.setpoint import Setpoint, advance_setpoint, at_rest, brake_setpoint

DOWN: Quaternion = (1.0, 0.0, 0.0, 0.0)
START = Pose((0.45, 0.0, 0.2), DOWN)
DT_S = 0.01
SLACK = 1.0 + 1e-9
FASTEST = Limits(
    speed_m_s=0.25,
    acceleration_m_s2=2.0,
    jerk_m_s3=50.0,
    angular_acceleration_rad_s2=10.0,
    angular_jerk_rad_s3=250.0,
)


def angle(a: Quaternion, b: Quaternion) -> float:
    return math.hypot(*rotation_between(a, b))


def vectors(size: float) -> st.SearchStrategy[Vector]:
    number = st.floats(-size, size)
    return st.tuples(number, number, number)


@settings(max_examples=60, deadline=None)
@given(
    targets=st.lists(st.tuples(vectors(0.1), vectors(0.5)), min_size=1, max_size=8),
    ticks=st.integers(1, 30),
    limits=st.sampled_from([Limits(), Limits(speed_m_s=0.03), FASTEST]),
)
def test_setpoint_never_exceeds_limits(
    targets: list[tuple[Vector, Vector]], ticks: int, limits: Limits
) -> None:
    state = Setpoint(Pose((0.0, 0.0, 0.0), DOWN))
    for position, turn in targets:
        target = Pose(position, multiply(from_rotation_vector(turn), DOWN))
        for _ in range(ticks):
            after = advance_setpoint(state, target, limits, DT_S)
            assert math.hypot(*after.velocity) <= limits.speed_m_s * SLACK
            assert math.hypot(*after.acceleration) <= limits.acceleration_m_s2 * SLACK
            change = math.dist(after.acceleration, state.acceleration)
            assert change <= limits.jerk_m_s3 * DT_S * SLACK
            assert math.hypot(*after.angular_velocity) <= 1.0 * SLACK
            assert (
                math.hypot(*after.angular_acceleration)
                <= limits.angular_acceleration_rad_s2 * SLACK
            )
            change = math.dist(after.angular_acceleration, state.angular_acceleration)
            assert change <= limits.angular_jerk_rad_s3 * DT_S * SLACK
            # Position and velocity are integrals of the quantities bounded above.
            moved = math.dist(after.pose.position, state.pose.position)
            assert moved == pytest.approx(math.hypot(*after.velocity) * DT_S, abs=1e-12)
            change = math.dist(after.velocity, state.velocity)
            assert change <= limits.acceleration_m_s2 * DT_S * SLACK
            state = after


@settings(max_examples=60, deadline=None)
@given(
    goal=vectors(0.2),
    turn=vectors(0.8),
    limits=st.sampled_from([Limits(), Limits(speed_m_s=0.05), Limits(speed_m_s=0.25), FASTEST]),
)
def test_setpoint_reaches_target_without_overshoot(
    goal: Vector, turn: Vector, limits: Limits
) -> None:
    target = Pose(goal, multiply(from_rotation_vector(turn), DOWN))
    state = Setpoint(Pose((0.0, 0.0, 0.0), DOWN))
    distance, farthest = math.hypot(*goal), 0.0
    for _ in range(round(100 * (2.0 + distance / limits.speed_m_s + math.hypot(*turn)))):
        state = advance_setpoint(state, target, limits, DT_S)
        if distance > 1e-6:
            along = sum(p * g for p, g in zip(state.pose.position, goal, strict=True)) / distance
            farthest = max(farthest, along - distance)
    assert math.dist(state.pose.position, goal) < 1e-6
    assert angle(state.pose.quaternion, target.quaternion) < 1e-5
    assert farthest < 2e-4
    assert math.hypot(*state.velocity) < 1e-4


def test_setpoint_comes_to_rest_exactly() -> None:
    state, target = Setpoint(START), Pose((0.5, 0.03, 0.1), DOWN)
    for _ in range(300):
        state = advance_setpoint(state, target, Limits(), DT_S)
    assert at_rest(state)
    assert advance_setpoint(state, target, Limits(), DT_S) == state


@settings(deadline=None)
@given(velocity=vectors(0.14), spin=vectors(0.5))
def test_braking_stays_within_stop_limits(velocity: Vector, spin: Vector) -> None:
    limits = Limits(speed_m_s=0.25)
    state = Setpoint(START, velocity=velocity, angular_velocity=spin)
    for _ in range(30):
        after = brake_setpoint(state, limits, DT_S)
        assert math.hypot(*after.acceleration) <= 4.0 * SLACK
        assert math.dist(after.acceleration, state.acceleration) <= 150.0 * DT_S * SLACK
        assert math.hypot(*after.angular_acceleration) <= 20.0 * SLACK
        state = after
    assert at_rest(state)


def test_brake_from_default_speed_takes_at_most_80_ms() -> None:
    state = Setpoint(START, velocity=(0.15, 0.0, 0.0))
    for _ in range(8):
        state = brake_setpoint(state, Limits(), DT_S)
    assert state.velocity == (0.0, 0.0, 0.0)


def test_setpoint_at_random_target_is_at_rest() -> None:
    """Check this also where rounding keeps the quaternion from equality: a guard waits for rest."""
    rng = np.random.default_rng(0)
    for _ in range(50):
        start, shift, turn = rng.uniform(-1.0, 1.0, (3, 3))
        place = (float(start[0]), float(start[1]), float(start[2]))
        tool = from_rotation_vector((float(start[2]), float(start[1]), float(start[0])))
        by = from_rotation_vector((0.02 * turn[0], 0.02 * turn[1], 0.02 * turn[2]))
        goal = Pose(
            (place[0] + 0.01 * shift[0], place[1] + 0.01 * shift[1], place[2] + 0.01 * shift[2]),
            multiply(by, tool),
        )
        state = Setpoint(Pose(place, tool))
        for _ in range(200):
            state = advance_setpoint(state, goal, Limits(), DT_S)
        assert at_rest(state)
