"""A gripper that does not do what it is told: noticed before a policy learns from it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from serl.guard.checks import is_apart
from serl.guard.config import GuardConfig
from serl.intervention import STUCK, STUCK_S
from serl.motion import Pose

_LIMIT_S = 1.0
_MOVED = 0.03
_THERE = 0.1


class GripperWatch:
    """Compares what a gripper was told with what it does. Openings are from 0, closed, to 1.

    One that grasps something never closes: it has to begin, not to arrive. One that is told to
    close half open may have grasped before, with nobody here: it need not even begin.
    """

    def __init__(self) -> None:
        self.begin(False)

    def begin(self, closed: bool) -> None:
        """It is told what it does already."""
        self._closed, self._told_s = closed, math.inf
        self._from = math.nan

    def tell(self, closed: bool, opening: float, now_s: float) -> None:
        """It is told to close or to open, again and again, while it is open so far."""
        if closed != self._closed:
            may_hold = closed and opening < 1.0 - _THERE
            self._closed, self._from = closed, opening
            self._told_s = math.inf if may_hold else now_s

    def wait(self, now_s: float) -> None:
        """Nothing reaches it now: its time begins anew."""
        self._told_s = max(self._told_s, now_s) if math.isfinite(self._told_s) else math.inf

    def trouble(self, opening: float, now_s: float) -> str:
        """Why it cannot be relied on; empty while it can."""
        if not math.isfinite(self._told_s):
            return ""
        goal = 0.0 if self._closed else 1.0
        if abs(opening - self._from) > _MOVED or abs(opening - goal) < _THERE:
            self._told_s = math.inf
            return ""
        if now_s - self._told_s < _LIMIT_S:
            return ""
        verb = "close" if self._closed else "open"
        return f"gripper: told to {verb} {now_s - self._told_s:.1f} s ago, and does not move"


_FAR = 0.9
"""Of the lead: an arm that follows is rarely so far behind, and never stands there."""

_STILL_M, _STILL_RAD = 1e-3, 5e-3
_BLIND, _BLIND_S = "the arm stands, or pushes", 6.0
"""One that feels nothing may be pushing all the while: it may stand so for longer."""

_PAUSE_S = 1.0
"""Then it rests, and is tried again: the way may be free, or the next target be elsewhere."""


class Following:
    """Compares where the arm is with its setpoint, again and again.

    Attributes:
        is_lost: the arm has been elsewhere than its setpoint for longer than it may.
    """

    def __init__(self, config: GuardConfig) -> None:
        self.is_lost = False
        self._config = config
        self._words, self._stuck_s = (STUCK, STUCK_S) if config.wrench else (_BLIND, _BLIND_S)
        self._away_s: float | None = None  # since when it is far from its setpoint
        self._stands: Pose | None = None  # where it has been led on from, in vain ...
        self._stands_s = math.inf  # ... since then
        self._pause_s = -math.inf  # until when it rests

    def begin(self) -> None:
        """Nobody leads the arm, or where it is is not known."""
        self.is_lost, self._away_s = False, None
        self._stands, self._pause_s = None, -math.inf

    def watch(self, pose: Pose, goal: Pose, now_s: float) -> None:
        """Take where the arm is, and where its setpoint is."""
        config = self._config
        if not is_apart(pose, goal, config.following_m, config.following_rad):
            self.is_lost, self._away_s = False, None
            return
        self._away_s = now_s if self._away_s is None else self._away_s
        self.is_lost = now_s - self._away_s >= config.following_s

    def lead(self, pose: Pose, goal: Pose, pushes: bool, now_s: float) -> None:
        """The same, of an arm that is on its way; whether it feels that it pushes something."""
        limits = self._config.motion.limits
        far = is_apart(pose, goal, _FAR * limits.lead_m, _FAR * limits.lead_rad)
        stands = self._stands
        if not far or pushes:
            self._stands = None
        elif stands is None or is_apart(pose, stands, _STILL_M, _STILL_RAD):
            self._stands, self._stands_s = pose, now_s
        elif now_s - self._stands_s > self._stuck_s:
            self._stands, self._pause_s = None, now_s + _PAUSE_S

    def hindrance(self, now_s: float) -> str:
        """Why the arm rests; empty when it does not have to."""
        return self._words if now_s < self._pause_s else ""


_SPAN_S = (0.015, 0.15)
"""Between the readings of a speed: long for a sensor's noise, short for a joint that runs."""

_FASTEST_RAD_S = 20.0
"""No joint of ours turns so fast: a simulated arm was put elsewhere."""

_SLOW, _LET_GO = 2.0 / 3.0, 0.5
"""Of the largest speed: motion is slow from here on; a joint that ran does not run any more."""


class Joints:
    """The joints of an arm, one reading after the other.

    Near a singular pose a joint turns fast while the tool hardly moves, and so does one whose
    controller fails. A guard without kinematics sees it here, and by nothing else.

    Attributes:
        margin_rad: how far the nearest joint is from one of its limits; below zero beyond it.
        running: a joint that turns too fast, and that all motion is held for, in words; else empty.
    """

    def __init__(self, config: GuardConfig) -> None:
        self.margin_rad, self._nearest = math.inf, 0
        self.running = ""
        self._config = config
        self._speed_rad_s = 0.0  # of the fastest
        self._runs_s = self._now_s = -math.inf  # since when a joint runs, and up to when
        self._before: tuple[float, Sequence[float]] = (-math.inf, ())  # stamp and angles

    def hear(self, values: Sequence[float], stamp_s: float, now_s: float) -> None:
        """Take good angles (rad) of all joints, when they were measured, and when they came."""
        config = self._config
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
        """All motion is to be slow."""
        fast = self._speed_rad_s > _SLOW * self._config.joint_speed_rad_s
        return fast or self.margin_rad < 2.0 * self._config.joint_margin_rad

    @property
    def near(self) -> str:
        """The joint that is so near to a limit that no policy may move the arm; else empty."""
        return self._place() if self.margin_rad < self._config.joint_margin_rad else ""

    @property
    def danger(self) -> str:
        """The joint for which a person has to look at the arm, in words; else empty."""
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
        known = 0.0 < span_s <= _SPAN_S[1]  # else the clock was set, or readings were missing
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
