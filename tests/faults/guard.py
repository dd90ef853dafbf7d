"""Faults handled by the guard alone: its real logic with a fake arm and an explicit clock."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType

import pytest

from serl.errors import BadInput
from serl.guard.checks import MessageRefusal, check_command, is_inside
from serl.guard.guard import GuardState, Latch, MessageInfo
from serl.guard.latch import LatchFile
from serl.motion import Pose

from ..support.guarding import DOWN, START, TICK_S, Loop, armed, config, driving, numbers
from ..support.hostile import run_attack
from .refusal import refusal
from .registry import REGISTRY, Level

AT_ONCE = 1
"""Ticks of 10 ms."""

AT_REST = 10
"""Maximum number of ticks of a stop."""


NEWER_S = 0.001
"""Stamp that differs from the last measurement's; an equal stamp would not count as new."""


@REGISTRY.fault(
    26,
    "Measurement not finite",
    injected="NaN and +-infinity in each number of pose, joints and wrench while the arm moves",
    required="hold in the next period of 10 ms, at rest within 100 ms; the number is not used; "
    "the arm continues after valid measurements",
    level=Level.COMPONENT,
)
def bad_measurement(folder: Path) -> None:
    for kind, size in (("pose", 7), ("joints", 7), ("wrench", 6)):
        for place in range(size):
            for bad in (math.nan, math.inf, -math.inf):
                loop = driving()
                values = numbers(loop.fake.pose) if kind == "pose" else [0.0] * size
                values[place] = bad
                loop.measured.remove(kind)
                getattr(loop.guard, kind)(values, loop.message_info(NEWER_S))
                assert loop.ticks_until(GuardState.HOLD) <= AT_ONCE
                assert loop.guard.cause == f"{kind} is not finite"
                assert loop.ticks_to_rest() <= AT_REST
                loop.measured.add(kind)
                loop.ticks_until(GuardState.POLICY, limit=20)


@REGISTRY.fault(
    27,
    "Command not finite",
    injected="NaN and +-infinity in a target and in a gripper command",
    required="refused; hold at once; protective stop after three within a second",
    level=Level.COMPONENT,
)
def bad_command(folder: Path) -> None:
    for bad in (math.nan, math.inf, -math.inf):
        loop = driving()
        for count in range(3):
            loop.guard.command([bad, *numbers(START)[1:]], loop.message_info())
            assert loop.guard.state != "policy"
            assert (loop.guard.state == "protective stop") == (count == 2)
            loop.tick(40)
        loop = driving()
        for _ in range(3):
            loop.guard.gripper([bad], loop.message_info())
        assert loop.guard.state == "protective stop"
        assert loop.guard.opening is None


@REGISTRY.fault(
    30,
    "Target outside the box",
    injected="targets some metres outside, in each direction, from a policy, a person and a reset",
    required="the arm moves to the face of the box, and no farther",
    level=Level.COMPONENT,
)
def outside_the_box(folder: Path) -> None:
    low, high = config().motion.box_low_m, config().motion.box_high_m
    for mode in ("policy", "teleop", "reset"):
        for axis in range(3):
            for far, face in ((-5.0, low[axis]), (5.0, high[axis])):
                place = list(START.position)
                place[axis] = far
                loop = driving(mode, Pose((place[0], place[1], place[2]), DOWN))
                loop.tick(300)  # `tick` checks each setpoint
                assert abs(loop.fake.pose.position[axis] - face) < 1e-3
                assert is_inside(loop.fake.pose, loop.config)


@REGISTRY.fault(
    31,
    "Steps, speeds or jerks that are too large",
    injected="40,000 commands: random, at corners, metres away, huge, NaN, unnormalised, old, "
    "from the future; between them forces, gaps, takeovers, other actors and stops; the arm lags "
    "or is stuck",
    required="no setpoint is outside the box, in a keep-out box, or beyond a limit of speed, "
    "acceleration, jerk or lead",
    level=Level.UNIT,
)
def hostile_commands(folder: Path) -> None:
    loop = run_attack(40_000, seed=1)
    for reason in ("not finite", "size", "frame", "future", "old", "quaternion", "keep-out"):
        assert loop.guard.counts[f"command: {reason}"] > 0, reason


@REGISTRY.longer(hostile_commands, injected="1,000,000 such commands")
def a_million_hostile_commands(folder: Path) -> None:
    run_attack(1_000_000, seed=2)


@REGISTRY.fault(
    32,
    "Quaternion of zero, with another norm than 1, or with the other sign",
    injected="norms 0, 0.98, 1.02, 2 and NaN; q and -q alternately",
    required="refused if the norm is over 0.01 away from 1, and hold; with q and -q the arm does "
    "not turn",
    level=Level.UNIT,
)
def quaternions(folder: Path) -> None:
    for norm in (0.0, 0.98, 1.02, 2.0, math.nan):
        loop = driving()
        loop.guard.command([*START.position, norm, 0.0, 0.0, 0.0], loop.message_info())
        assert loop.guard.state == "hold"
    loop = driving()
    for count in range(100):
        loop.target = Pose(START.position, (1.0, 0.0, 0.0, 0.0) if count % 2 else (-1.0, 0, 0, 0))
        loop.tick(10)
        assert loop.setpoint is not None
        assert not any(loop.setpoint.angular_velocity)


@REGISTRY.fault(
    33,
    "Another frame, or another number of joints",
    injected="commands and poses in other frames; six joints instead of seven",
    required="refused with one line that names both; hold",
    level=Level.UNIT,
)
def other_frames(folder: Path) -> None:
    message_info = MessageInfo(0.0, 0.0, 0.0, "world")
    line = refusal(partial(check_command, numbers(START), message_info, config()), MessageRefusal)
    assert "'world'" in line
    assert "'base'" in line
    for name in ("command", "pose"):
        loop = driving()
        loop.measured.discard(name)
        getattr(loop.guard, name)(numbers(loop.fake.pose), loop.message_info(NEWER_S, "tool0"))
        assert loop.ticks_until(GuardState.HOLD) <= AT_ONCE
    loop = driving()
    loop.joints.pop()
    assert loop.ticks_until(GuardState.HOLD) <= AT_ONCE
    assert loop.guard.cause == "joints: 6 numbers, expected 7"


@REGISTRY.fault(
    34,
    "Contact",
    injected="15 N, then 30 N or 5 Nm at the tool, while the arm moves",
    required="slow motion from 15 N; from 30 N or 5 Nm a protective stop in the same period, at "
    "rest within 100 ms; then the setpoint moves to the arm's pose, so that the arm does not push; "
    "only a person ends the stop",
    level=Level.COMPONENT,
)
def contact(folder: Path) -> None:
    for wrench in ([30.0, 0, 0, 0, 0, 0], [0, 0, -60.0, 0, 0, 0], [0, 0, 0, 0, 5.0, 0]):
        loop = driving()
        wall = loop.fake.pose
        loop.force = [0.0, 16.0, 0, 0, 0, 0]
        loop.tick(30)
        assert loop.setpoint is not None
        assert math.hypot(*loop.setpoint.velocity) <= 0.052
        loop.force = list(wrench)
        assert loop.ticks_until(GuardState.PROTECTIVE_STOP) <= AT_ONCE
        assert loop.ticks_to_rest() <= AT_REST
        wall = loop.fake.pose
        for _ in range(100):
            loop.fake.pose = wall
            loop.tick()
        assert math.dist(loop.setpoint.pose.position, wall.position) < 1e-3
        loop.force = [0.0] * 6
        loop.tick(300)
        assert loop.guard.state == "protective stop"


def is_slowed(loop: Loop, turning: Mapping[int, float] = MappingProxyType({})) -> bool:
    """Drive on while joints turn (rad/s); return whether the tool slows to the slow speed."""
    assert loop.setpoint is not None
    before_m_s = math.hypot(*loop.setpoint.velocity)
    assert before_m_s > 1.5 * loop.config.slow.speed_m_s
    for _ in range(30):
        for joint, speed_rad_s in turning.items():
            loop.joints[joint] += speed_rad_s * TICK_S
        loop.tick()
    after_m_s = math.hypot(*loop.setpoint.velocity)
    slowed = 0.0 < after_m_s <= 1.04 * loop.config.slow.speed_m_s  # approached slowly
    assert slowed or after_m_s > 0.95 * before_m_s, (before_m_s, after_m_s)
    return slowed


@REGISTRY.fault(
    35,
    "Joint near its limit",
    injected="a joint at 0.2, 0.1 and 0.05 rad from its limit",
    required="slow motion; then hold of a policy, while a reset may move away from the limit; "
    "then a protective stop",
    level=Level.COMPONENT,
)
def joint_limit(folder: Path) -> None:
    for joint in range(7):
        loop, sign = driving(), 1.0 if joint % 2 else -1.0
        loop.joints[joint] = sign * 2.59  # 0.21 rad from the limit
        assert not is_slowed(loop)
        loop.joints[joint] = sign * 2.61
        assert is_slowed(loop)
        assert loop.guard.state == "policy"
        loop.joints[joint] = sign * 2.71
        loop.ticks_until(GuardState.HOLD, limit=AT_ONCE + 1)
        assert f"joint {joint + 1}" in loop.guard.cause
        loop.mode, loop.target = "reset", START
        loop.ticks_until(GuardState.RESET, limit=20)
        loop.joints[joint] = sign * 2.76
        assert loop.ticks_until(GuardState.PROTECTIVE_STOP) <= AT_ONCE
        loop.tick(60)
        with pytest.raises(BadInput, match=f"joint {joint + 1} is 0.04 rad from its limit"):
            loop.guard.ack(loop.now_s)


@REGISTRY.fault(
    35,
    "Singular pose",
    injected="a joint turns at 1.7 rad/s while the tool follows its target: for 40 ms, then for "
    "0.5 s",
    required="slow motion from 1 rad/s; hold within 40 ms; the arm continues once the joint "
    "stands; a protective stop if the joint turns for 0.3 s",
    level=Level.COMPONENT,
)
def singular(folder: Path) -> None:
    for joint in range(7):
        mode = ("policy", "teleop", "reset")[joint % 3]
        for speed_rad_s, slow in ((0.9, False), (1.1, True)):
            loop = driving(mode)
            assert is_slowed(loop, {joint: speed_rad_s}) == slow
            assert loop.guard.state == mode
        loop = driving(mode)
        for _ in range(4):
            loop.joints[joint] -= 1.7 * TICK_S
            loop.tick()
        assert loop.guard.cause == f"joint {joint + 1} turns faster than 1.5 rad/s"
        assert loop.ticks_to_rest() <= AT_REST
        assert loop.ticks_until(GuardState(loop.mode or ""), limit=40) < 40
        for tick in range(50):
            loop.joints[joint] += 1.7 * TICK_S
            loop.tick()
            assert (loop.guard.state == "protective stop") == (tick > 31) or 29 < tick < 36, tick
        assert loop.guard.cause == f"joint {joint + 1} turns faster than 1.5 rad/s, and goes on"
        with pytest.raises(BadInput, match=f"not now: joint {joint + 1} turns faster"):
            loop.guard.ack(loop.now_s)
        loop.mode = "hold"  # a person's hands are off
        loop.tick(30)
        assert loop.guard.ack(loop.now_s) == "disarmed"


@REGISTRY.fault(
    36,
    "Arm does not follow",
    injected="an arm that is stuck for 3 s; an arm that is drawn or turned away from its setpoint",
    required="stuck: the setpoint stays within the lead of 10 mm, and hold after 2 s; 5 cm or "
    "0.3 rad away for 300 ms: protective stop",
    level=Level.COMPONENT,
)
def stuck(folder: Path) -> None:
    loop = driving()
    place = loop.fake.pose
    for _ in range(300):
        loop.fake.pose = place
        loop.tick()
        assert loop.setpoint is not None
        assert math.dist(loop.setpoint.pose.position, place.position) < 0.0104
    assert loop.guard.counts["hold: the arm does not move"] == 1
    for turned in (False, True):
        loop, away = armed(), 0
        while loop.guard.state == "hold" and away < 100:
            away += 1
            share = min(1.0, away / 20)
            angle = 0.35 * share if turned else 0.0
            shift = 0.0 if turned else 0.055 * share
            quaternion = (math.cos(angle / 2), math.sin(angle / 2), 0.0, 0.0)
            loop.fake.pose = Pose((0.45 + shift, 0.0, 0.2), quaternion)
            loop.tick()
        assert loop.guard.cause == "the arm does not follow"
        assert 20 + 28 <= away <= 20 + 32


@REGISTRY.fault(
    37,
    "Measurements with repeated or old stamps",
    injected="pose, joints and wrench in turn, with a repeated stamp, and with stamps of 150 ms "
    "and of an hour ago",
    required="old ones are refused and counted, hold at once; repeated ones are counted, hold "
    "within 110 ms; the arm continues after new measurements",
    level=Level.COMPONENT,
)
def old_measurement(folder: Path) -> None:
    for kind in ("pose", "joints", "wrench"):
        for age_s in (None, 0.15, 3600.0):
            loop = driving()
            values = numbers(loop.fake.pose) if kind == "pose" else loop.joints
            values = loop.force if kind == "wrench" else values
            loop.measured.remove(kind)
            stamp_s, ticks = loop.message_info().stamp_s, 0
            while loop.guard.state == "policy" and ticks <= 11:
                message_info = loop.message_info(-(age_s or 0.0))
                message_info = (
                    message_info._replace(stamp_s=stamp_s) if age_s is None else message_info
                )
                getattr(loop.guard, kind)(values, message_info)
                loop.tick()
                ticks += 1
            assert loop.guard.state == "hold", (kind, age_s)
            assert loop.guard.cause == f"{kind} is {'stale' if age_s is None else 'old'}"
            assert ticks <= (11 if age_s is None else AT_ONCE)
            assert loop.guard.counts[f"{kind}: {'repeated' if age_s is None else 'old'}"] == ticks
            loop.measured.add(kind)
            loop.ticks_until(GuardState.POLICY, limit=20)


@REGISTRY.fault(
    46,
    "Clocks jump",
    injected="the wall clock jumps by an hour, forward and back, between and during messages; "
    "stamps are 60 ms and an hour ahead",
    required="deadlines are unaffected; stamps over 50 ms ahead are refused; a jump loses at most "
    "the messages that are in transit",
    level=Level.UNIT,
)
def clock_jumps(folder: Path) -> None:
    for jump_s in (3600.0, -3600.0):
        loop = driving()
        loop.jump_s += jump_s
        loop.tick(100)
        assert loop.guard.state == "policy"
        assert not loop.guard.counts
        sent = loop.message_info()
        loop.jump_s += jump_s  # while a command is in transit
        loop.guard.command(numbers(START), sent._replace(wall_s=loop.message_info().wall_s))
        loop.tick()
        assert loop.guard.state == "hold"
        loop.ticks_until(GuardState.POLICY, limit=25)
        loop.mode = None  # silence is still detected
        assert loop.ticks_until(GuardState.HOLD) <= 12
    for ahead_s in (0.06, 3600.0):
        loop = driving()
        loop.guard.command(numbers(START), loop.message_info(ahead_s))
        assert loop.guard.state == "hold"
        assert loop.guard.counts["command: future"] == 1
        loop.ticks_until(GuardState.POLICY, limit=25)


@REGISTRY.fault(
    47,
    "Commands are late",
    injected="delays of 50, 100, 140, 160 and 200 ms, and commands 100 to 200 ms apart",
    required="commands up to 150 ms old are followed; older ones are refused; hold if none "
    "arrives for over 150 ms",
    level=Level.COMPONENT,
)
def late_commands(folder: Path) -> None:
    for delay_s in (0.05, 0.1, 0.14, 0.16, 0.2):
        loop = driving()
        loop.target = None
        for _ in range(10):
            loop.guard.command(numbers(START), loop.message_info(-delay_s))
            loop.tick(5)
        assert (loop.guard.state == "policy") == (delay_s < 0.15), delay_s
    for apart in (10, 14, 16, 20):
        loop = driving()
        loop.target, held = None, False
        for _ in range(5):
            loop.guard.command(numbers(START), loop.message_info())
            for _ in range(apart):
                loop.tick()
                held |= loop.guard.state == "hold"
        assert held == (apart * TICK_S > 0.15), apart


@REGISTRY.fault(
    58,
    "Emergency stop in every state",
    injected="while the guard is disarmed, holds, follows a policy, a person or a reset, or is "
    "stopped",
    required="at rest within 100 ms; the stop is on the disk; a restarted guard is stopped; "
    "nothing moves before `ack`, `reset` and `arm`, in this order",
    level=Level.COMPONENT,
)
def emergency_stops(folder: Path) -> None:
    file = LatchFile(folder / "latch")
    for state in ("disarmed", "hold", "policy", "teleop", "reset", "protective stop"):
        loop = _in_state(state)
        loop.guard.estop("a person")
        loop.tick()
        assert loop.ticks_to_rest() <= AT_REST
        file.write(loop.guard.latch)
        loop = Loop(file.read())
        loop.mode, loop.target = "policy", Pose((0.45, 0.19, 0.2), DOWN)
        assert loop.tick(100) is None
        assert loop.guard.latch == Latch(GuardState.ESTOP, "a person")
        for act in (loop.guard.arm, loop.guard.reset):
            with pytest.raises(BadInput):
                act(loop.now_s)
        loop.guard.ack(loop.now_s)
        with pytest.raises(BadInput):
            loop.guard.arm(loop.now_s)
        loop.guard.reset(loop.now_s)
        assert loop.tick(20) is None
        loop.guard.arm(loop.now_s)
        loop.ticks_until(GuardState.POLICY, limit=20)


def _in_state(state: str) -> Loop:
    if state == "disarmed":
        loop = Loop()
        loop.tick(20)
    elif state == "hold":
        loop = armed()
    elif state == "protective stop":
        loop = driving()
        loop.guard.stop("a force")
    else:
        loop = driving(state)
    return loop
