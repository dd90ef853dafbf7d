"""Joints that run while the tool follows, as near a singular pose: slow, held, then stopped."""

from __future__ import annotations

import math

import pytest

from serl.errors import BadInput
from serl.guard.monitors import JointMonitor

from ..support.guarding import TICK_S, Loop, config, driving

LIMIT_RAD_S = 1.5


def turn(loop: Loop, rad_s: float, ticks: int, joint: int = 3) -> None:
    """Pass time in which a joint turns; the tool does what it is told."""
    for _ in range(ticks):
        loop.joints[joint] += rad_s * TICK_S
        loop.tick()


def fastest(loop: Loop, rad_s: float, ticks: int) -> float:
    """Of the setpoint (m/s) in so many ticks."""
    speeds = []
    for _ in range(ticks):
        turn(loop, rad_s, 1)
        assert loop.setpoint is not None
        speeds.append(math.hypot(*loop.setpoint.velocity))
    return max(speeds)


def test_a_joint_that_turns_fast_makes_all_motion_slow_and_no_more() -> None:
    loop = driving()
    assert fastest(loop, 0.9, 30) > 0.07
    turn(loop, -1.1, 30)
    assert fastest(loop, -1.1, 20) <= 0.053
    assert loop.guard.state == "policy"


def test_a_joint_that_goes_on_running_while_the_tool_stands_is_a_protective_stop() -> None:
    loop = driving()
    turn(loop, -1.7, 4)
    turn(loop, -1.7, 25)
    assert loop.guard.state == "hold"
    turn(loop, -1.7, 10)
    assert loop.guard.state == "protective stop"
    assert loop.guard.cause == "joint 4 turns faster than 1.5 rad/s, and goes on"
    with pytest.raises(BadInput, match="joint 4 turns faster"):
        loop.guard.ack(loop.now_s)
    loop.tick(30)
    assert loop.guard.ack(loop.now_s) == "disarmed"


def test_an_arm_whose_joint_runs_is_not_taken_though_its_tool_stands() -> None:
    loop = Loop()
    loop.tick(20)
    turn(loop, 1.7, 5)
    with pytest.raises(BadInput, match="not now: joint 4 turns faster"):
        loop.guard.arm(loop.now_s)


@pytest.mark.parametrize("period_s", [0.001, 0.004, 0.008, 0.01, 0.05, 0.1])
def test_the_speed_is_that_of_the_stamps_at_any_rate(period_s: float) -> None:
    for rad_s, runs in ((1.4, False), (1.6, True), (-1.6, True), (3.0, True)):
        joints = JointMonitor(config())
        for step in range(round(0.3 / period_s)):
            stamp_s = 1.7e9 + step * period_s
            joints.receive([0.0, rad_s * step * period_s, *[0.0] * 5], stamp_s, step * 0.01)
        assert bool(joints.running) == runs, rad_s
        assert joints.slow


def test_noise_a_clock_that_is_set_and_an_arm_that_is_put_elsewhere_are_no_speeds() -> None:
    joints, angle = JointMonitor(config()), 0.0
    stamps_s = [*(0.01 * n for n in range(50)), *(3600 + 0.01 * n for n in range(50))]
    stamps_s += [0.01 * n for n in range(50)]
    for count, stamp_s in enumerate(stamps_s):
        angle = 1.0 if count > 70 else 0.0
        noise = 0.005 * (-1) ** (count // 2)
        joints.receive([angle + noise] * 7, stamp_s, 0.01 * count)
        assert not joints.running
