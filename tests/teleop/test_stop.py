from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from serl.errors import SerlError
from serl.teleop.stop import RELEASED, StopLatch


def test_a_stop_is_kept_over_restarts_until_it_is_released(tmp_path: Path) -> None:
    path = tmp_path / "stopped"
    StopLatch(path).stop("stopped by the operator")
    for _ in range(3):
        again = StopLatch(path)
        assert again.reason == "stopped by the operator"
    again.release()
    assert StopLatch(path).reason == ""


def test_its_first_reason_is_kept(tmp_path: Path) -> None:
    hold = StopLatch(tmp_path / "stopped")
    hold.stop("first")
    hold.stop("second")
    assert (hold.stopped, StopLatch(tmp_path / "stopped").stopped) == ("first", "first")


def test_released_it_is_paused_and_only_resume_leads_to_motion(tmp_path: Path) -> None:
    hold = StopLatch(tmp_path / "stopped")
    hold.stop("first")
    with pytest.raises(SerlError, match="first: release it first"):
        hold.resume()
    hold.release()
    assert (hold.stopped, hold.reason) == ("", RELEASED)
    hold.resume()
    assert hold.reason == ""


def test_a_release_of_nothing_changes_nothing(tmp_path: Path) -> None:
    hold = StopLatch(tmp_path / "stopped")
    hold.release()
    assert hold.reason == ""
    hold.pause("lunch")
    hold.pause("again")
    hold.release()
    assert hold.reason == "lunch"


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"x" * 5000])
def test_a_damaged_file_is_a_stop(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "stopped").write_bytes(content)
    assert StopLatch(tmp_path / "stopped").stopped


def test_a_stop_holds_though_the_disk_refuses(tmp_path: Path) -> None:
    hold = StopLatch(tmp_path / "missing" / "stopped")
    with pytest.raises(OSError, match="missing"):
        hold.stop("first")
    assert hold.reason == "first"


def counted(hold: StopLatch, acts: dict[int, Callable[[], object]]) -> Callable[[], bool]:
    """Never ending, but at its n-th question something happens."""
    asked = 0

    def ending() -> bool:
        nonlocal asked
        asked += 1
        assert asked < 20, "it waits for ever"
        acts.get(asked, lambda: None)()
        return False

    return ending


def test_between_episodes_it_waits_for_both(tmp_path: Path) -> None:
    hold = StopLatch(tmp_path / "stopped")
    assert not hold.wait(lambda: False, 0.0)
    hold.stop("first")
    assert hold.wait(counted(hold, {3: hold.release, 6: hold.resume}), 0.0)
    assert hold.reason == ""


def test_between_steps_a_stop_ends_the_wait_so_that_the_episode_can_end(tmp_path: Path) -> None:
    hold = StopLatch(tmp_path / "stopped")
    hold.pause("lunch")
    assert not hold.wait_paused(counted(hold, {3: lambda: hold.stop("first")}), 0.0)
    assert hold.stopped == "first"


def test_a_guard_receives_heartbeats_in_a_pause_and_none_in_a_stop(tmp_path: Path) -> None:
    hold, beats = StopLatch(tmp_path / "stopped"), list[str]()
    hold.beat = lambda: beats.append(hold.reason)
    hold.pause("lunch")
    hold.wait_paused(counted(hold, {3: hold.resume}), 0.0)
    assert beats == ["lunch"] * 2 + [""]
    hold.stop("first")
    hold.wait(counted(hold, {3: hold.release, 4: hold.resume}), 0.0)
    assert beats[3:] == [RELEASED, ""]
    hold.wait(lambda: False)
    assert len(beats) == 5


def test_whoever_ends_is_not_held(tmp_path: Path) -> None:
    hold = StopLatch(tmp_path / "stopped")
    hold.stop("first")
    hold.wait(lambda: True, 10.0)
    hold.pause("lunch")
    assert hold.wait_paused(lambda: True, 10.0)


INACTIVE = "its node is not active"
RESTORE = "bring arm and scene to a start, then go on"


@pytest.mark.parametrize("first", ["paused", RESTORE])
def test_who_is_paused_and_then_inactive_does_not_go_on_when_resumed(
    tmp_path: Path, first: str
) -> None:
    hold = StopLatch(tmp_path / "stopped")
    hold.pause(first)
    hold.inactive = INACTIVE
    with pytest.raises(SerlError, match="its node is not active: activate it"):
        hold.resume()
    assert (hold.reason, hold.paused) == (INACTIVE, first)
    hold.inactive = ""
    assert hold.reason == first
    hold.resume()
    assert hold.reason == ""


def test_a_stop_that_is_released_makes_nobody_active(tmp_path: Path) -> None:
    hold = StopLatch(tmp_path / "stopped")
    hold.inactive = INACTIVE
    hold.stop("first")
    assert hold.reason == "first"
    hold.release()
    assert hold.reason == INACTIVE
    with pytest.raises(SerlError, match="activate it"):
        hold.resume()
    hold.inactive = ""
    assert hold.reason == RELEASED


def test_who_was_inactive_from_the_start_has_its_scene_restored(tmp_path: Path) -> None:
    hold = StopLatch(tmp_path / "stopped")
    hold.inactive = INACTIVE
    hold.pause(RESTORE)
    hold.inactive = ""
    assert hold.reason == RESTORE


def test_a_stop_and_its_release_do_not_skip_what_has_to_be_restored(tmp_path: Path) -> None:
    hold = StopLatch(tmp_path / "stopped")
    hold.stop("first")
    hold.pause(RESTORE)
    hold.release()
    assert hold.reason == RESTORE


def test_both_waits_are_for_who_is_not_active(tmp_path: Path) -> None:
    hold = StopLatch(tmp_path / "stopped")

    def activate() -> None:
        hold.inactive = ""

    hold.inactive = INACTIVE
    assert hold.wait(counted(hold, {3: activate}), 0.0)
    hold.inactive = INACTIVE
    assert not hold.wait_paused(counted(hold, {3: activate}), 0.0)
    assert hold.reason == ""
    hold.inactive = INACTIVE
    assert not hold.wait_paused(counted(hold, {3: lambda: hold.stop("first")}), 0.0)
    assert hold.inactive, "a stop ends the wait between steps, not what holds it"
