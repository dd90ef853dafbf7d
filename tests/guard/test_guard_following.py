from __future__ import annotations

import math

import pytest

from serl.guard.guard import GuardState
from serl.motion import Pose

from ..support.guarding import DOWN, Loop, driving


def test_guard_limits_lead_of_stuck_arm_and_holds_after_two_seconds() -> None:
    loop = driving()
    ticks = stuck_ticks(loop, 300)
    assert 200 <= ticks <= 240
    assert loop.guard.cause == "the arm does not move"
    assert loop.guard.counts["hold: the arm does not move"] == 1
    assert stuck_ticks(loop, 300) < 300  # the guard retries after one second
    assert loop.guard.counts["hold: the arm does not move"] == 2
    loop.ticks_until(GuardState.POLICY)  # the arm moves freely again
    loop.tick(300)
    assert loop.guard.counts["hold: the arm does not move"] == 2


@pytest.mark.parametrize("wrench", [[0, 0, 1.6, 0, 0, 0], [0, 0, 0, 0, -0.35, 0]])
def test_guard_keeps_driving_stuck_arm_that_measures_contact(wrench: list[float]) -> None:
    loop = driving()
    loop.force = wrench
    assert stuck_ticks(loop, 700) == 700


def test_guard_without_wrench_sensor_holds_stuck_arm_after_six_seconds() -> None:
    loop = driving(wrench=False)
    assert 600 <= stuck_ticks(loop, 1000) <= 640
    assert loop.guard.cause == "the arm stands, or pushes"


def test_guard_keeps_driving_arm_that_moves_one_millimetre_at_a_time() -> None:
    loop = driving()
    x, y, z = loop.fake.pose.position
    for step in range(15):
        y += 0.0012
        loop.fake.pose = Pose((x, y, z), DOWN)
        assert stuck_ticks(loop, 100) == 100, step


def stuck_ticks(loop: Loop, ticks: int) -> int:
    """Count the ticks, at most `ticks`, in which the guard drives an arm that does not move."""
    place = loop.fake.pose
    loop.ticks_until(GuardState.POLICY)
    for tick in range(ticks):
        loop.fake.pose = place
        loop.tick()
        assert loop.setpoint is not None
        assert math.dist(loop.setpoint.pose.position, place.position) < 0.0104
        if loop.guard.state != "policy":
            return tick
    return ticks
