from __future__ import annotations

from pathlib import Path

import pytest

from serl.training.link import (
    ControlStatus,
    LinkStatus,
    read_control_status,
    read_link_status,
    write_status,
)

STATUS = LinkStatus(acknowledged=1234, waiting=3, connected=True)


def test_a_status_is_read_as_it_was_told_last(tmp_path: Path) -> None:
    assert read_link_status(tmp_path) is None
    for status in (STATUS, STATUS._replace(connected=False)):
        write_status(tmp_path, status)
        assert read_link_status(tmp_path) == status
    assert [path.name for path in tmp_path.iterdir()] == ["status.json"]


def test_an_old_status_counts_for_nothing(tmp_path: Path) -> None:
    write_status(tmp_path, STATUS)
    told_s = (tmp_path / "status.json").stat().st_mtime
    assert read_link_status(tmp_path, lambda: told_s + 3.0) == STATUS
    assert read_link_status(tmp_path, lambda: told_s + 5.0) is None


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"acknowledged":-1,"waiting":0,"connected":true}', "1" * 9000]
)
def test_a_damaged_status_counts_for_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / "status.json").write_text(text)
    assert read_link_status(tmp_path) is None


def test_a_status_that_cannot_be_written_is_left_out(tmp_path: Path) -> None:
    write_status(tmp_path / "absent", STATUS)
    assert not (tmp_path / "absent").exists()


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
