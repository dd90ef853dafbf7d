"""A gripper that does not do what it is told: noticed before a policy learns from it."""

from __future__ import annotations

import math

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
