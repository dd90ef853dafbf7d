"""Guard with velocity-controlled arms that follow with lag: stops, limits and contact."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest

from serl.guard.guard import GuardState
from serl.motion import Pose

from .support.guarding import DOWN, TICK_S, Loop
from .support.servoing import STILL, Twist, servoing

LAGS = [(0.02, 0.02), (0.05, 0.03)]
"""Lag and dead time in seconds, as on real arms."""

STOP_TICKS = 10
"""Ticks from a stop or a hold until only zero velocity is sent: 100 ms."""


@pytest.mark.parametrize(("lag_s", "dead_s"), LAGS)
@pytest.mark.parametrize("stop", ["estop", "stop", "disarm", "the actor holds", "the pose ends"])
def test_stopped_arm_gets_zero_velocity_within_100_ms_and_keeps_it(
    lag_s: float, dead_s: float, stop: str
) -> None:
    loop, arm = servoing(lag_s, dead_s)
    assert arm.sent[-1][0][1] > 0.07
    match stop:
        case "disarm":
            loop.guard.disarm()
        case "the actor holds":
            loop.mode = "hold"
            loop.ticks_until(GuardState.HOLD)
        case "the pose ends":
            loop.measured.remove("pose")
            loop.ticks_until(GuardState.HOLD)
        case _:
            getattr(loop.guard, stop)("test")
    begin = len(arm.sent)
    place = arm.pose.position[1]
    loop.tick(300)
    assert all(linear[1] >= 0.0 for linear, _ in arm.sent[begin:])  # no retract
    assert all(sent == STILL for sent in arm.sent[begin + STOP_TICKS :])
    assert arm.pose.position[1] >= place


@pytest.mark.parametrize("state", ["hold", "estop"])
def test_pushed_arm_at_rest_gets_zero_velocity(state: str) -> None:
    loop, arm = servoing(0.05, 0.03)
    if state == "estop":
        loop.guard.estop("test")
    else:
        loop.mode = "hold"
    loop.tick(100)
    begin = len(arm.sent)
    x, y, z = arm.pose.position
    for step in range(40):
        arm.pose = Pose((x + 0.001 * step, y, z), DOWN)
        loop.tick()
    loop.tick(20)
    assert all(sent == STILL for sent in arm.sent[begin:])


def test_single_wrong_pose_keeps_velocity_within_limits() -> None:
    loop, arm = servoing(0.05, 0.03)
    loop.mode = "hold"
    loop.tick(100)
    loop.mode, loop.target = "policy", arm.pose
    loop.tick(100)
    begin = len(arm.sent)
    place = arm.pose
    arm.pose = Pose((place.position[0] - 0.04, *place.position[1:]), DOWN)
    loop.tick()
    arm.pose = place
    loop.tick(50)
    assert loop.guard.state == "policy"
    _check_limits(arm.sent[begin:], loop, driving_only=True)
    assert max(math.hypot(*linear) for linear, _ in arm.sent[begin:]) < 0.005


@pytest.mark.parametrize(("lag_s", "dead_s"), LAGS)
def test_velocity_stays_within_speed_acceleration_and_jerk_limits(
    lag_s: float, dead_s: float
) -> None:
    loop, arm = servoing(lag_s, dead_s)
    for number in range(12):
        side = 0.19 if number % 2 else -0.19
        loop.target = Pose((0.45 - 0.1 * (number % 3), side, 0.1 + 0.05 * (number % 4)), DOWN)
        loop.mode = "hold" if number % 5 == 4 else "policy"
        loop.force[0] = 16.0 if number % 4 == 3 else 0.0
        loop.tick(35)
    _check_limits(arm.sent, loop)


def test_arm_in_contact_moves_at_slow_speed() -> None:
    loop, arm = servoing(0.05, 0.03)
    loop.force = [0.0, 0.0, 16.0, 0.0, 0.0, 0.0]
    loop.target = Pose((0.45, -0.19, 0.2), DOWN)
    loop.tick(40)
    begin = len(arm.sent)
    loop.tick(50)
    assert loop.guard.state == "policy"
    slow = loop.config.slow_speed_m_s
    assert 0.0 < max(math.hypot(*linear) for linear, _ in arm.sent[begin:]) <= slow + 1e-9


def test_lagging_arm_reaches_target_from_pose_it_was_pushed_to() -> None:
    loop, arm = servoing(0.05, 0.03)
    loop.mode = "hold"
    loop.tick(100)
    x, y, z = arm.pose.position
    arm.pose = Pose((x + 0.03, y, z), DOWN)
    loop.tick(10)
    assert loop.guard.state == "hold"
    loop.mode, loop.target = "policy", Pose((0.5, 0.0, 0.2), DOWN)
    begin = len(arm.sent)
    loop.tick(400)
    _check_limits(arm.sent[begin:], loop)
    assert math.dist(arm.pose.position, (0.5, 0.0, 0.2)) < 2e-3


def test_guard_after_pause_restarts_halted_arm_from_rest() -> None:
    loop, arm = servoing(0.05, 0.03)
    loop.now_s += 1.0
    begin = len(arm.sent)
    loop.setpoint = None  # a new profile begins
    loop.tick()
    assert loop.guard.state == "hold"
    assert arm.sent[begin:] == [STILL]


def _check_limits(sent: list[Twist], loop: Loop, driving_only: bool = False) -> None:
    limits = loop.config.motion.limits
    most = limits.acceleration_m_s2 if driving_only else limits.stop_acceleration_m_s2
    jerk = limits.jerk_m_s3 if driving_only else limits.stop_jerk_m_s3
    before, changes = sent[0][0], []
    for linear, _ in sent[1:]:
        assert math.hypot(*linear) <= limits.speed_m_s + 1e-9
        change = [(b - a) / TICK_S for a, b in zip(before, linear, strict=True)]
        size = math.hypot(*change)
        faster = math.hypot(*linear) > math.hypot(*before) + 1e-9
        assert size <= (limits.acceleration_m_s2 if faster else most) + 1e-6
        before = linear
        changes.append(change)
    for a, b in pairwise(changes):
        assert math.dist(a, b) / TICK_S <= jerk + 1e-3
