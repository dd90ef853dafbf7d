from __future__ import annotations

import pytest

from serl.guard.monitors import GripperMonitor


def commanded_monitor(closed: bool, opening: float) -> GripperMonitor:
    watch = GripperMonitor()
    watch.begin(not closed)
    watch.command(closed, opening, 10.0)
    return watch


@pytest.mark.parametrize(
    ("closed", "opening", "verb"), [(True, 1.0, "close"), (False, 0.5, "open")]
)
def test_gripper_without_motion_for_one_second_is_reported(
    closed: bool, opening: float, verb: str
) -> None:
    watch = commanded_monitor(closed, opening)
    for now_s in (10.0, 10.5, 10.99):
        watch.command(closed, opening, now_s)  # repeated, as in each control step
        assert watch.trouble(opening, now_s) == ""
    assert (
        watch.trouble(opening, 11.0) == f"gripper: commanded to {verb} 1.0 s ago, and does not move"
    )
    watch.begin(closed)
    assert watch.trouble(opening, 12.0) == ""


def test_gripper_that_moved_may_stop_at_grasped_object() -> None:
    watch = commanded_monitor(True, 1.0)
    assert watch.trouble(0.9, 10.3) == ""
    assert watch.trouble(0.6, 100.0) == ""


def test_gripper_already_at_target_need_not_move() -> None:
    assert commanded_monitor(True, 0.05).trouble(0.05, 20.0) == ""
    assert commanded_monitor(False, 1.0).trouble(1.0, 20.0) == ""


def test_half_open_gripper_may_hold_object_when_closing() -> None:
    assert commanded_monitor(True, 0.62).trouble(0.62, 20.0) == ""
    assert commanded_monitor(False, 0.62).trouble(0.62, 20.0) != "", "no object blocks opening"


def test_gripper_deadline_restarts_after_wait() -> None:
    watch = commanded_monitor(True, 1.0)
    watch.wait(15.0)
    assert watch.trouble(1.0, 15.9) == ""
    assert watch.trouble(1.0, 16.0) != ""
    fresh = GripperMonitor()
    fresh.wait(3.0)
    assert fresh.trouble(1.0, 100.0) == ""
