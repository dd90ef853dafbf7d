from __future__ import annotations

import math

import pytest

from serl.guard.guard import GuardState
from serl.motion import Pose

from ..support.guarding import DOWN, Loop, driving


def test_an_arm_that_does_not_follow_is_stopped_after_300_ms() -> None:
    loop = driving()
    drift = 0.0
    away = 0
    while loop.guard.state == "policy":
        drift += 0.004  # pulled out sideways
        place = loop.fake.pose.position
        loop.fake.pose = Pose((0.45 - drift, place[1], place[2]), DOWN)
        assert loop.setpoint is not None
        away += math.dist(loop.setpoint.pose.position, loop.fake.pose.position) > 0.05
        loop.tick()
    assert loop.guard.state == "protective stop"
    assert loop.guard.cause == "the arm does not follow"
    assert 29 <= away <= 33


def test_a_stuck_arm_is_not_led_further_than_the_lead_and_rests_after_two_seconds() -> None:
    loop = driving()
    ticks = stuck(loop, 300)
    assert 200 <= ticks <= 240
    assert loop.guard.cause == "the arm does not move"
    assert loop.guard.counts["hold: the arm does not move"] == 1
    assert stuck(loop, 300) < 300  # and after each second it is tried again
    assert loop.guard.counts["hold: the arm does not move"] == 2
    loop.ticks_until(GuardState.POLICY)  # it is free again
    loop.tick(300)
    assert loop.guard.counts["hold: the arm does not move"] == 2


@pytest.mark.parametrize("wrench", [[0, 0, 1.6, 0, 0, 0], [0, 0, 0, 0, -0.35, 0]])
def test_an_arm_that_pushes_against_something_is_not_stuck(wrench: list[float]) -> None:
    loop = driving()
    loop.force = wrench
    assert stuck(loop, 1000) == 1000


def test_an_arm_that_feels_nothing_may_push_for_longer() -> None:
    loop = driving(wrench=False)
    assert 600 <= stuck(loop, 1000) <= 640
    assert loop.guard.cause == "the arm stands, or pushes"


def test_an_arm_that_is_held_up_a_millimetre_at_a_time_is_not_stuck() -> None:
    loop = driving()
    x, y, z = loop.fake.pose.position
    for step in range(50):
        y += 0.0012
        loop.fake.pose = Pose((x, y, z), DOWN)
        assert stuck(loop, 100) == 100, step


def stuck(loop: Loop, ticks: int) -> int:
    """For how many ticks an arm that does not move is led on, of so many."""
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
