"""Arming: poses and units that the guard refuses, and measurements that resumed."""

from __future__ import annotations

import math

import pytest

from serl.errors import BadInput
from serl.geometry import from_rotation_vector
from serl.motion import Pose

from ..support.guarding import DOWN, Loop


@pytest.mark.parametrize(
    ("place", "turned_rad", "complaint"),
    [
        ((0.71, 0.0, 0.2), 0.0, r"outside the box \(x is 0.710 m, motion.box from 0.3 to 0.6"),
        ((0.45, 0.0, -0.06), 0.0, r"z is -0.060 m, motion.box from 0.05 to 0.4 m"),
        ((0.45, 0.0, 0.2), 0.96, r"turned by 0.96 rad .* motion.max_rotation_rad allows"),
    ],
)
def test_guard_refuses_to_arm_with_tool_far_outside_its_limits(
    place: tuple[float, float, float], turned_rad: float, complaint: str
) -> None:
    loop = Loop(pose=Pose(place, from_rotation_vector((math.pi - turned_rad, 0.0, 0.0))))
    loop.tick(20)
    with pytest.raises(BadInput, match=complaint):
        loop.guard.arm(loop.now_s)
    assert loop.guard.state == "disarmed"


@pytest.mark.parametrize(("x_m", "turned_rad"), [(0.69, 0.0), (0.45, 0.94)])
def test_guard_arms_with_tool_little_outside_its_limits(x_m: float, turned_rad: float) -> None:
    turned = from_rotation_vector((math.pi - turned_rad, 0.0, 0.0))
    loop = Loop(pose=Pose((x_m, 0.0, 0.2), turned))
    loop.tick(20)
    loop.guard.arm(loop.now_s)
    assert loop.guard.state != "disarmed"


def test_guard_refuses_to_arm_with_measurements_in_wrong_units() -> None:
    loop = Loop()
    loop.measured.discard("pose")
    loop.guard.pose([450.0, 0.0, 200.0, *DOWN], loop.message_info())
    with pytest.raises(BadInput, match="pose is 492 m away: expected metres"):
        loop.guard.arm(loop.now_s)
    loop = Loop()
    loop.joints = [0.0, -45.0, 0.0, -135.0, 0.0, 90.0, 45.0]
    loop.tick(20)
    with pytest.raises(BadInput, match="joints turned to -135: expected rad"):
        loop.guard.arm(loop.now_s)


def test_measurement_counts_as_resumed_after_gap_and_always_without_deadline() -> None:
    loop = Loop()
    loop.tick(400)
    measured = loop.guard.measured
    assert not measured.is_resumed("pose", loop.now_s, 3.0)
    assert all(measured.is_resumed(kind, loop.now_s, 3.0) for kind in ("twist", "gripper", "fault"))
    loop.measured.discard("pose")
    loop.tick(30)
    assert measured.is_resumed("pose", loop.now_s, 3.0)
    loop.measured.add("pose")
    loop.tick(290)
    assert measured.is_resumed("pose", loop.now_s, 3.0)
    loop.tick(30)
    assert not measured.is_resumed("pose", loop.now_s, 3.0)
