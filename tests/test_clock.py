from __future__ import annotations

from itertools import pairwise

import pytest

from serl.clock import VirtualClock, WallClock


class Time:
    """Time that passes by sleeping alone."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.slept: list[float] = []

    def now(self) -> float:
        return self.now_s

    def sleep(self, duration_s: float) -> None:
        self.slept.append(duration_s)
        self.now_s += duration_s


def wall_clock(time: Time, beats: list[float] | None = None) -> WallClock:
    heard = beats if beats is not None else []
    clock = WallClock(10.0, lambda: heard.append(time.now_s), 0.02, time.now, time.sleep)
    clock.start()
    return clock


def test_periods_are_absolute_whatever_the_work_takes() -> None:
    time = Time()
    clock = wall_clock(time)
    for tick, work_s in enumerate([0.0, 0.03, 0.099, 0.05], start=1):
        time.now_s += work_s
        clock.wait()
        assert time.now_s == pytest.approx(100.0 + tick * 0.1)
    assert clock.overruns == 0


def test_a_missed_deadline_is_counted_and_not_caught_up() -> None:
    time = Time()
    clock = wall_clock(time)
    time.now_s += 0.35
    clock.wait()
    assert (clock.overruns, time.slept) == (1, [])
    clock.wait()
    assert time.now_s == pytest.approx(100.45)
    assert clock.overruns == 1


def test_a_little_lateness_is_made_up_for() -> None:
    time = Time()
    clock = wall_clock(time)
    time.now_s += 0.105
    clock.wait()
    clock.wait()
    assert clock.overruns == 0
    assert time.now_s == pytest.approx(100.2)


def test_it_beats_in_every_slice_of_the_wait() -> None:
    time = Time()
    beats: list[float] = []
    clock = wall_clock(time, beats)
    clock.wait()
    assert max(time.slept) <= 0.02
    gaps = [later - earlier for earlier, later in pairwise(beats)]
    assert max(gaps) <= 0.02 + 1e-9
    assert beats[-1] == time.now_s


def test_start_forgets_the_time_between_episodes() -> None:
    time = Time()
    clock = wall_clock(time)
    time.now_s += 60.0
    clock.start()
    clock.wait()
    assert clock.overruns == 0
    assert time.now_s == pytest.approx(160.1)


def test_virtual_time_passes_by_advancing_the_simulation() -> None:
    passed: list[float | str] = []
    clock = VirtualClock(passed.append, 20.0, lambda: passed.append("pace"))
    clock.start()
    clock.wait()
    clock.wait()
    assert passed == ["pace", 0.05, "pace", 0.05]


def test_a_machine_that_wakes_the_process_late_is_counted_too() -> None:
    time = Time()
    clock = WallClock(10.0, slice_s=0.1, now=time.now, sleep=lambda s: time.sleep(s + 0.02))
    clock.start()
    clock.wait()
    assert (clock.periods, clock.overruns) == (1, 1)
    time.sleep(0.07)
    clock.wait()
    assert clock.periods == 2
    assert time.now_s == pytest.approx(100.22), "lateness does not add up"
