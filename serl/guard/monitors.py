"""Monitors of a gripper, an arm and its joints that do not follow their commands."""

from __future__ import annotations

import math
from collections.abc import Sequence

from serl.errors import STUCK
from serl.geometry import nearest_point
from serl.guard.checks import clamp_pose, is_apart
from serl.guard.config import GuardConfig
from serl.intervention import STUCK_S
from serl.motion import Limits, Pose, within_lead

_LIMIT_S = 1.0
_MOVED = 0.03  # change of the opening that counts as motion
_THERE = 0.1  # difference from the goal within which the gripper has arrived


class GripperMonitor:
    """A comparison of a gripper's commands with its opening, from 0 (closed) to 1.

    A fault is detected before a policy learns from it. A gripper that grasps an object never
    closes completely: it has to begin to move, not to arrive. A half-open gripper that is commanded
    to close may hold an object already, and need not even begin to move.
    """

    def __init__(self) -> None:
        self.begin(False)

    def begin(self, closed: bool) -> None:
        """Start from a gripper whose command agrees with its state."""
        self._closed, self._commanded_s = closed, math.inf
        self._start = math.nan  # opening at the command

    def command(self, closed: bool, opening: float, now_s: float) -> None:
        """Note a command to close or open, repeated or new, and the present opening."""
        if closed != self._closed:
            may_hold = closed and opening < 1.0 - _THERE
            self._closed, self._start = closed, opening
            self._commanded_s = math.inf if may_hold else now_s

    def wait(self, now_s: float) -> None:
        """Restart the time limit while no command reaches the gripper."""
        self._commanded_s = max(self._commanded_s, now_s)

    def trouble(self, opening: float, now_s: float) -> str:
        """Return why the gripper does not follow its command; empty while it does."""
        if not math.isfinite(self._commanded_s):
            return ""
        goal = 0.0 if self._closed else 1.0
        if abs(opening - self._start) > _MOVED or abs(opening - goal) < _THERE:
            self._commanded_s = math.inf
            return ""
        if now_s - self._commanded_s < _LIMIT_S:
            return ""
        verb = "close" if self._closed else "open"
        return (
            f"gripper: commanded to {verb} {now_s - self._commanded_s:.1f} s ago, and does not move"
        )


_FAR = 0.9
"""Fraction of the lead: an arm that follows is rarely so far behind, and never stands there."""

_STRAYED = 1.5
"""Multiple of the lead: an arm that follows is nearer, one pushed through its spring is not."""

_STILL_M, _STILL_RAD = 1e-3, 5e-3
_BLIND, _BLIND_S = "the arm stands, or pushes", 6.0
"""Cause and time limit for an arm without force sensor, which may push and so stand for longer."""

_PAUSE_S = 1.0
"""Rest of a stuck arm before the next try: the way may be free, or the next target elsewhere."""


class FollowingMonitor:
    """A comparison of the arm's pose with its setpoint over time.

    Attributes:
        is_lost: whether the arm has been away from its setpoint for longer than allowed.
        strays: whether the arm is farther from its setpoint than any lead.
    """

    def __init__(self, config: GuardConfig) -> None:
        self.is_lost = self.strays = False
        self._config = config
        self._cause, self._stuck_s = (STUCK, STUCK_S) if config.wrench else (_BLIND, _BLIND_S)
        self._away_s: float | None = None  # time since which the arm is far from its setpoint
        self._stuck_pose: Pose | None = None  # at rest despite a leading setpoint
        self._stuck_since_s = math.inf  # time since which the arm rests there
        self._pause_s = -math.inf  # end of the rest

    def begin(self) -> None:
        """Reset the comparison: the arm is not driven, or its pose is unknown."""
        self.is_lost, self.strays, self._away_s = False, False, None
        self._stuck_pose, self._pause_s = None, -math.inf

    def watch(self, pose: Pose, goal: Pose, now_s: float) -> None:
        """Compare the pose of the arm with that of its setpoint (`goal`)."""
        config, limits = self._config, self._config.motion.limits
        far_m, far_rad = _STRAYED * limits.lead_m, _STRAYED * limits.lead_rad
        self.strays = is_apart(pose, goal, far_m, far_rad)
        if not is_apart(pose, goal, config.following_m, config.following_rad):
            self.is_lost, self._away_s = False, None
            return
        self._away_s = now_s if self._away_s is None else self._away_s
        self.is_lost = now_s - self._away_s >= config.following_s

    def goal(self, target: Pose, pose: Pose, limits: Limits) -> Pose:
        """Return a target in the box, limited to the lead ahead of the arm's pose.

        An arm that sags may be slightly outside of its box. The way from there to the target could
        leave the box, where no setpoint may go; the lead then begins at the nearest pose inside.
        """
        ahead = within_lead(target, pose, limits)
        inside = clamp_pose(pose, self._config).position
        gap_m = math.dist(inside, pose.position)
        if not 0.0 < gap_m < limits.lead_m:
            return ahead
        return Pose(nearest_point(target.position, inside, limits.lead_m - gap_m), ahead.quaternion)

    def lead(self, pose: Pose, goal: Pose, pushes: bool, now_s: float) -> None:
        """Check an arm in motion for being stuck.

        Args:
            pose: pose of the arm.
            goal: pose of its setpoint.
            pushes: whether the arm measures that it pushes something.
            now_s: monotonic time.
        """
        limits = self._config.motion.limits
        far = is_apart(pose, goal, _FAR * limits.lead_m, _FAR * limits.lead_rad)
        stuck = self._stuck_pose
        if not far or pushes:
            self._stuck_pose = None
        elif stuck is None or is_apart(pose, stuck, _STILL_M, _STILL_RAD):
            self._stuck_pose, self._stuck_since_s = pose, now_s
        elif now_s - self._stuck_since_s > self._stuck_s:
            self._stuck_pose, self._pause_s = None, now_s + _PAUSE_S

    def hindrance(self, now_s: float) -> str:
        """Return why the arm has to rest; empty when it does not."""
        return self._cause if now_s < self._pause_s else ""


_SPAN_S = (0.015, 0.15)
"""Shortest and longest time between the two readings of a joint's speed.

Long compared with a sensor's noise, short compared with the motion of a runaway joint.
"""

_FASTEST_RAD_S = 20.0
"""Speed that no supported joint reaches: above it a simulated arm was placed elsewhere."""

_SLOW, _LET_GO = 2.0 / 3.0, 0.5
"""Fractions of the largest joint speed: slow motion above the first, no fault below the second."""


class JointMonitor:
    """A monitor of the angles and speeds of an arm's joints.

    Near a singular pose a joint turns fast while the tool hardly moves, and so does a joint whose
    controller fails. A guard without kinematics can detect this only here.

    Attributes:
        angles_rad: the last angles of the joints.
        margin_rad: smallest distance of a joint to one of its limits; below zero beyond a limit.
        running: description of a joint that turns too fast, for which all motion is held; else
            empty.
    """

    def __init__(self, config: GuardConfig) -> None:
        self.angles_rad: Sequence[float] = ()
        self.margin_rad, self._nearest = math.inf, 0
        self.running = ""
        self._config = config
        self._speed_rad_s = 0.0  # speed of the fastest joint
        self._runs_s = self._now_s = -math.inf  # begin of a too fast motion, time of the last speed
        self._before: tuple[float, Sequence[float]] = (-math.inf, ())  # stamp and angles

    def receive(self, values: Sequence[float], stamp_s: float, now_s: float) -> None:
        """Take valid angles (rad) of all joints, with their stamp and monotonic arrival time."""
        config, self.angles_rad = self._config, tuple(values)
        margins = [
            min(value - low, high - value)
            for low, value, high in zip(
                config.joint_low_rad, values, config.joint_high_rad, strict=True
            )
        ]
        self.margin_rad = min(margins)
        self._nearest = margins.index(self.margin_rad)
        self._measure_speed(values, stamp_s, now_s)

    @property
    def slow(self) -> bool:
        """Whether all motion has to be slow."""
        fast = self._speed_rad_s > _SLOW * self._config.joint_speed_rad_s
        return fast or self.margin_rad < 2.0 * self._config.joint_margin_rad

    @property
    def near(self) -> str:
        """Description of a joint too near to a limit for a policy to move the arm; else empty."""
        return self._place() if self.margin_rad < self._config.joint_margin_rad else ""

    @property
    def danger(self) -> str:
        """Description of a joint that requires a stop and a person's check; else empty."""
        if self.margin_rad < 0.5 * self._config.joint_margin_rad:
            return self._place()
        lasts = self._now_s - self._runs_s >= self._config.following_s
        return f"{self.running}, and goes on" if self.running and lasts else ""

    def _place(self) -> str:
        return f"joint {self._nearest + 1} is {max(0.0, self.margin_rad):.2f} rad from its limit"

    def _measure_speed(self, values: Sequence[float], stamp_s: float, now_s: float) -> None:
        then_s, before = self._before
        span_s = stamp_s - then_s
        if 0.0 < span_s < _SPAN_S[0]:
            return
        self._before, self._now_s = (stamp_s, tuple(values)), now_s
        known = 0.0 < span_s <= _SPAN_S[1]  # otherwise the clock was set, or readings were missing
        speeds = [abs(b - a) / span_s for a, b in zip(before, values, strict=True)] if known else []
        fastest_rad_s = max(speeds, default=0.0)
        self._speed_rad_s = fastest_rad_s if fastest_rad_s < _FASTEST_RAD_S else 0.0
        limit_rad_s = self._config.joint_speed_rad_s
        if self._speed_rad_s > limit_rad_s and not self.running:
            self._runs_s = now_s
            joint = speeds.index(fastest_rad_s) + 1
            self.running = f"joint {joint} turns faster than {limit_rad_s:g} rad/s"
        elif self._speed_rad_s < _LET_GO * limit_rad_s:
            self.running = ""
