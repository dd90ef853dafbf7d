from __future__ import annotations

from itertools import pairwise

import pytest

from serl.clock import VirtualClock, WallClock


class FakeTime:
    """Fake time that passes only by sleeping."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.slept: list[float] = []

    def now(self) -> float:
        return self.now_s

    def sleep(self, duration_s: float) -> None:
        self.slept.append(duration_s)
        self.now_s += duration_s


def wall_clock(time: FakeTime, beats: list[float] | None = None) -> WallClock:
    heartbeats = beats if beats is not None else []
    clock = WallClock(10.0, lambda: heartbeats.append(time.now_s), 0.02, time.now, time.sleep)
    clock.start()
    return clock


def test_wall_clock_periods_are_absolute_despite_work_time() -> None:
    time = FakeTime()
    clock = wall_clock(time)
    for tick, work_s in enumerate([0.0, 0.03, 0.099, 0.05], start=1):
        time.now_s += work_s
        clock.wait()
        assert time.now_s == pytest.approx(100.0 + tick * 0.1)
    assert clock.overruns == 0


def test_missed_deadline_is_counted_and_not_caught_up() -> None:
    time = FakeTime()
    clock = wall_clock(time)
    time.now_s += 0.35
    clock.wait()
    assert (clock.overruns, time.slept) == (1, [])
    clock.wait()
    assert time.now_s == pytest.approx(100.45)
    assert clock.overruns == 1


def test_small_delay_is_caught_up() -> None:
    time = FakeTime()
    clock = wall_clock(time)
    time.now_s += 0.105
    clock.wait()
    clock.wait()
    assert clock.overruns == 0
    assert time.now_s == pytest.approx(100.2)


def test_wall_clock_sends_heartbeat_in_every_slice_of_wait() -> None:
    time = FakeTime()
    beats: list[float] = []
    clock = wall_clock(time, beats)
    clock.wait()
    assert max(time.slept) <= 0.02
    gaps = [later - earlier for earlier, later in pairwise(beats)]
    assert max(gaps) <= 0.02 + 1e-9
    assert beats[-1] == time.now_s


def test_start_ignores_time_between_episodes() -> None:
    time = FakeTime()
    clock = wall_clock(time)
    time.now_s += 60.0
    clock.start()
    clock.wait()
    assert clock.overruns == 0
    assert time.now_s == pytest.approx(160.1)


def test_virtual_clock_advances_simulation() -> None:
    passed: list[float | str] = []
    clock = VirtualClock(passed.append, 20.0, lambda: passed.append("pace"))
    clock.start()
    clock.wait()
    clock.wait()
    assert passed == ["pace", 0.05, "pace", 0.05]


def test_late_wake_up_is_counted_as_overrun() -> None:
    time = FakeTime()
    clock = WallClock(10.0, slice_s=0.1, now=time.now, sleep=lambda s: time.sleep(s + 0.02))
    clock.start()
    clock.wait()
    assert (clock.periods, clock.overruns) == (1, 1)
    time.sleep(0.07)
    clock.wait()
    assert clock.periods == 2
    assert time.now_s == pytest.approx(100.22), "delays add up"
