"""Moves of the joints home through the guard, with a driver that follows its trajectories."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from pydantic import ValidationError

from serl import plugins
from serl.errors import BadInput
from serl.guard.config import GuardState, check_fits
from serl.guard.joint_move import OVER
from serl.motion import Pose
from serl.trajectory import BRAKE_S, PIECE_S, JointPath, TrajectoryFollower

from ..support.guarding import DOWN, START, TICK_S, Loop, config

NAMES = tuple(f"joint{number}" for number in range(1, 8))
HOME = (0.0, 0.1, 0.0, -0.2, 0.0, 0.0, 0.0)
AWAY = (0.4, 0.1, -0.2, 0.0, 0.0, 0.3, 0.0)
MOVES: dict[str, Any] = {"joint_names": NAMES, "home_rad": HOME}
STAND_S = PIECE_S + BRAKE_S
FAR = Pose((0.45, 0.19, 0.2), DOWN)


def asked(mode: str = "joints", **changes: Any) -> Loop:
    """Return an armed loop whose joints are away from home, and whose actor asks for a move."""
    loop = Loop(**(MOVES | changes))
    loop.joints = list(AWAY)
    loop.tick(20)
    loop.guard.arm(loop.now_s)
    loop.mode, loop.target = mode, START
    return loop


def moving(seconds: float = 1.0, **changes: Any) -> Loop:
    """Return a loop in the middle of a joint move."""
    loop = asked(**changes)
    loop.ticks_until(GuardState.JOINTS)
    for _ in range(round(seconds / TICK_S)):
        assert loop.tick() is None, "no setpoint is given in a joint move"
    assert loop.guard.state is GuardState.JOINTS
    return loop


def error_rad(loop: Loop) -> float:
    return max(abs(a - b) for a, b in zip(loop.joints, HOME, strict=True))


def test_joint_move_is_slow_ends_at_home_and_begins_again_at_measured_pose() -> None:
    loop = moving(0.0)
    places = [loop.joints]
    while loop.guard.state is GuardState.JOINTS:
        x, y, z = loop.fake.pose.position
        if len(places) < 300:
            loop.fake.pose = Pose((x, y + 1e-4, z), DOWN)
        loop.tick()
        places.append(loop.joints)
        assert len(places) < 500
    speeds = [max(abs(b - a) for a, b in zip(*pair, strict=True)) for pair in pairwise(places)]
    assert 0.15 * TICK_S < max(speeds) < 0.21 * TICK_S
    assert error_rad(loop) < 1e-6
    assert loop.guard.state is GuardState.HOLD
    assert loop.guard.cause == OVER
    assert loop.setpoint is not None
    assert loop.setpoint.pose == loop.fake.pose != START
    loop.mode = "reset"
    loop.ticks_until(GuardState.RESET, limit=5)
    loop.tick(200)
    assert loop.fake.pose.position == pytest.approx(START.position, abs=1e-4)


def test_one_request_is_one_joint_move() -> None:
    loop = moving()
    loop.ticks_until(GuardState.HOLD, limit=400)
    pieces = loop.pieces
    loop.tick(200)
    assert (loop.guard.cause, loop.pieces) == (OVER, pieces)
    loop.mode = "reset"
    loop.ticks_until(GuardState.RESET)
    loop.mode = "joints"
    loop.ticks_until(GuardState.JOINTS)


def test_commands_are_ignored_during_joint_move() -> None:
    loop = moving(0.2)
    loop.target = FAR
    for _ in range(100):
        assert loop.tick() is None
        loop.guard.gripper([0.0], loop.message_info())
    loop.guard.command([float("nan")] * 7, loop.message_info())
    loop.tick()
    assert loop.guard.state is GuardState.JOINTS
    assert loop.guard.opening is None
    assert loop.fake.pose == START


def silence(loop: Loop) -> None:
    loop.mode = None


def hold(loop: Loop) -> None:
    loop.mode = "hold"


def push(loop: Loop) -> None:
    loop.force = [0.0, 0.0, 16.0, 0.0, 0.0, 0.0]


def leave_box(loop: Loop) -> None:
    while (z_m := loop.fake.pose.position[2]) < 0.4:
        loop.fake.pose = Pose((0.45, 0.0, z_m + 0.006), DOWN)
        loop.tick()


def stick(loop: Loop) -> None:
    loop.move_joints = lambda: None  # type: ignore[method-assign]


STOPS: list[tuple[Callable[[Loop], Any], str, str, float]] = [
    (silence, "hold", "heartbeat lost", 0.1),
    (hold, "hold", "the actor holds", 0.02),
    (lambda loop: loop.measured.discard("joints"), "hold", "joints is stale", 0.1),
    (push, "protective stop", "the tool touches something in a joint move", 0.0),
    (leave_box, "protective stop", "a joint move led the tool out of its box", 0.0),
    (lambda loop: loop.guard.set_rivals("two publish"), "protective stop", "two publish", 0.0),
    (lambda loop: loop.guard.estop("a person"), "estop", "a person", 0.0),
    (lambda loop: loop.guard.robot_error("reflex"), "protective stop", "the arm reports", 0.0),
    (lambda loop: loop.guard.disarm(), "hold", "disarming", 0.0),
]


@pytest.mark.parametrize(("fault", "state", "cause", "noticed_s"), STOPS)
def test_fault_ends_joint_move_and_joints_stand(
    fault: Callable[[Loop], Any], state: str, cause: str, noticed_s: float
) -> None:
    loop = moving()
    fault(loop)
    loop.tick(round(noticed_s / TICK_S) + 2)
    assert loop.guard.state == state
    assert loop.guard.cause.startswith(cause)
    loop.tick(round(BRAKE_S / TICK_S))
    stands = loop.joints
    assert error_rad(loop) > 0.1
    pieces = loop.pieces
    loop.tick(20)
    assert (loop.joints, loop.pieces, loop.setpoint) == (stands, pieces, None)


@pytest.mark.parametrize(("fault", "state"), [(silence, "hold"), (push, "protective stop")])
def test_arm_is_held_at_measured_pose_once_it_rests_after_joint_move(
    fault: Callable[[Loop], Any], state: str
) -> None:
    loop = moving()
    fault(loop)
    rest = Pose((0.45, 0.01, 0.2), DOWN)
    for _ in range(100):
        loop.tick()
        if loop.setpoint is None:
            loop.fake.pose = rest
    assert loop.guard.state == state
    assert loop.setpoint is not None
    assert loop.setpoint.pose == rest


def test_joint_move_goes_on_after_stop_was_ended() -> None:
    loop = moving()
    push(loop)
    loop.tick(40)
    loop.force = [0.0] * 6
    loop.tick()
    assert loop.guard.ack(loop.now_s) == "disarmed"
    loop.tick(500)
    loop.guard.arm(loop.now_s)
    loop.ticks_until(GuardState.JOINTS, limit=20)
    joints, fastest = loop.joints, 0.0
    while loop.guard.state is GuardState.JOINTS:
        loop.tick()
        fastest = max(fastest, abs(loop.joints[0] - joints[0]) / TICK_S)
        joints = loop.joints
    assert fastest < 0.07, "it is slow until a policy has driven"
    assert (loop.guard.cause, error_rad(loop) < 1e-6) == (OVER, True)


def test_person_takes_over_joint_move_which_goes_on_after_release() -> None:
    loop = moving()
    loop.mode, loop.target = "teleop", FAR
    loop.ticks_until(GuardState.TELEOP, limit=100)
    loop.tick(50)
    assert loop.fake.pose.position[1] > 0.01
    loop.mode = "joints"
    assert loop.ticks_until(GuardState.JOINTS, limit=200) >= 45
    loop.ticks_until(GuardState.HOLD, limit=400)
    assert (loop.guard.cause, error_rad(loop) < 1e-6) == (OVER, True)


def test_moving_arm_brakes_before_joint_move_begins() -> None:
    loop = asked("reset")
    loop.target = FAR
    loop.ticks_until(GuardState.RESET)
    loop.tick(30)
    loop.mode = "joints"
    loop.ticks_until(GuardState.HOLD)
    assert loop.ticks_until(GuardState.JOINTS) >= 10, "the arm has to rest for 0.1 s"
    loop.tick(350)
    assert error_rad(loop) < 1e-6


def test_joints_that_do_not_follow_stop_arm() -> None:
    loop = moving(0.2)
    stick(loop)
    loop.ticks_until(GuardState.PROTECTIVE_STOP)
    assert loop.guard.cause == "joint 1 is 0.10 rad from the path of its move"


def test_arm_that_does_not_come_to_rest_is_stopped() -> None:
    loop = moving()
    loop.mode, side_m = "hold", 0.003
    for _ in range(330):
        side_m = -side_m
        loop.fake.pose = Pose((0.45, side_m, 0.2), DOWN)
        loop.tick()
    assert loop.guard.state is GuardState.PROTECTIVE_STOP
    assert loop.guard.cause == "the arm does not come to rest after a joint move"


def test_joints_stand_by_themselves_when_guard_is_silent() -> None:
    loop = moving()
    follower, end_s = loop.follower, loop.now_s + STAND_S
    assert max(map(abs, follower.at(end_s - 0.05)[1])) > 0.0
    assert follower.at(end_s + 1e-6) == follower.at(end_s + 10.0)
    loop.now_s += 0.5
    loop.joints = list(follower.at(loop.now_s)[0])
    pieces = loop.pieces
    loop.tick()
    assert loop.guard.counts["late tick"] == 1
    assert (loop.guard.state, loop.pieces) == (GuardState.HOLD, pieces)


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"home_rad": ()}, "this arm takes no joint moves"),
        ({"pose": Pose((0.45, 0.0, 0.41), DOWN)}, "a joint move begins inside the box only"),
    ],
)
def test_guard_refuses_joint_move(changes: dict[str, Any], cause: str) -> None:
    loop = asked(**changes)
    loop.tick(100)
    assert (loop.guard.state, loop.guard.cause) == ("hold", cause)
    assert loop.pieces == 0


def test_guard_refuses_joint_move_that_no_controller_takes() -> None:
    loop = asked("hold")
    loop.guard.joint_move.unheard = "/joint_trajectory: no controller listens"
    loop.mode = "joints"
    loop.tick(50)
    assert loop.guard.cause == "/joint_trajectory: no controller listens"


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"home_rad": HOME[:6]}, "home_rad .*: expected 7 numbers, and joint_names"),
        ({"joint_names": ()}, "home_rad .*: expected 7 numbers, and joint_names"),
        (
            {"home_rad": (2.75, *HOME[1:])},
            "home_rad .*: within joint_margin_rad of a joint's limit",
        ),
        ({"home_speed_rad_s": 0.31}, "home_speed_rad_s"),
    ],
)
def test_wrong_home_is_refused(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValidationError, match=complaint):
        config(**(MOVES | changes))


def test_home_needs_profile_with_trajectory() -> None:
    profile = plugins.load("robot", "sim")
    own: dict[str, Any] = {
        "joint_low_rad": profile.joint_low_rad,
        "joint_high_rad": profile.joint_high_rad,
        "joint_names": profile.joints,
        "home_rad": profile.home_rad,
    }
    check_fits(config(**own), profile)
    with pytest.raises(BadInput, match="home_rad: a home of the joints, but it takes no"):
        check_fits(config(**own), profile.model_copy(update={"trajectory": None}))


def test_pieces_that_arrive_late_keep_joints_near_path() -> None:
    path, follower = JointPath([0.4, -0.2], [0.0, 0.0], 0.2), TrajectoryFollower()
    pieces = [(k * 0.05 + (0.001, 0.02, 0.008)[k % 3], path.piece(k * 0.05)) for k in range(70)]
    joints: tuple[float, ...] = (0.4, -0.2)
    for tick in range(1, 350):
        while pieces and pieces[0][0] <= tick * TICK_S:
            follower.begin(pieces.pop(0)[1], joints, tick * TICK_S)
        if follower.is_active:
            joints, speeds = follower.at(tick * TICK_S)
            assert max(map(abs, speeds)) < 0.23
        expected, _ = path.at(tick * TICK_S)
        assert joints == pytest.approx(expected, abs=0.006)
    assert joints == pytest.approx((0.0, 0.0), abs=1e-6)
