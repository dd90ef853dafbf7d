"""When the next control step happens. Only clocks read the time in control code."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol


class Clock(Protocol):
    """Keeps the control rate."""

    def start(self) -> None:
        """An episode starts now."""
        ...

    def wait(self) -> None:
        """Return when the next control period begins."""
        ...

    def now_s(self) -> float:
        """Monotonic seconds."""
        ...


class VirtualClock:
    """Simulated time: a period passes by advancing the simulation.

    Args:
        advance: lets simulated time pass, in seconds (`SimulatedRobot.advance`).
        rate_hz: control rate.
        pace: called before each period; simulated time may stand still for as long as it takes
            (a real arm's never does).
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
        """Nothing to align."""

    def wait(self) -> None:
        """Advance the simulation by one period."""
        self._pace()
        self._advance(self._period_s)

    def now_s(self) -> float:
        """Monotonic seconds of this machine, for stamps."""
        return time.monotonic()


class RealTime:
    """Lets simulated time pass no faster than real time while somebody asks for it: a pace.

    Args:
        clock: keeps real time, at the rate of the simulated one.
        wanted: asked before each period.
        before: another pace, which comes first.
    """

    def __init__(
        self, clock: Clock, wanted: Callable[[], bool], before: Callable[[], None] = lambda: None
    ) -> None:
        self._clock, self._wanted, self._before = clock, wanted, before

    def __call__(self) -> None:
        """Return when the next period may begin."""
        self._before()
        if self._wanted():
            self._clock.wait()
        else:
            self._clock.start()


class WallClock:
    """Real time with absolute deadlines, so that lateness does not add up.

    Args:
        rate_hz: control rate.
        beat: called in each slice of the wait (a heartbeat).
        slice_s: longest sleep between beats.

    Attributes:
        periods: that began so far.
        overruns: those of them that began late by more than a tenth of a period, because the
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
        self._beat = beat
        self._slice_s = slice_s
        self._now = now
        self._sleep = sleep
        self._deadline_s = now()
        self.periods = self.overruns = 0

    def start(self) -> None:
        """The first period begins now."""
        self._deadline_s = self._now()

    def wait(self) -> None:
        """Sleep until the next absolute deadline; a missed one is counted, not caught up."""
        self._deadline_s += self._period_s
        missed_s = self._now() - self._deadline_s
        while (left_s := self._deadline_s - self._now()) > 0:
            self._beat()
            self._sleep(min(left_s, self._slice_s))
        tolerance_s = 0.1 * self._period_s
        self.periods += 1
        self.overruns += self._now() - self._deadline_s > tolerance_s
        if missed_s > tolerance_s:
            self._deadline_s += missed_s
        self._beat()

    def now_s(self) -> float:
        """Monotonic seconds."""
        return self._now()
