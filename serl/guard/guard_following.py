"""Whether an arm goes where its setpoint leads it."""

from __future__ import annotations

import math

from serl.guard.checks import is_apart
from serl.guard.config import GuardConfig
from serl.safety import Pose
from serl.stuck import STUCK, STUCK_S

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
