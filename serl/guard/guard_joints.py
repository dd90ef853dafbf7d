"""How near the joints of an arm are to their limits, and how fast they turn."""

from __future__ import annotations

import math
from collections.abc import Sequence

from serl.guard.config import GuardConfig

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
