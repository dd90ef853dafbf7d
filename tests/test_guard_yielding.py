"""An arm that is soft after a contact, and somebody who moves it by hand."""

from __future__ import annotations

import math

import pytest

from serl.errors import BadInput
from serl.guard_chain import is_apart
from serl.safety import Pose

from .guarding import driving


def shifted(pose: Pose, shift_m: float, turn_rad: float) -> Pose:
    x, y, z = pose.position
    return Pose((x, y - shift_m, z), (math.cos(turn_rad / 2), math.sin(turn_rad / 2), 0.0, 0.0))


@pytest.mark.parametrize("act", ["push at once", "push later"])
@pytest.mark.parametrize(("shift_m", "turn_rad"), [(0.125, 0.0), (0.0, 0.3)])
def test_a_soft_arm_that_is_moved_by_little_force_gets_stiff_where_it_is(
    act: str, shift_m: float, turn_rad: float
) -> None:
    loop = driving()
    loop.force = [31.0, 0, 0, 0, 0, 0]
    loop.tick()
    loop.force = [25.0, 0, 0, 0, 0, 0]  # what a soft spring makes of it; below what stops
    loop.tick(100 if act == "push later" else 0)
    place = loop.fake.pose
    for part in range(1, 11):
        moved = shifted(place, 0.1 * part * shift_m, 0.1 * part * turn_rad)
        for _ in range(3):
            loop.fake.pose = moved
            loop.tick()
    assert loop.guard.yields
    while loop.guard.refusal(loop.now_s):
        loop.fake.pose = moved
        loop.tick()
    loop.mode = "hold"
    assert loop.setpoint is not None
    limits = loop.config.motion.limits
    assert not is_apart(loop.setpoint.pose, moved, limits.lead_m, limits.lead_rad)
    loop.guard.ack(loop.now_s)
    assert loop.tick() is None, "it gets stiff where the last setpoint was"


def test_a_moved_arm_is_not_acknowledged_while_its_setpoint_is_far_behind() -> None:
    loop = driving()
    loop.force = [31.0, 0, 0, 0, 0, 0]
    loop.tick(60)
    loop.force = [0.0] * 6
    moved = shifted(loop.fake.pose, 0.04, 0.0)
    for _ in range(15):
        loop.fake.pose = moved
        loop.tick()
    with pytest.raises(BadInput, match="not now: the arm was moved: its setpoint is on its way"):
        loop.guard.ack(loop.now_s)
    for _ in range(100):
        loop.fake.pose = moved
        loop.tick()
    loop.guard.ack(loop.now_s)


def test_a_soft_arm_that_is_moved_by_less_than_the_lead_goes_back() -> None:
    loop = driving()
    loop.force = [31.0, 0, 0, 0, 0, 0]
    loop.tick(60)
    loop.force = [0.0] * 6
    loop.tick(60)
    assert loop.setpoint is not None
    rest = loop.setpoint.pose
    for _ in range(30):
        loop.fake.pose = shifted(rest, 0.009, 0.0)
        loop.tick()
    assert math.dist(loop.setpoint.pose.position, rest.position) < 1e-4
