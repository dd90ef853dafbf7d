from __future__ import annotations

import math

import pytest

from serl.errors import BadInput
from serl.guard.guard import GuardState, Latch
from serl.motion import Pose
from serl.setpoint import at_rest
from serl.testing.fakes import FakeArm

from ..support.guarding import DOWN, START, TICK_S, Loop, armed, driving, moves, numbers


def recover(loop: Loop) -> None:
    """Acknowledge a protective stop and arm the guard again."""
    loop.guard.ack(loop.now_s)
    loop.tick(12)
    loop.guard.arm(loop.now_s)


def test_estop_requires_acknowledge_reset_and_arm() -> None:
    loop = driving()
    loop.guard.estop("a person")
    with pytest.raises(BadInput, match="nothing to reset"):
        loop.guard.reset(loop.now_s)
    with pytest.raises(BadInput, match="the arm moves"):
        loop.guard.ack(loop.now_s)
    loop.tick(60)
    assert "reset" in loop.guard.ack(loop.now_s)
    assert loop.guard.state == "estop"
    loop.guard.reset(loop.now_s)
    assert loop.guard.state == "disarmed"
    assert loop.tick() is None
    loop.guard.arm(loop.now_s)
    loop.ticks_until(GuardState.POLICY, limit=20)


def test_second_estop_requires_new_acknowledgement() -> None:
    loop = driving()
    loop.guard.estop("first")
    loop.tick(60)
    loop.guard.ack(loop.now_s)
    loop.guard.reset(loop.now_s)
    loop.guard.estop("second")
    with pytest.raises(BadInput, match="nothing to reset"):
        loop.guard.reset(loop.now_s)
    assert loop.guard.cause == "second"


def test_guard_keeps_first_stop_cause_and_estop_takes_precedence() -> None:
    loop = driving()
    loop.guard.stop("first")
    loop.guard.stop("second")
    assert loop.guard.cause == "first"
    loop.guard.estop("third")
    loop.guard.stop("fourth")
    assert (loop.guard.state, loop.guard.cause) == (GuardState.ESTOP, "third")


def test_protective_stop_requires_acknowledgement_before_arming() -> None:
    loop = driving()
    loop.guard.stop("test")
    loop.tick(300)
    assert loop.guard.state == "protective stop"  # regardless of the actor's heartbeats
    with pytest.raises(BadInput, match="cannot arm"):
        loop.guard.arm(loop.now_s)
    loop.guard.ack(loop.now_s)
    assert loop.guard.state == "disarmed"
    with pytest.raises(BadInput, match="nothing to acknowledge"):
        loop.guard.ack(loop.now_s)
    assert loop.tick(50) is None


def test_stop_cannot_be_acknowledged_while_operator_drives() -> None:
    loop = driving("teleop")
    loop.guard.stop("test")
    loop.tick(60)
    with pytest.raises(BadInput, match="release the controls"):
        loop.guard.ack(loop.now_s)
    loop.mode = "hold"
    loop.tick(3)
    loop.guard.ack(loop.now_s)


def test_disarm_does_not_end_protective_stop() -> None:
    loop = driving()
    loop.guard.stop("test")
    assert "stays" in loop.guard.disarm()
    loop.tick(100)
    assert loop.guard.state is GuardState.PROTECTIVE_STOP


def recovered() -> Loop:
    """Return a loop that was stopped, and armed again after the stop."""
    loop = driving()
    loop.guard.stop("test")
    loop.tick(60)
    loop.mode = "hold"
    loop.tick(3)
    recover(loop)
    return loop


@pytest.mark.parametrize("mode", ["reset", "teleop"])
def test_motion_after_stop_is_slow_until_policy_drives(mode: str) -> None:
    loop = recovered()
    back = Pose((0.45, -0.19, 0.2), DOWN)
    loop.mode, loop.target = mode, back
    assert 0.04 < max_setpoint_speed(loop, 100) <= 0.05 + 1e-9
    loop.mode, loop.target = "policy", Pose((0.45, 0.19, 0.2), DOWN)
    assert max_setpoint_speed(loop, 200) > 0.06
    loop.mode, loop.target = mode, back
    assert max_setpoint_speed(loop, 200) > 0.06


@pytest.mark.parametrize("mode", ["reset", "teleop"])
def test_motion_after_stop_is_slow_for_ten_seconds_without_policy(mode: str) -> None:
    loop = recovered()
    loop.tick(1000)  # waiting does not count
    loop.mode, loop.target = mode, Pose((0.45, -0.19, 0.2), DOWN)
    assert max_setpoint_speed(loop, 600) <= 0.05 + 1e-9
    loop.target = Pose((0.45, 0.19, 0.2), DOWN)
    assert max_setpoint_speed(loop, 300) <= 0.05 + 1e-9
    assert max_setpoint_speed(loop, 300) > 0.06


def max_setpoint_speed(loop: Loop, ticks: int) -> float:
    speed = 0.0
    for _ in range(ticks):
        setpoint = loop.tick()
        assert setpoint is not None
        speed = max(speed, math.hypot(*setpoint.velocity))
    return speed


def test_guard_starts_in_latched_protective_stop() -> None:
    loop = Loop(latch := Latch(GuardState.PROTECTIVE_STOP, "before"))
    loop.mode, loop.target = "policy", Pose((0.45, 0.1, 0.2), DOWN)
    assert loop.tick(100) is None
    assert loop.guard.latch == latch
    loop.guard.ack(loop.now_s)
    loop.guard.arm(loop.now_s)
    loop.ticks_until(GuardState.POLICY, limit=20)


@pytest.mark.parametrize(
    ("wrench", "stops"),
    [
        ([29.9, 0, 0, 0, 0, 0], False),
        ([30.0, 0, 0, 0, 0, 0], True),
        ([0, -18, 24.1, 0, 0, 0], True),
        ([0, 0, 0, 0, 0, -5.0], True),
        ([0, 0, 0, 3, 3.9, 0], False),
    ],
)
def test_guard_stops_when_wrench_exceeds_limit(wrench: list[float], stops: bool) -> None:
    loop = driving()
    loop.force = wrench
    loop.tick()
    assert (loop.guard.state == "protective stop") == stops
    if stops:
        assert loop.ticks_to_rest() <= 10
        with pytest.raises(BadInput, match=r"not now: (force|torque)"):
            loop.guard.ack(loop.now_s)


def test_guard_yields_after_contact_stop_until_acknowledged() -> None:
    loop = driving()
    loop.force = [0, 0, 29.0, 0, 0, 0]
    loop.tick()
    assert not loop.guard.yields
    loop.force = [0, 0, 31.0, 0, 0, 0]
    loop.tick()
    assert loop.guard.yields
    loop.force = [0.0] * 6
    loop.tick(60)
    assert loop.guard.yields
    loop.guard.ack(loop.now_s)
    assert not loop.guard.yields


def test_guard_yields_when_arm_is_pushed_in_protective_stop() -> None:
    loop = driving()
    loop.guard.stop("test")
    loop.tick(60)
    assert not loop.guard.yields
    loop.force = [0, 0, 31.0, 0, 0, 0]
    loop.tick()
    assert loop.guard.yields
    loop.force = [0.0] * 6
    loop.tick(60)
    loop.guard.estop("test")
    loop.tick(60)
    loop.guard.ack(loop.now_s)
    assert loop.guard.yields, "the guard is still in the protective stop"
    loop.guard.reset(loop.now_s)
    assert not loop.guard.yields


def test_estop_does_not_yield_to_push() -> None:
    loop = driving()
    loop.guard.estop("test")
    loop.force = [0, 0, 31.0, 0, 0, 0]
    loop.tick(60)
    assert not loop.guard.yields


def test_guard_that_was_never_armed_does_not_yield() -> None:
    loop = Loop(Latch(GuardState.ESTOP, "test"))
    loop.force = [0, 0, 31.0, 0, 0, 0]
    loop.tick(20)
    assert not loop.guard.yields


@pytest.mark.parametrize("stop", ["estop", "the actor holds"])
@pytest.mark.parametrize("lag", [0.5, 0.8, 0.9])
def test_stop_does_not_move_lagging_arm_backwards(stop: str, lag: float) -> None:
    loop = Loop()
    loop.fake = FakeArm(START, lag)
    loop.tick(20)
    loop.guard.arm(loop.now_s)
    loop.mode, loop.target = "policy", Pose((0.45, 0.19, 0.2), DOWN)
    loop.tick(80)
    if stop == "estop":
        loop.guard.estop("test")
    else:
        loop.mode = "hold"
        loop.ticks_until(GuardState.HOLD)
    loop.tick()
    assert loop.ticks_to_rest() <= 10
    y = loop.fake.pose.position[1]
    for _ in range(200):
        loop.tick()
        assert loop.setpoint is not None
        assert abs(loop.setpoint.velocity[1]) < 5e-4
        assert loop.fake.pose.position[1] >= y - 1e-5
        y = loop.fake.pose.position[1]


def test_stopped_guard_moves_setpoint_to_blocked_arm() -> None:
    """Without a wrench sensor the setpoint moves to the measured pose in a protective stop."""
    loop = driving(wrench=False)
    wall = loop.fake.pose
    loop.guard.stop("test")
    for _ in range(200):
        loop.fake.pose = wall
        loop.tick()
    assert loop.setpoint is not None
    assert math.dist(loop.setpoint.pose.position, wall.position) < 1e-4


def test_guard_slows_arm_in_contact_until_force_drops() -> None:
    loop = driving()
    assert max_setpoint_speed(loop, 10) > 0.07
    loop.force = [0, 0, 15.0, 0, 0, 0]
    loop.tick(30)
    assert max_setpoint_speed(loop, 20) <= 0.052
    loop.force = [0, 0, 12.1, 0, 0, 0]
    loop.target = Pose((0.45, -0.19, 0.2), DOWN)
    assert max_setpoint_speed(loop, 100) <= 0.055
    loop.force = [0, 0, 11.9, 0, 0, 0]
    assert max_setpoint_speed(loop, 100) > 0.07
    assert loop.guard.state == "policy"


def test_guard_ignores_pose_jump_and_holds() -> None:
    loop = driving()
    place = loop.fake.pose
    for _ in range(3):
        loop.fake.pose = Pose((place.position[0], -0.15, 0.2), DOWN)
        loop.tick()
        loop.fake.pose = place
    assert loop.guard.state == "hold"
    assert loop.guard.cause == "pose jumped"
    assert loop.guard.counts["pose: jump"] == 3
    loop.ticks_until(GuardState.POLICY, limit=20)


@pytest.mark.parametrize(
    ("count", "gap_s", "latched"), [(2, 0.1, False), (3, 0.49, True), (3, 0.51, False)]
)
def test_guard_stops_at_third_nonfinite_command_within_one_second(
    count: int, gap_s: float, latched: bool
) -> None:
    loop = driving()
    for _ in range(count):
        loop.guard.command([math.nan, *numbers(START)[1:]], loop.message_info())
        loop.tick()
        assert loop.guard.state != "policy"
        loop.tick(round(gap_s / TICK_S) - 1)
    assert (loop.guard.state == "protective stop") == latched
    assert loop.guard.counts["command: not finite"] == count


def test_robot_error_latches_protective_stop() -> None:
    loop = driving()
    loop.guard.robot_error("reflex: joint 3")
    assert loop.guard.cause == "the arm reports reflex: joint 3"
    loop.tick(60)
    with pytest.raises(BadInput, match="reflex"):
        loop.guard.ack(loop.now_s)
    loop.guard.robot_error("")  # cleared at the robot
    loop.tick(300)
    assert loop.guard.state == "protective stop"
    loop.guard.ack(loop.now_s)
    assert loop.guard.state == "disarmed"
    loop.guard.robot_error("again")  # also while no controller is active
    assert loop.guard.state == "protective stop"


def test_repeated_stops_do_not_delay_rest() -> None:
    loop = driving()
    loop.guard.stop("one")
    for _ in range(4):
        loop.tick()
        loop.guard.estop("two")
    assert loop.ticks_to_rest() <= 8
    assert loop.setpoint is not None
    assert not moves(loop.setpoint)


@pytest.mark.parametrize(("stop", "periods"), [("estop", 8), ("stop", 8), ("hold", 10)])
def test_stop_command_brings_arm_from_top_speed_to_rest_within_80_ms(
    stop: str, periods: int
) -> None:
    """Count periods of 10 ms; a hold comes with a heartbeat, which is sent every second period."""
    quick = {"limits": {"lead_m": 0.02, "acceleration_m_s2": 2.0, "jerk_m_s3": 50.0}}
    loop = armed(motion=quick)
    loop.fake = FakeArm(START, lag=0.0)
    loop.mode, loop.target = "policy", Pose((0.45, 0.19, 0.2), DOWN)
    loop.tick(35)
    assert loop.setpoint is not None
    assert math.hypot(*loop.setpoint.velocity) == pytest.approx(0.15, abs=1e-3)
    if stop == "hold":
        loop.mode = "hold"
    else:
        getattr(loop.guard, stop)("a person")
    loop.tick(periods)
    stood = loop.fake.pose
    assert not moves(loop.setpoint)
    loop.tick(100)
    assert math.dist(loop.fake.pose.position, stood.position) < 1e-6


def test_guard_stops_when_arm_stays_silent() -> None:
    loop = driving()
    loop.measured.clear()
    loop.ticks_until(GuardState.HOLD)
    assert 85 <= loop.ticks_until(GuardState.PROTECTIVE_STOP) <= 95
    assert loop.guard.cause == "the arm fell silent"


def test_late_guard_does_not_report_silent_arm() -> None:
    loop = driving()
    loop.now_s += 5.0
    loop.guard.tick(loop.now_s)
    assert loop.guard.state == "hold"
    loop.setpoint = None  # a new motion profile begins
    loop.ticks_until(GuardState.POLICY, limit=30)


@pytest.mark.parametrize(("behind_m", "stays"), [(0.0, True), (0.009, True), (0.014, False)])
@pytest.mark.parametrize("stop", ["stop", "estop"])
def test_late_guard_keeps_last_braking_setpoint_unless_arm_is_beyond_lead(
    stop: str, behind_m: float, stays: bool
) -> None:
    """An arm farther behind than the lead is blocked: the setpoint moves to the measured pose."""
    loop = driving()
    getattr(loop.guard, stop)("test")
    before = loop.tick(2)
    assert before is not None
    assert moves(before)
    x, y, z = before.pose.position
    loop.fake.pose = measured = Pose((x, y - behind_m, z), DOWN)
    loop.now_s += 0.15
    loop.setpoint = None  # a new motion profile begins
    setpoint = loop.tick()
    assert setpoint is not None
    assert setpoint.pose == (before.pose if stays else measured)
    assert at_rest(setpoint)
    place = loop.fake.pose.position
    for _ in range(30):
        after = loop.tick()
        assert after is not None
        assert after.pose == setpoint.pose  # the setpoint settles only after half a second
    assert math.dist(loop.fake.pose.position, place) <= behind_m + 1e-9


@pytest.mark.parametrize(("mode", "exerts"), [("policy", True), ("teleop", True), ("reset", False)])
def test_tool_exerts_wrench_under_policy_and_person(mode: str, exerts: bool) -> None:
    assert driving(mode).guard.exerts is exerts


@pytest.mark.parametrize(
    "end", ["actor lost", "hold", "stop", "estop", "disarm", "silent arm", "late guard", "strays"]
)
def test_tool_exerts_no_wrench_once_it_is_not_driven(end: str) -> None:
    loop, ticks = driving(), 1
    assert loop.guard.exerts
    if end == "strays":  # as an arm that its wrench pushes through a soft spring
        x, y, z = loop.fake.pose.position
        loop.fake.pose = Pose((x, y, z - 0.0155), DOWN)
    elif end == "late guard":
        loop.now_s += 0.2
        loop.setpoint = None
    elif end == "actor lost":
        loop.mode, ticks = None, 12
    elif end == "silent arm":
        loop.measured.clear()
        ticks = 12
    elif end == "hold":
        loop.mode, ticks = "hold", 3
    elif end == "disarm":
        loop.guard.disarm()
    else:
        getattr(loop.guard, end)("test")
    loop.tick(ticks)
    assert not loop.guard.exerts, loop.guard.state
    assert (loop.guard.state == "policy") == (end == "strays")
