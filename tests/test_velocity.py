from __future__ import annotations

import math

import pytest

from serl.rotations import from_rotation_vector
from serl.safety import Limits, Pose
from serl.setpoint import PROFILE_PERIOD_S, Setpoint, advance_setpoint
from serl.velocity import velocity_towards

LIMITS = Limits()
DOWN = (1.0, 0.0, 0.0, 0.0)
STILL = ((0.0, 0.0, 0.0), (0.0, 0.0, 0.0))


def test_who_is_where_the_setpoint_is_goes_as_fast_as_it_does() -> None:
    pose = Pose((0.4, 0.0, 0.2), DOWN)
    assert velocity_towards(Setpoint(pose), pose, LIMITS) == STILL
    moving = Setpoint(pose, velocity=(0.1, 0.0, 0.0), angular_velocity=(0.0, 0.0, 0.5))
    assert velocity_towards(moving, pose, LIMITS) == ((0.1, 0.0, 0.0), (0.0, 0.0, 0.5))


def test_who_is_not_known_to_be_anywhere_stands() -> None:
    moving = Setpoint(Pose((0.4, 0.0, 0.2), DOWN), velocity=(0.1, 0.0, 0.0))
    assert velocity_towards(moving, None, LIMITS) == STILL


@pytest.mark.parametrize("behind_m", [0.01, 0.1, 10.0])
def test_no_speed_is_beyond_its_limit(behind_m: float) -> None:
    goal = Setpoint(Pose((behind_m, 0.0, 0.0), DOWN), velocity=(0.15, 0.0, 0.0))
    turned = Pose((0.0, 0.0, 0.0), from_rotation_vector((0.0, 3.0, 0.0)))
    linear, angular = velocity_towards(goal, turned, LIMITS)
    assert math.hypot(*linear) <= LIMITS.speed_m_s + 1e-12
    assert math.hypot(*angular) <= LIMITS.angular_speed_rad_s + 1e-12
    assert linear[0] > 0.0


def test_an_arm_that_slips_arrives_all_the_same() -> None:
    """One that makes nine tenths of each velocity, and drifts."""
    target = Pose((0.1, 0.0, 0.0), from_rotation_vector((0.0, 0.0, 0.3)))
    setpoint, place = Setpoint(Pose((0.0, 0.0, 0.0), (0.0, 0.0, 0.0, 1.0))), 0.0
    angle = 0.0
    for _ in range(500):
        setpoint = advance_setpoint(setpoint, target, LIMITS, PROFILE_PERIOD_S)
        turned = from_rotation_vector((0.0, 0.0, angle))
        linear, angular = velocity_towards(setpoint, Pose((place, 0.0, 0.0), turned), LIMITS)
        place += (0.9 * linear[0] - 0.001) * PROFILE_PERIOD_S
        angle += 0.9 * angular[2] * PROFILE_PERIOD_S
    assert place == pytest.approx(0.1, abs=1e-3)
    assert angle == pytest.approx(0.3, abs=1e-3)
