from __future__ import annotations

import math

import pytest

from serl.errors import BadInput
from serl.geometry import from_rotation_vector, multiply
from serl.guard.guard import GuardState, Latch, MessageInfo
from serl.motion import Pose, within_lead
from serl.setpoint import advance_setpoint

from ..support.guarding import DOWN, START, TICK_S, Loop, armed, driving, moves, numbers

FAR = Pose((0.45, 0.19, 0.2), DOWN)


def test_armed_guard_holds_arm_pose_until_actor_heartbeat() -> None:
    loop = armed()
    for _ in range(30):
        setpoint = loop.tick()
        assert setpoint is not None
        assert setpoint.pose == START
    assert loop.guard.state is GuardState.HOLD
    assert loop.guard.cause == "heartbeat lost"


def test_guard_leads_sagging_arm_along_the_edge_of_its_box(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    corner = Pose((0.3, 0.2, 0.2), DOWN)
    loop = driving(target=corner)
    loop.tick(600)
    pose = loop.guard.pose

    def sag(values: list[float], info: MessageInfo) -> None:
        pose([values[0] - 0.0012, values[1] + 0.0013, *values[2:]], info)

    monkeypatch.setattr(loop.guard, "pose", sag)
    loop.target = Pose((0.3, 0.2, 0.3), DOWN)
    loop.tick(600)
    assert loop.guard.state is GuardState.POLICY
    assert loop.fake.pose.position[2] == pytest.approx(0.3, abs=1e-3)


@pytest.mark.parametrize(
    ("lost", "age_s", "cause"),
    [
        ("heartbeat", 0.1, "heartbeat lost"),
        ("command", 0.15, "command is stale"),
        ("pose", 0.1, "pose is stale"),
        ("joints", 0.1, "joints is stale"),
        ("wrench", 0.1, "wrench is stale"),
    ],
)
def test_guard_holds_one_tick_after_input_deadline(lost: str, age_s: float, cause: str) -> None:
    loop = driving()
    while loop.ticks % 10:  # until the tick with a command and a heartbeat
        loop.tick()
    if lost == "heartbeat":
        loop.mode = None
    elif lost == "command":
        loop.target = None
    else:
        loop.measured.remove(lost)
    ticks = loop.ticks_until(GuardState.HOLD)
    assert age_s - 0.5 * TICK_S < ticks * TICK_S < age_s + 1.5 * TICK_S
    assert loop.guard.cause == cause
    assert loop.ticks_to_rest() <= 10
    assert ticks * TICK_S + 0.1 <= 0.3


def test_guard_leaves_hold_once_arm_is_at_rest() -> None:
    loop = driving()
    loop.mode = None
    loop.ticks_until(GuardState.HOLD)
    loop.mode = "policy"
    loop.tick(3)
    assert loop.guard.state is GuardState.HOLD  # a stop that has begun ends at rest
    loop.ticks_until(GuardState.POLICY, limit=20)
    loop.tick(100)
    assert loop.fake.pose.position[1] > 0.1


def test_policy_cannot_continue_after_operator_heartbeat_is_lost() -> None:
    loop = driving("teleop")
    loop.mode = None
    loop.ticks_until(GuardState.HOLD)
    loop.mode = "policy"
    loop.tick(300)
    assert "a person was lost" in loop.guard.cause
    loop.mode = "reset"
    loop.tick(300)
    assert "a person was lost" in loop.guard.cause
    loop.mode = "teleop"  # a new takeover may end in a release
    loop.tick(20)
    assert loop.guard.state == "teleop"
    loop.mode = "policy"
    loop.ticks_until(GuardState.HOLD)
    assert loop.ticks_until(GuardState.POLICY) >= 45


@pytest.mark.parametrize("silent", ["commands", "device"])
def test_policy_cannot_continue_after_operator_is_silent(silent: str) -> None:
    loop = driving("teleop")
    if silent == "commands":
        loop.target = None
    else:
        loop.device_s = loop.now_s
    loop.ticks_until(GuardState.HOLD)
    loop.mode, loop.target, loop.device_s = "policy", FAR, None
    loop.tick(300)
    assert "a person was lost" in loop.guard.cause
    assert loop.guard.state is GuardState.HOLD


def test_policy_cannot_continue_after_operator_is_lost_in_hold_of_another_cause() -> None:
    loop = driving("teleop")
    loop.measured.remove("wrench")
    loop.ticks_until(GuardState.HOLD)
    loop.mode = None
    loop.tick(20)
    loop.measured.add("wrench")
    loop.lease, loop.mode = "b", "policy"  # another actor
    loop.tick(300)
    assert "a person was lost" in loop.guard.cause


def test_rearming_clears_lost_operator() -> None:
    loop = driving("teleop")
    loop.mode = None
    loop.tick(40)
    loop.guard.disarm()
    loop.ticks_until(GuardState.DISARMED)
    loop.tick(20)
    loop.guard.arm(loop.now_s)
    loop.mode = "policy"
    loop.ticks_until(GuardState.POLICY, limit=20)


def test_guard_holds_for_half_a_second_between_operator_and_policy() -> None:
    loop = driving("teleop")
    loop.mode = "policy"
    loop.ticks_until(GuardState.HOLD, limit=3)
    assert loop.guard.cause == "the operator released the controls"
    assert 45 <= loop.ticks_until(GuardState.POLICY) <= 52


def test_operator_takes_over_from_policy_without_hold() -> None:
    loop = driving("policy")
    loop.mode = "teleop"
    loop.ticks_until(GuardState.TELEOP, limit=3)
    assert loop.setpoint is not None
    assert moves(loop.setpoint)


def test_guard_holds_when_actor_requests_hold() -> None:
    loop = driving()
    loop.mode = "hold"
    assert loop.ticks_until(GuardState.HOLD) <= 2
    assert loop.guard.cause == "the actor holds"


def test_guard_holds_when_two_actors_send_heartbeats() -> None:
    loop = driving()
    loop.guard.heartbeat("b policy 1", loop.message_info())
    assert loop.ticks_until(GuardState.HOLD) <= 1
    assert loop.guard.cause == "two actors send heartbeats"
    assert loop.guard.counts["heartbeat: lease"] == 1
    loop.ticks_until(GuardState.POLICY, limit=40)  # the second actor sent one heartbeat only


def test_guard_accepts_next_actor_after_lease_expires() -> None:
    loop = driving()
    while loop.ticks % 2:
        loop.tick()
    loop.lease, loop.beats = "b", 0
    ticks = loop.ticks_until(GuardState.HOLD)
    assert ticks > 0
    assert 85 <= loop.ticks_until(GuardState.POLICY) <= 130


def test_guard_ignores_repeated_heartbeat() -> None:
    loop = driving()
    beats = loop.beats
    loop.mode = None
    for _ in range(20):
        loop.guard.heartbeat(f"a policy {beats}", loop.message_info())
        loop.tick()
    assert loop.guard.state is GuardState.HOLD
    assert loop.guard.counts["heartbeat: count"] == 20


@pytest.mark.parametrize(
    "text",
    ["", "a policy", "a policy -1", "a fly 3", "a  policy 1", "a policy 1\n", "\u0661 hold 1"],
)
def test_guard_counts_malformed_heartbeats(text: str) -> None:
    loop = armed()
    loop.guard.heartbeat(text, loop.message_info())
    assert loop.guard.counts["heartbeat: heartbeat"] == 1


def test_guard_disarms_after_long_silence() -> None:
    loop = driving(silent_s=2.0)
    loop.mode = None
    assert 195 <= loop.ticks_until(GuardState.DISARMED, limit=300) <= 220
    assert loop.tick() is None


def test_guard_restarts_profile_at_measured_pose_after_late_tick() -> None:
    loop = driving()
    loop.now_s += 0.5
    loop.fake.pose = Pose((0.45, 0.03, 0.2), DOWN)
    loop.setpoint = None  # a new motion profile begins
    loop.measure()
    setpoint = loop.guard.tick(loop.now_s)
    assert setpoint is not None
    assert math.dist(setpoint.pose.position, loop.fake.pose.position) < 1e-12
    assert not moves(setpoint)
    assert loop.guard.state is GuardState.HOLD
    assert loop.guard.counts["late tick"] == 1


def test_guard_publishes_nothing_after_late_tick_without_fresh_pose() -> None:
    loop = driving()
    loop.now_s += 0.5
    assert loop.guard.tick(loop.now_s) is None
    assert loop.guard.tick(loop.now_s + TICK_S) is None


def test_guard_brakes_before_disarming() -> None:
    loop = driving()
    assert loop.guard.disarm() == "disarming"
    loop.tick()
    assert loop.setpoint is not None
    assert moves(loop.setpoint)
    assert 2 <= loop.ticks_until(GuardState.DISARMED) <= 60
    assert loop.tick() is None


@pytest.mark.parametrize(
    ("lost", "why"),
    [("pose", "pose is stale"), ("joints", "joints is stale"), ("wrench", "wrench is stale")],
)
def test_guard_refuses_to_arm_without_measurements(lost: str, why: str) -> None:
    loop = Loop()
    loop.measured.remove(lost)
    loop.tick(20)
    with pytest.raises(BadInput, match=why):
        loop.guard.arm(loop.now_s)


def test_guard_without_wrench_sensor_arms_and_ignores_wrench() -> None:
    loop = Loop(wrench=False)
    loop.measured.remove("wrench")
    loop.tick(20)
    loop.guard.arm(loop.now_s)
    loop.guard.wrench([1000.0] * 6, loop.message_info())
    loop.tick(5)
    assert loop.guard.state is GuardState.HOLD


def test_guard_refuses_to_arm_while_arm_moves() -> None:
    loop = Loop()
    for index in range(30):
        loop.fake.pose = Pose((0.45, 0.0005 * index, 0.2), DOWN)
        loop.tick()
    with pytest.raises(BadInput, match="the arm moves"):
        loop.guard.arm(loop.now_s)
    loop.tick(12)
    loop.guard.arm(loop.now_s)


def test_guard_arms_only_from_disarmed() -> None:
    loop = armed()
    with pytest.raises(BadInput, match="cannot arm"):
        loop.guard.arm(loop.now_s)
    loop.guard.estop("test")
    with pytest.raises(BadInput, match="cannot arm"):
        loop.guard.arm(loop.now_s)


def test_guard_refuses_gripper_commands_too_soon_or_out_of_range() -> None:
    loop = driving()
    for value, ticks, expected in [
        (1.0, 0, 1.0),
        (0.0, 10, 1.0),  # too soon
        (0.0, 45, 0.0),
        (0.0, 1, 0.0),
        (2.0, 60, 0.0),  # out of range
        (math.nan, 1, 0.0),
        (1.0, 1, 1.0),
    ]:
        loop.tick(ticks)
        loop.guard.gripper([value], loop.message_info())
        assert loop.guard.opening == expected
    assert loop.guard.counts["gripper: too soon"] == 1
    assert loop.guard.counts["gripper: range"] == 1
    assert loop.guard.counts["gripper: not finite"] == 1


def test_guard_ignores_late_gripper_command() -> None:
    """An actor that stalls between its target and its gripper command sends the latter late."""
    loop = driving()
    loop.guard.gripper([1.0], loop.message_info())
    loop.tick(100)
    loop.guard.gripper([0.0], loop.message_info(ahead_s=-0.16))
    loop.guard.gripper([0.0], loop.message_info(ahead_s=1.0))
    assert loop.guard.opening == 1.0
    assert loop.guard.counts["gripper: old"] == 1
    assert loop.guard.counts["gripper: future"] == 1
    loop.guard.gripper([0.0], loop.message_info(ahead_s=-0.1))
    assert loop.guard.opening == 0.0


def test_stopped_guard_ignores_gripper_commands() -> None:
    loop = driving()
    loop.guard.gripper([0.0], loop.message_info())
    loop.guard.estop("test")
    loop.tick(100)
    loop.guard.gripper([1.0], loop.message_info())
    assert loop.guard.opening == 0.0


def test_rearmed_guard_commands_gripper_only_after_new_command() -> None:
    """The gripper may have been opened by hand before the guard is armed again."""
    loop = driving()
    loop.guard.gripper([0.0], loop.message_info())
    loop.guard.estop("test")
    loop.tick(100)
    loop.guard.ack(loop.now_s)
    loop.guard.reset(loop.now_s)
    loop.guard.arm(loop.now_s)
    loop.tick(50)
    assert loop.guard.state == "policy"
    assert loop.guard.opening is None


def test_guard_without_gripper_refuses_gripper_commands() -> None:
    loop = driving(motion={"gripper": False})
    loop.guard.gripper([0.0], loop.message_info())
    assert loop.guard.opening is None
    assert loop.guard.counts["gripper: none"] == 1


def test_latch_holds_state_to_restore_after_restart() -> None:
    loop = Loop()
    assert loop.guard.latch == Latch()
    loop = driving()
    assert loop.guard.latch == Latch(GuardState.HOLD)
    loop.guard.stop("a reason")
    assert loop.guard.latch == Latch(GuardState.PROTECTIVE_STOP, "a reason")


def test_guard_publishes_setpoints_of_simulated_arm() -> None:
    """Compare with the functions that `SimArm` calls, given the same values."""
    loop = driving()
    limits = loop.config.motion.limits
    assert loop.setpoint is not None
    target, setpoint = FAR, loop.setpoint
    for number in range(400):
        measured = loop.fake.pose
        if number % 50 == 0:
            side = 0.1 if number % 100 else -0.1
            loop.target = target = Pose((0.45 + 0.3 * side, side, 0.2 + 0.5 * side), DOWN)
            loop.guard.command(numbers(target), loop.message_info())
        goal = within_lead(target, measured, limits)
        setpoint = advance_setpoint(setpoint, goal, limits, TICK_S)
        assert loop.tick() == setpoint


@pytest.mark.parametrize("busy", [False, True])
def test_guard_holds_one_tick_after_device_deadline(busy: bool) -> None:
    """The guard extrapolates device silence from the last heartbeat of a busy actor."""
    loop = driving("teleop")
    loop.device_s = loop.now_s
    loop.tick(4)
    if busy:
        loop.mode = None
    loop.ticks_until(GuardState.HOLD)
    assert loop.now_s - loop.device_s == pytest.approx(0.115, abs=0.006)
    assert loop.guard.cause == "the person's device is silent"
    loop.ticks_to_rest()
    loop.mode, loop.device_s = "teleop", None
    loop.ticks_until(GuardState.TELEOP)


def test_guard_ignores_device_silence_while_policy_drives() -> None:
    loop = driving("policy")
    loop.device_s = loop.now_s
    loop.tick(100)
    assert loop.guard.state == "policy"


def test_guard_rotates_equally_for_either_quaternion_sign() -> None:
    turn = multiply(from_rotation_vector((0.0, 0.0, 0.4)), DOWN)
    ends = []
    for sign in (1.0, -1.0):
        x, y, z, w = (sign * value for value in turn)
        loop = driving(target=Pose(START.position, (x, y, z, w)))
        loop.tick(300)
        ends.append(numbers(loop.fake.pose))
    assert ends[0] == pytest.approx(ends[1], abs=1e-9)
