from __future__ import annotations

import pytest

from serl.guard.monitors import GripperMonitor


def told(closed: bool, opening: float) -> GripperMonitor:
    watch = GripperMonitor()
    watch.begin(not closed)
    watch.command(closed, opening, 10.0)
    return watch


@pytest.mark.parametrize(
    ("closed", "opening", "verb"), [(True, 1.0, "close"), (False, 0.5, "open")]
)
def test_who_does_nothing_for_a_second_is_told_of(closed: bool, opening: float, verb: str) -> None:
    watch = told(closed, opening)
    for now_s in (10.0, 10.5, 10.99):
        watch.command(closed, opening, now_s)  # again and again, as each step does
        assert watch.trouble(opening, now_s) == ""
    assert (
        watch.trouble(opening, 11.0) == f"gripper: commanded to {verb} 1.0 s ago, and does not move"
    )
    watch.begin(closed)
    assert watch.trouble(opening, 12.0) == ""


def test_who_begins_may_stay_at_what_it_grasps() -> None:
    watch = told(True, 1.0)
    assert watch.trouble(0.9, 10.3) == ""
    assert watch.trouble(0.6, 100.0) == ""


def test_who_is_there_already_need_not_move() -> None:
    assert told(True, 0.05).trouble(0.05, 20.0) == ""
    assert told(False, 1.0).trouble(1.0, 20.0) == ""


def test_who_was_found_half_open_may_hold_something_already() -> None:
    assert told(True, 0.62).trouble(0.62, 20.0) == ""
    assert told(False, 0.62).trouble(0.62, 20.0) != "", "nothing is in the way of opening"


def test_who_cannot_be_told_now_has_a_second_from_then_on() -> None:
    watch = told(True, 1.0)
    watch.wait(15.0)
    assert watch.trouble(1.0, 15.9) == ""
    assert watch.trouble(1.0, 16.0) != ""
    fresh = GripperMonitor()
    fresh.wait(3.0)
    assert fresh.trouble(1.0, 100.0) == ""
