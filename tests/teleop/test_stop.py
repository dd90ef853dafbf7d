from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from serl.errors import SerlError
from serl.teleop.stop import RELEASED, StopLatch


def test_stop_persists_across_restarts_until_release(tmp_path: Path) -> None:
    path = tmp_path / "stopped"
    StopLatch(path).stop("stopped by the operator")
    for _ in range(3):
        again = StopLatch(path)
        assert again.reason == "stopped by the operator"
    again.release()
    assert StopLatch(path).reason == ""


def test_stop_latch_keeps_first_reason(tmp_path: Path) -> None:
    latch = StopLatch(tmp_path / "stopped")
    latch.stop("first")
    latch.stop("second")
    assert (latch.stopped, StopLatch(tmp_path / "stopped").stopped) == ("first", "first")


def test_released_stop_is_pause_until_resume(tmp_path: Path) -> None:
    latch = StopLatch(tmp_path / "stopped")
    latch.stop("first")
    with pytest.raises(SerlError, match="first: release it first"):
        latch.resume()
    latch.release()
    assert (latch.stopped, latch.reason) == ("", RELEASED)
    latch.resume()
    assert latch.reason == ""


def test_release_without_stop_changes_nothing(tmp_path: Path) -> None:
    latch = StopLatch(tmp_path / "stopped")
    latch.release()
    assert latch.reason == ""
    latch.pause("lunch")
    latch.pause("again")
    latch.release()
    assert latch.reason == "lunch"


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"x" * 5000])
def test_damaged_stop_file_counts_as_stop(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "stopped").write_bytes(content)
    assert StopLatch(tmp_path / "stopped").stopped


def test_stop_holds_even_if_file_cannot_be_written(tmp_path: Path) -> None:
    latch = StopLatch(tmp_path / "missing" / "stopped")
    with pytest.raises(OSError, match="missing"):
        latch.stop("first")
    assert latch.reason == "first"


def test_stop_whose_file_could_not_be_written_is_stored_by_the_next(tmp_path: Path) -> None:
    latch = StopLatch(tmp_path / "link" / "stopped")
    for _ in range(2):
        with pytest.raises(OSError, match="stopped"):
            latch.stop("first")
    latch.path.parent.mkdir()
    latch.stop("second")
    assert StopLatch(latch.path).stopped == latch.stopped == "first"


def test_stop_whose_file_cannot_be_removed_is_not_released(tmp_path: Path) -> None:
    (tmp_path / "stopped").mkdir()
    latch = StopLatch(tmp_path / "stopped")
    with pytest.raises(SerlError, match="not released: "):
        latch.release()
    assert latch.stopped


def run_actions_at(
    latch: StopLatch, actions: dict[int, Callable[[], object]]
) -> Callable[[], bool]:
    """Return an end check that is always false and runs an action at its n-th call."""
    calls = 0

    def is_ending() -> bool:
        nonlocal calls
        calls += 1
        assert calls < 20, "the wait does not end"
        actions.get(calls, lambda: None)()
        return False

    return is_ending


def test_wait_between_episodes_needs_release_and_resume(tmp_path: Path) -> None:
    latch = StopLatch(tmp_path / "stopped")
    assert not latch.wait(lambda: False, 0.0)
    latch.stop("first")
    assert latch.wait(run_actions_at(latch, {3: latch.release, 6: latch.resume}), 0.0)
    assert latch.reason == ""


def test_pause_of_an_arm_persists_across_restarts_until_resume(tmp_path: Path) -> None:
    def started() -> StopLatch:
        latch = StopLatch(tmp_path / "stopped")
        assert not latch.reason, "in a simulation nobody is beside the arm"
        latch.keep_pauses(is_real=True)
        return latch

    started().pause("the part is out of reach")
    latch = started()
    assert latch.reason == "the part is out of reach"
    latch.resume()
    latch = started()
    assert not latch.reason
    latch.stop("first")
    latch.release()
    assert started().reason == RELEASED, "the arm would move before it is resumed"


def test_stop_ends_wait_between_steps(tmp_path: Path) -> None:
    latch = StopLatch(tmp_path / "stopped")
    latch.pause("lunch")
    assert not latch.wait_paused(run_actions_at(latch, {3: lambda: latch.stop("first")}), 0.0)
    assert latch.stopped == "first"


def test_heartbeats_continue_in_pause_but_not_in_stop(tmp_path: Path) -> None:
    latch, beats = StopLatch(tmp_path / "stopped"), list[str]()
    latch.beat = lambda: beats.append(latch.reason)
    latch.pause("lunch")
    latch.wait_paused(run_actions_at(latch, {3: latch.resume}), 0.0)
    assert beats == ["lunch"] * 2 + [""]
    latch.stop("first")
    latch.wait(run_actions_at(latch, {3: latch.release, 4: latch.resume}), 0.0)
    assert beats[3:] == [RELEASED, ""]
    latch.wait(lambda: False)
    assert len(beats) == 5


def test_wait_returns_when_actor_ends(tmp_path: Path) -> None:
    latch = StopLatch(tmp_path / "stopped")
    latch.stop("first")
    latch.wait(lambda: True, 10.0)
    latch.pause("lunch")
    assert latch.wait_paused(lambda: True, 10.0)


INACTIVE = "its node is not active"
RESTORE = "bring arm and scene to a start"


@pytest.mark.parametrize("first", ["paused", RESTORE])
def test_inactive_latch_cannot_resume_and_keeps_earlier_pause(tmp_path: Path, first: str) -> None:
    latch = StopLatch(tmp_path / "stopped")
    latch.pause(first)
    latch.inactive = INACTIVE
    with pytest.raises(SerlError, match="its node is not active: activate it"):
        latch.resume()
    assert (latch.reason, latch.paused) == (INACTIVE, first)
    latch.inactive = ""
    assert latch.reason == first
    latch.resume()
    assert latch.reason == ""


def test_released_stop_does_not_activate_inactive_latch(tmp_path: Path) -> None:
    latch = StopLatch(tmp_path / "stopped")
    latch.inactive = INACTIVE
    latch.stop("first")
    assert latch.reason == "first"
    latch.release()
    assert latch.reason == INACTIVE
    with pytest.raises(SerlError, match="activate it"):
        latch.resume()
    latch.inactive = ""
    assert latch.reason == RELEASED


def test_latch_inactive_from_start_keeps_request_to_restore_scene(tmp_path: Path) -> None:
    latch = StopLatch(tmp_path / "stopped")
    latch.inactive = INACTIVE
    latch.pause(RESTORE)
    latch.inactive = ""
    assert latch.reason == RESTORE


def test_release_of_stop_keeps_request_to_restore_scene(tmp_path: Path) -> None:
    latch = StopLatch(tmp_path / "stopped")
    latch.stop("first")
    latch.pause(RESTORE)
    latch.release()
    assert latch.reason == RESTORE


def test_both_waits_last_while_latch_is_inactive(tmp_path: Path) -> None:
    latch = StopLatch(tmp_path / "stopped")

    def activate() -> None:
        latch.inactive = ""

    latch.inactive = INACTIVE
    assert latch.wait(run_actions_at(latch, {3: activate}), 0.0)
    latch.inactive = INACTIVE
    assert not latch.wait_paused(run_actions_at(latch, {3: activate}), 0.0)
    assert latch.reason == ""
    latch.inactive = INACTIVE
    assert not latch.wait_paused(run_actions_at(latch, {3: lambda: latch.stop("first")}), 0.0)
    assert latch.inactive, "a stop activated the latch"
