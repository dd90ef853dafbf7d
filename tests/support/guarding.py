"""Guard between an actor and an arm in one process, with a clock advanced by the tests."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from serl.geometry import Quaternion, Vector, rotation_between
from serl.guard.checks import is_inside, is_kept_out
from serl.guard.guard import Guard, GuardConfig, GuardState, Latch, MessageInfo
from serl.motion import Limits, Motion, Pose
from serl.setpoint import Setpoint
from serl.testing.fakes import FakeArm
from serl.trajectory import TrajectoryFollower

DOWN: Quaternion = (1.0, 0.0, 0.0, 0.0)
START = Pose((0.45, 0.0, 0.2), DOWN)
TICK_S = 0.01
SLACK = 1.0 + 1e-9
EPOCH_S = 1.7e9
"""Wall clock time in s at monotonic time 0."""


def config(motion: dict[str, Any] | None = None, **changes: Any) -> GuardConfig:
    values: dict[str, Any] = {
        "motion": Motion(
            **{
                "axes": ("x", "y", "z", "roll", "pitch", "yaw"),
                "translation_m": 0.015,
                "box_low_m": (0.3, -0.2, 0.05),
                "box_high_m": (0.6, 0.2, 0.4),
                "max_rotation_rad": 0.6,
                "gripper": True,
                **(motion or {}),
            }
        ),
        "reference": DOWN,
        "joint_low_rad": (-2.8,) * 7,
        "joint_high_rad": (2.8,) * 7,
    }
    return GuardConfig(**(values | changes))


def numbers(pose: Pose) -> list[float]:
    return [*pose.position, *pose.quaternion]


class Loop:
    """Control loop of an actor, a guard and a fake arm, in ticks of 10 ms.

    Attributes:
        mode: mode in the heartbeat; None sends no heartbeat.
        device_s: time of the last message of the operator's device; None for the current time.
        target: pose commanded ten times a second; None sends no commands.
        measured: names of the measurements that arrive.
        joints, force: measured joint positions and wrench.
        follower: motion of the joints along the guard's trajectories.
        pieces: number of these trajectories.
        jump_s: sum of the jumps of the wall clock.
        lead_m, lead_rad: largest lead of a setpoint over the arm so far.
    """

    def __init__(self, latch: Latch | None = None, pose: Pose = START, **changes: Any) -> None:
        self.config = config(**changes)
        self.guard = Guard(self.config, latch)
        self.fake = FakeArm(pose)
        self.now_s = 100.0
        self.mode: str | None = None
        self.device_s: float | None = None
        self.lease = "a"
        self.target: Pose | None = None
        self.measured = {"pose", "joints", "wrench"}
        self.joints = [0.0] * 7
        self.follower, self.pieces = TrajectoryFollower(), 0
        self.force = [0.0] * 6
        self.jump_s = 0.0
        self.lead_m = self.lead_rad = 0.0
        self.ticks = self.beats = 0
        self.setpoint: Setpoint | None = None

    def message_info(self, ahead_s: float = 0.0, frame: str = "base") -> MessageInfo:
        wall_s = EPOCH_S + self.now_s + self.jump_s
        return MessageInfo(self.now_s, wall_s + ahead_s, wall_s, frame)

    def tick(self, count: int = 1) -> Setpoint | None:
        for _ in range(count):
            self.ticks += 1
            self.now_s += TICK_S
            self.measure()
            if self.mode is not None and self.ticks % 2 == 0:
                self.beat()
            if self.target is not None and self.ticks % 10 == 0:
                self.guard.command(numbers(self.target), self.message_info())
            before, self.setpoint = self.setpoint, self.guard.tick(self.now_s)
            self.move_joints()
            if self.setpoint is not None:
                self.follower.end()
                check(before, self.setpoint, self.config, self.fake.pose)
                self._note_lead(self.setpoint.pose)
                self.fake.follow(self.setpoint.pose, self.now_s)
            self.fake.tick(self.now_s)
        return self.setpoint

    def move_joints(self) -> None:
        if (trajectory := self.guard.joint_move.trajectory) is not None:
            self.pieces += 1
            self.follower.begin(trajectory, self.joints, self.now_s)
        if self.follower.is_active:
            self.joints = list(self.follower.at(self.now_s)[0])

    def measure(self) -> None:
        if "pose" in self.measured:
            self.guard.pose(numbers(self.fake.pose), self.message_info())
        if "joints" in self.measured:
            self.guard.joints(self.joints, self.message_info())
        if "wrench" in self.measured:
            self.guard.wrench(self.force, self.message_info())

    def _note_lead(self, goal: Pose) -> None:
        place, quaternion = self.fake.pose
        self.lead_m = max(self.lead_m, math.dist(goal.position, place))
        self.lead_rad = max(
            self.lead_rad, math.hypot(*rotation_between(quaternion, goal.quaternion))
        )

    def beat(self) -> None:
        self.beats += 1
        silent_s = 0.0 if self.device_s is None else self.now_s - self.device_s
        words = f"{self.lease} {self.mode} {self.beats} {1e3 * silent_s:.0f}"
        self.guard.heartbeat(words, self.message_info())

    def ticks_until(self, *states: GuardState, limit: int = 200) -> int:
        """Tick until one of the states is reached; return the number of ticks, at most `limit`."""
        for count in range(limit):
            if self.guard.state in states:
                return count
            self.tick()
        raise AssertionError(f"{self.guard.state}: {self.guard.cause}")

    def ticks_to_rest(self, limit: int = 60) -> int:
        for count in range(limit):
            if self.setpoint is None or not moves(self.setpoint):
                return count
            self.tick()
        raise AssertionError("still moving")


def armed(**changes: Any) -> Loop:
    """Return a loop whose guard is armed and holds."""
    loop = Loop(**changes)
    loop.tick(20)
    loop.guard.arm(loop.now_s)
    return loop


def driving(mode: str = "policy", target: Pose | None = None, **changes: Any) -> Loop:
    """Return a loop whose arm moves at full speed towards a distant target."""
    loop = armed(**changes)
    loop.mode = mode
    loop.target = target or Pose((0.45, 0.19, 0.2), DOWN)
    loop.ticks_until(GuardState(mode))
    loop.tick(30)
    assert loop.setpoint is not None
    assert loop.guard.state == mode
    return loop


def moves(setpoint: Setpoint) -> bool:
    return any(setpoint.velocity) or any(setpoint.angular_velocity)


def check(before: Setpoint | None, after: Setpoint, config: GuardConfig, arm: Pose) -> None:
    """Fail unless a setpoint and the change from the previous one are within all limits."""
    breaches = list(_breaches(before, after, config.motion.limits, config, arm))
    assert not breaches, breaches


def _breaches(
    before: Setpoint | None, after: Setpoint, limits: Limits, config: GuardConfig, arm: Pose
) -> Iterator[str]:
    flat: Sequence[float] = [*numbers(after.pose), *after.velocity, *after.angular_velocity]
    if not all(map(math.isfinite, flat)):
        yield f"not finite: {after}"
    if not is_inside(after.pose, config) and is_inside(arm, config):
        yield f"outside: {after.pose}"
    if is_kept_out(after.pose, config) and not is_kept_out(arm, config):
        yield f"where it has to keep out: {after.pose}"
    if abs(math.hypot(*after.pose.quaternion) - 1.0) > 1e-9:
        yield f"norm: {after.pose}"
    speed, spin = math.hypot(*after.velocity), math.hypot(*after.angular_velocity)
    if speed > limits.speed_m_s * SLACK or spin > limits.angular_speed_rad_s * SLACK:
        yield f"speed {speed}, {spin}"
    if before is None:
        return
    travel = math.dist(after.pose.position, before.pose.position)
    if abs(travel - TICK_S * speed) > 1e-9:
        yield f"jump of {travel}"
    if sum(a * b for a, b in zip(before.pose.quaternion, after.pose.quaternion, strict=True)) < 0.9:
        yield "the quaternion changes its sign, or jumps"
    yield from _profile(
        "linear",
        (before.velocity, after.velocity),
        (before.acceleration, after.acceleration),
        (limits.acceleration_m_s2, limits.stop_acceleration_m_s2),
        (limits.jerk_m_s3, limits.stop_jerk_m_s3),
    )
    yield from _profile(
        "angular",
        (before.angular_velocity, after.angular_velocity),
        (before.angular_acceleration, after.angular_acceleration),
        (limits.angular_acceleration_rad_s2, limits.stop_angular_acceleration_rad_s2),
        (limits.angular_jerk_rad_s3, limits.stop_angular_jerk_rad_s3),
    )


def _profile(
    what: str,
    velocities: tuple[Vector, Vector],
    accelerations: tuple[Vector, Vector],
    most: tuple[float, float],
    jerks: tuple[float, float],
) -> Iterator[str]:
    """Yield each breach of the limits; the limits of a stop apply while the setpoint slows."""
    change = math.dist(*velocities) / TICK_S
    size = math.hypot(*accelerations[1])
    jerk = math.dist(*accelerations) / TICK_S
    if abs(change - size) > 1e-6 * most[1]:
        yield f"{what}: the velocity is not the integral of the acceleration"
    stops = math.hypot(*velocities[1]) < math.hypot(*velocities[0]) * SLACK
    resting = not any(velocities[1])  # the end of a stop drops the remaining acceleration
    kind = 1 if stops or resting else 0
    if size > most[kind] * SLACK:
        yield f"{what}: acceleration {size}"
    if jerk > jerks[kind] * SLACK + 1e-6 and not resting:
        yield f"{what}: jerk {jerk}"
