"""Clocks that keep the control rate; no other control code reads the time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol


class Clock(Protocol):
    """A source of time that keeps the control rate."""

    def start(self) -> None:
        """Begin the first period of an episode."""
        ...

    def wait(self) -> None:
        """Block until the next control period begins."""
        ...

    def now_s(self) -> float:
        """Return the monotonic time in seconds."""
        ...


class VirtualClock:
    """Simulated time: a period passes by advancing the simulation.

    Args:
        advance: advances simulated time by seconds (`SimulatedRobot.advance`).
        pace: called before each period; simulated time stands still until it returns (never used
            on a real arm).
    """

    def __init__(
        self,
        advance: Callable[[float], None],
        rate_hz: float,
        pace: Callable[[], None] = lambda: None,
    ) -> None:
        self._advance = advance
        self._period_s = 1.0 / rate_hz
        self._pace = pace

    def start(self) -> None:
        """Do nothing: simulated periods need no alignment."""

    def wait(self) -> None:
        """Advance the simulation by one period."""
        self._pace()
        self._advance(self._period_s)

    def now_s(self) -> float:
        """Return this machine's monotonic time in seconds, for stamps."""
        return time.monotonic()


class RealTime:
    """A pace for `VirtualClock` that limits simulated time to real time while requested.

    Args:
        clock: real-time clock with the control rate of the simulated one.
        is_enabled: called before each period; while True, limits simulated time to real time.
        before: another pace, called first.
    """

    def __init__(
        self,
        clock: Clock,
        is_enabled: Callable[[], bool],
        before: Callable[[], None] = lambda: None,
    ) -> None:
        self._clock, self._is_enabled, self._before = clock, is_enabled, before

    def __call__(self) -> None:
        """Block until the next simulated period may begin."""
        self._before()
        if self._is_enabled():
            self._clock.wait()
        else:
            self._clock.start()


class WallClock:
    """Real time with absolute deadlines, so that delays do not accumulate.

    Args:
        beat: heartbeat, called in each slice of the wait.
        slice_s: longest sleep between heartbeats.

    Attributes:
        beat: the heartbeat.
        periods: number of periods begun so far.
        overruns: number of periods that began late by more than a tenth of a period, because the
            work took long or the machine woke this process late.
    """

    def __init__(
        self,
        rate_hz: float,
        beat: Callable[[], None] = lambda: None,
        slice_s: float = 0.02,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._period_s = 1.0 / rate_hz
        self.beat = beat
        self._slice_s = slice_s
        self._now = now
        self._sleep = sleep
        self._deadline_s = now()
        self.periods = self.overruns = 0

    def start(self) -> None:
        """Begin the first period now."""
        self._deadline_s = self._now()

    def wait(self) -> None:
        """Sleep until the next absolute deadline; count a missed one without catching up."""
        self._deadline_s += self._period_s
        missed_s = self._now() - self._deadline_s
        while (left_s := self._deadline_s - self._now()) > 0:
            self.beat()
            self._sleep(min(left_s, self._slice_s))
        tolerance_s = 0.1 * self._period_s
        self.periods += 1
        self.overruns += self._now() - self._deadline_s > tolerance_s
        if missed_s > tolerance_s:
            self._deadline_s += missed_s
        self.beat()

    def now_s(self) -> float:
        """Return the monotonic time in seconds."""
        return self._now()
