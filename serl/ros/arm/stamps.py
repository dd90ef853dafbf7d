"""What the instants of a simulation in real time are stamped with."""

from __future__ import annotations

import time
from collections.abc import Callable

_SET_BACK_NS = 50_000_000
"""Further behind the last stamp than this, a wall clock was set back; less far it was trimmed."""


class Stamps:
    """Nanoseconds that never stand still: those of the wall clock, or `speed` times as fast.

    At the speed of real time they agree with other hosts, and follow a wall clock that is set, also
    backwards: stamps from the future are refused by whoever gets them. At any other speed nobody
    agrees with them but who goes by `/clock`, and they go on steadily.

    Args:
        speed: simulated seconds in a second of the wall clock.
        wall_ns: reads the wall clock.
        steady_ns: reads one that nobody sets.
    """

    def __init__(
        self,
        speed: float = 1.0,
        wall_ns: Callable[[], int] = time.time_ns,
        steady_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._speed, self._wall_ns, self._steady_ns = speed, wall_ns, steady_ns
        self._began_ns, self._began_steady_ns = wall_ns(), steady_ns()
        self._last_ns = 0

    def next_ns(self) -> int:
        """The stamp of this instant, which is none of those before."""
        now_ns = self._now_ns()
        if 0 <= self._last_ns - now_ns <= _SET_BACK_NS:
            now_ns = self._last_ns + 1
        self._last_ns = now_ns
        return now_ns

    def _now_ns(self) -> int:
        if self._speed == 1.0:
            return self._wall_ns()
        return self._began_ns + int(self._speed * (self._steady_ns() - self._began_steady_ns))
