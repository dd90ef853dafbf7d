"""Guard in front of an arm that takes velocity commands and follows them late."""

from __future__ import annotations

import math
from collections import deque

from serl.geometry import Vector, from_rotation_vector, multiply
from serl.guard.guard import GuardState
from serl.motion import Pose
from serl.ros.arm.commander import VelocityFollower
from serl.testing.fakes import TIMEOUT_S

from .guarding import DOWN, START, TICK_S, Loop

Twist = tuple[Vector, Vector]
STILL: Twist = ((0.0, 0.0, 0.0), (0.0, 0.0, 0.0))


class ServoedArm:
    """Tool that follows each velocity after a dead time and with a lag; arm of a `Loop`.

    Attributes:
        pose: pose of the tool in the base frame.
        sent: all velocity commands, one per 10 ms.
    """

    def __init__(self, loop: Loop, lag_s: float, dead_s: float) -> None:
        self.pose = START
        self.sent: list[Twist] = []
        self._loop, self._follower = loop, VelocityFollower(loop.config.motion.limits)
        self._part = 1.0 - math.exp(-TICK_S / lag_s)
        self._underway = deque([STILL] * round(dead_s / TICK_S))
        self._twist, self._heard_s = STILL, -math.inf

    def follow(self, setpoint: Pose, now_s: float) -> None:
        """Send the velocity command that the guard's process derives from its setpoint."""
        guard = self._loop.guard
        assert self._loop.setpoint is not None
        self.sent.append(
            self._follower.follow(
                self._loop.setpoint, guard.measured.fresh_pose(now_s), guard.pace, now_s
            )
        )
        self._heard_s = now_s

    def tick(self, now_s: float) -> Pose:
        """Advance the tool by 10 ms."""
        command = self.sent[-1] if now_s - self._heard_s <= TIMEOUT_S else STILL
        self._underway.append(command)
        wanted = self._underway.popleft()
        linear, angular = (
            _mixed(own, new, self._part) for own, new in zip(self._twist, wanted, strict=True)
        )
        self._twist = linear, angular
        x, y, z = (
            value + TICK_S * speed for value, speed in zip(self.pose.position, linear, strict=True)
        )
        wx, wy, wz = angular
        turn = from_rotation_vector((wx * TICK_S, wy * TICK_S, wz * TICK_S))
        self.pose = Pose((x, y, z), multiply(turn, self.pose.quaternion))
        return self.pose


def servoing(lag_s: float, dead_s: float) -> tuple[Loop, ServoedArm]:
    """Return a loop and its servoed arm in motion at full speed."""
    loop = Loop()
    arm = ServoedArm(loop, lag_s, dead_s)
    loop.fake = arm  # type: ignore[assignment]
    loop.tick(20)
    loop.guard.arm(loop.now_s)
    loop.mode, loop.target = "policy", Pose((0.45, 0.19, 0.2), DOWN)
    loop.ticks_until(GuardState.POLICY)
    loop.tick(60)
    return loop, arm


def _mixed(a: Vector, b: Vector, part: float) -> Vector:
    x, y, z = (p + part * (q - p) for p, q in zip(a, b, strict=True))
    return x, y, z
