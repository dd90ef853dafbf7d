"""Test how far a stopped arm yields to a push and to forged measurements."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from serl.errors import BadInput
from serl.geometry import rotation_between
from serl.guard.checks import is_apart, is_inside
from serl.guard.guard import GuardState
from serl.motion import Box, Limits, Pose

from ..support.guarding import DOWN, START, TICK_S, Loop, armed, driving

PUSH = [40.0, 0.0, 0.0, 0.0, 0.0, 0.0]
NEAR_SIDE = Pose((0.45, 0.19, 0.2), DOWN)
"""Pose 10 mm inside the workspace box of these tests."""


def shifted(pose: Pose, shift_m: float, turn_rad: float = 0.0) -> Pose:
    x, y, z = pose.position
    half = 0.5 * turn_rad
    return Pose((x, y + shift_m, z), (math.cos(half), math.sin(half), 0.0, 0.0))


def stopped_loop(state: str, place: Pose = START) -> Loop:
    """Return a loop with a stationary arm in a stop that was not caused by contact."""
    loop = armed(pose=place)
    loop.tick(60)
    (loop.guard.estop if state == "estop" else loop.guard.stop)("test")
    loop.tick(60)
    return loop


def max_setpoint_shift_m(loop: Loop, pose: Callable[[int], Pose], ticks: int) -> float:
    """Feed measured poses for `ticks` and return the largest shift of the setpoint in m."""
    assert loop.setpoint is not None
    begun, most_m = loop.setpoint.pose, 0.0
    for tick in range(ticks):
        loop.fake.pose = pose(tick)
        loop.tick()
        if loop.setpoint is not None:
            most_m = max(most_m, math.dist(loop.setpoint.pose.position, begun.position))
    return most_m


@pytest.mark.parametrize(
    ("state", "speed_m_s", "least_m", "most_m"),
    [
        *(("estop", each, 0.0, 0.0) for each in (0.003, 0.3)),
        *(("protective stop", each, 0.029, 0.03 + 1e-9) for each in (0.0005, 0.003, 0.03, 0.3)),
    ],
)
def test_forged_poses_move_stopped_arm_within_yield_limit(
    state: str, speed_m_s: float, least_m: float, most_m: float
) -> None:
    """Forge a motion beyond the limit in all measurements, with a pause in the contact force."""
    loop = stopped_loop(state)
    loop.force = PUSH
    ticks = max(1000, round(0.036 / (TICK_S * speed_m_s)))
    drift_m = speed_m_s * TICK_S * ticks
    went_m = max_setpoint_shift_m(
        loop, lambda tick: shifted(START, tick * TICK_S * speed_m_s), ticks
    )
    loop.force = [0.0] * 6
    went_m = max(went_m, max_setpoint_shift_m(loop, lambda _: shifted(START, drift_m), 100))
    loop.force = PUSH
    went_m = max(went_m, max_setpoint_shift_m(loop, lambda _: shifted(START, drift_m), 300))
    assert went_m <= most_m
    assert speed_m_s > 0.2 or went_m >= least_m
    assert loop.guard.state == state


@pytest.mark.parametrize("state", ["estop", "protective stop"])
def test_forged_rotations_turn_stopped_arm_within_yield_limit(state: str) -> None:
    loop = stopped_loop(state)
    loop.force = PUSH
    most_rad = 0.0
    for tick in range(1000):
        loop.fake.pose = shifted(START, 0.0, 0.001 * tick)
        loop.tick()
        assert loop.setpoint is not None
        most_rad = max(
            most_rad, math.hypot(*rotation_between(START.quaternion, loop.setpoint.pose.quaternion))
        )
    assert most_rad == pytest.approx(0.0 if state == "estop" else 0.15, abs=1e-6)


def test_estop_in_motion_keeps_its_setpoint() -> None:
    """Cover an arm blocked by an obstacle and one that yielded in a protective stop before."""
    loop = driving()
    loop.guard.estop("test")
    loop.tick(12)
    assert loop.setpoint is not None
    held_up = shifted(loop.setpoint.pose, -0.012)
    assert max_setpoint_shift_m(loop, lambda _: held_up, 300) == 0.0
    loop = stopped_loop("protective stop")
    loop.force = PUSH
    assert max_setpoint_shift_m(loop, lambda tick: shifted(START, 1e-4 * tick), 200) > 0.01
    loop.guard.estop("test")
    loop.tick(12)
    loop.force = [0.0] * 6
    assert max_setpoint_shift_m(loop, lambda _: shifted(START, 0.025), 300) == 0.0


def test_protective_stop_settles_once_at_blocked_arm() -> None:
    loop = driving()
    loop.guard.stop("test")
    loop.tick(12)
    assert loop.setpoint is not None
    stood = loop.setpoint.pose
    held_up = shifted(stood, -0.0145)
    assert max_setpoint_shift_m(loop, lambda _: held_up, 150) == pytest.approx(0.0145, abs=1e-3)
    assert max_setpoint_shift_m(loop, lambda tick: shifted(held_up, -1e-4 * tick), 100) == 0.0
    assert max_setpoint_shift_m(loop, lambda _: shifted(held_up, -0.01), 200) == 0.0


def test_protective_stop_does_not_settle_far_from_its_rest_pose() -> None:
    loop = driving()
    loop.guard.stop("test")
    loop.tick(12)
    assert loop.setpoint is not None
    stood = loop.setpoint.pose
    max_setpoint_shift_m(loop, lambda tick: shifted(stood, -0.0008 * tick), 20)
    assert max_setpoint_shift_m(loop, lambda _: shifted(stood, -0.016), 300) == 0.0


@pytest.mark.parametrize("outside", [False, True])
def test_push_cannot_move_stopped_arm_out_of_box(outside: bool) -> None:
    place = shifted(NEAR_SIDE, 0.02) if outside else NEAR_SIDE
    loop = stopped_loop("protective stop", place)
    loop.force = PUSH
    went_m = max_setpoint_shift_m(loop, lambda tick: shifted(place, min(0.04, 0.001 * tick)), 300)
    assert loop.setpoint is not None
    assert is_inside(loop.setpoint.pose, loop.config) != outside
    assert went_m == pytest.approx(0.0 if outside else 0.0095, abs=1e-6)


def test_push_cannot_move_stopped_arm_into_keep_out_box() -> None:
    shelf = Box(low_m=(0.3, 0.0125, 0.0), high_m=(0.6, 0.2, 0.5))
    loop = armed(keep_out=(shelf,))
    loop.tick(60)
    loop.force = PUSH
    went_m = max_setpoint_shift_m(loop, lambda tick: shifted(START, min(0.025, 0.001 * tick)), 300)
    assert loop.guard.state == "protective stop"
    assert 0.005 < went_m < 0.0125


def test_repeated_pushes_do_not_extend_yield_limit() -> None:
    loop, drift_m = stopped_loop("protective stop"), 0.0
    for _ in range(6):
        loop.force = PUSH
        for _ in range(40):
            drift_m = min(0.045, drift_m + 0.0005)
            loop.fake.pose = shifted(START, drift_m)
            loop.tick()
        with pytest.raises(BadInput, match="not now"):
            loop.guard.ack(loop.now_s)
        loop.force = [0.0] * 6
        for _ in range(60):
            loop.fake.pose = shifted(START, drift_m)
            loop.tick()
        loop.guard.stop("again")
    assert loop.setpoint is not None
    assert math.dist(loop.setpoint.pose.position, START.position) <= 0.03 + 1e-9


def test_repeatedly_late_guard_keeps_yield_limit() -> None:
    for state, most_m in (("estop", 0.0), ("protective stop", 0.03 + 1e-9)):
        loop = stopped_loop(state)
        loop.force = PUSH
        for step in range(15):
            loop.now_s += 0.2
            loop.setpoint = None  # a new motion profile begins
            loop.fake.pose = shifted(START, 0.004 * step)
            setpoint = loop.tick(20)
            assert setpoint is not None
            assert math.dist(setpoint.pose.position, START.position) <= most_m


@pytest.mark.parametrize("yield_m", [0.0, 0.01])
def test_yield_limit_is_taken_from_limits(yield_m: float) -> None:
    loop = armed(motion={"limits": Limits(yield_m=yield_m)})
    loop.tick(60)
    loop.force = PUSH
    went_m = max_setpoint_shift_m(loop, lambda tick: shifted(START, min(0.04, 0.001 * tick)), 300)
    assert went_m == pytest.approx(yield_m, abs=1e-6)


def test_second_measurement_publisher_stops_armed_arm_and_ends_yielding() -> None:
    words = "several nodes publish /wrench: /driver, /stranger"
    loop = armed()
    loop.tick(60)
    loop.guard.set_rivals(words)
    loop.force = PUSH
    assert (loop.guard.state, loop.guard.cause) == (GuardState.PROTECTIVE_STOP, words)
    assert (
        max_setpoint_shift_m(loop, lambda tick: shifted(START, min(0.02, 0.001 * tick)), 200) == 0.0
    )
    assert not loop.guard.yields
    loop.force = [0.0] * 6
    loop.fake.pose = START
    loop.tick(60)
    with pytest.raises(BadInput, match=f"not now: {words}"):
        loop.guard.ack(loop.now_s)
    loop.guard.set_rivals("")
    loop.guard.ack(loop.now_s)
    loop.guard.set_rivals(words)
    with pytest.raises(BadInput, match=f"not now: {words}"):
        loop.guard.arm(loop.now_s)


def test_guard_names_arm_moved_while_stopped_and_ends_yielding() -> None:
    loop = stopped_loop("protective stop")
    away = shifted(START, 0.06)
    max_setpoint_shift_m(loop, lambda tick: shifted(START, min(0.06, 0.005 * tick)), 60)
    assert loop.guard.cause == "test; the arm was moved, or its pose is wrong"
    assert loop.guard.counts["moved while stopped"] == 1
    loop.force = PUSH
    assert max_setpoint_shift_m(loop, lambda _: away, 200) == 0.0


@pytest.mark.parametrize("shift_m", [-0.025, 0.025])
@pytest.mark.parametrize("act", ["push at once", "push later"])
def test_yielding_arm_moved_by_small_force_is_acknowledged_near_measured_pose(
    act: str, shift_m: float
) -> None:
    loop = driving()
    loop.force = [31.0, 0, 0, 0, 0, 0]
    loop.tick()
    # The force of a compliant arm, below the stop limit.
    loop.force = [25.0, 0, 0, 0, 0, 0]
    loop.tick(100 if act == "push later" else 8)
    place = loop.fake.pose
    moved = shifted(place, shift_m, 0.1)
    max_setpoint_shift_m(
        loop, lambda tick: shifted(place, tick / 29 * shift_m, tick / 29 * 0.1), 30
    )
    assert loop.guard.yields
    max_setpoint_shift_m(loop, lambda _: moved, 150)
    loop.mode = "hold"
    max_setpoint_shift_m(loop, lambda _: moved, 5)
    assert loop.setpoint is not None
    limits = loop.config.motion.limits
    assert not is_apart(loop.setpoint.pose, moved, limits.lead_m, limits.lead_rad)
    loop.guard.ack(loop.now_s)
    assert loop.tick() is None, "the arm stiffens at the last setpoint"


def test_yielding_arm_is_acknowledged_once_back_within_yield_limit() -> None:
    loop = driving()
    loop.force = [31.0, 0, 0, 0, 0, 0]
    loop.tick(60)
    loop.force = [0.0] * 6
    place, away_m = loop.fake.pose, 0.06
    max_setpoint_shift_m(loop, lambda tick: shifted(place, -min(0.02, 0.002 * tick)), 22)
    with pytest.raises(BadInput, match="not now: the arm was moved: its setpoint is on its way"):
        loop.guard.ack(loop.now_s)
    max_setpoint_shift_m(loop, lambda tick: shifted(place, -0.02 - min(0.04, 0.002 * tick)), 200)
    with pytest.raises(BadInput, match="the arm was moved by more than 30 mm: push it back"):
        loop.guard.ack(loop.now_s)
    max_setpoint_shift_m(loop, lambda tick: shifted(place, -max(0.025, away_m - 0.002 * tick)), 100)
    loop.guard.ack(loop.now_s)


def test_yielding_arm_is_not_acknowledged_away_from_setpoint_that_late_guard_dropped() -> None:
    loop = driving()
    loop.force = [31.0, 0, 0, 0, 0, 0]
    before = loop.tick(2)
    assert before is not None
    loop.now_s += 0.15
    loop.setpoint, loop.mode, loop.force = None, "hold", [0.0] * 6
    loop.fake.pose = shifted(before.pose, -0.03)
    assert loop.tick(60) is None
    assert loop.guard.yields
    with pytest.raises(BadInput, match="push it back"):
        loop.guard.ack(loop.now_s)
    for tick in range(30):
        loop.fake.pose = shifted(before.pose, -0.001 * (29 - tick))
        loop.tick()
    loop.tick(60)
    loop.guard.ack(loop.now_s)


def test_yielding_arm_moved_by_less_than_lead_keeps_its_setpoint() -> None:
    loop = driving()
    loop.force = [31.0, 0, 0, 0, 0, 0]
    loop.tick(60)
    loop.force = [0.0] * 6
    loop.tick(60)
    assert loop.setpoint is not None
    rest = loop.setpoint.pose
    assert max_setpoint_shift_m(loop, lambda _: shifted(rest, 0.009), 30) < 1e-4


@pytest.mark.parametrize(
    ("speed_m_s", "period_s", "jumps"),
    [(0.5, 0.01, False), (0.5, 0.001, False), (1.2, 0.01, True), (1.2, 0.001, True)],
)
def test_guard_refuses_pose_jumps_faster_than_arm_and_hand_at_any_rate(
    speed_m_s: float, period_s: float, jumps: bool
) -> None:
    loop = armed()
    for step in range(round(0.15 / period_s)):
        loop.now_s += period_s
        place = shifted(START, speed_m_s * step * period_s, 0.0)
        late_s = 0.01 * (step % 2)  # jitter of the stamp
        noise = 0.001 * (-1) ** step
        loop.guard.pose([*shifted(place, noise).position, *DOWN], loop.message_info(-late_s - 1e-6))
        assert jumps or not loop.guard.counts["pose: jump"]
    assert bool(loop.guard.counts["pose: jump"]) == jumps


def test_guard_stops_when_pose_jumps_back_and_forth() -> None:
    loop = armed()
    for tick in range(40):
        loop.fake.pose = shifted(START, 0.02 * (tick % 2))
        loop.tick()
    assert loop.guard.cause == "5 jumps of the measured pose"
    loop.fake.pose = START
    loop.tick(60)
    loop.guard.ack(loop.now_s)
