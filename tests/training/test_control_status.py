from __future__ import annotations

from pathlib import Path

from serl.training.link import ControlStatus, read_control_status, write_status


def test_the_status_comes_back_and_says_what_share_was_late(tmp_path: Path) -> None:
    assert read_control_status(tmp_path) is None
    write_status(tmp_path, ControlStatus(200, 3, 1))
    found = read_control_status(tmp_path)
    assert found == ControlStatus(200, 3, 1)
    assert found.share == 0.015
    assert ControlStatus(0, 0).share == 0.0


def test_a_damaged_one_is_none(tmp_path: Path) -> None:
    for text in (
        b"",
        b"{",
        b'{"periods": 1}',
        b'{"periods": 1, "late": 0, "delayed": true}',
        b"[]" * 3000,
    ):
        (tmp_path / "control.json").write_bytes(text)
        assert read_control_status(tmp_path) is None


def test_a_folder_that_is_gone_stops_nobody(tmp_path: Path) -> None:
    write_status(tmp_path / "gone", ControlStatus(1, 0))
