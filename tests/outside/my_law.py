"""Motion of the controller of `my_arm`, implemented as in its sources."""

from __future__ import annotations

import math
from typing import Any

from serl.ros.testing.laws import PERIOD_S, Array, Law, Read, Tool, tool_of


class Tracker(Law):
    """Follow the target with a lag; hold when no target has come for the timeout."""

    def __init__(self, read: Read, tool: Tool, frame: str) -> None:
        super().__init__(read, tool, frame)
        self._stamp_s = -math.inf

    def receive(self, message: Any, publishers: int) -> None:
        """Take a target in the base frame."""
        stamp = message.header.stamp
        if message.header.frame_id == self._frame:
            self._target, self._stamp_s = (
                tool_of(message.pose),
                stamp.sec + 1e-9 * stamp.nanosec,
            )

    def step(self, tool: Tool, wrench: Array, now_s: float) -> Tool:
        """Return the tool pose after one period of the lag towards the target."""
        if now_s - self._stamp_s > self._read("timeout_s"):
            return tool
        share = 1.0 - math.exp(-PERIOD_S / self._read("time_constant_s"))
        return tool.moved(share * tool.to(self._target))
