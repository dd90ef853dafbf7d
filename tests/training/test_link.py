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


def test_link_status_reads_back_as_last_written(tmp_path: Path) -> None:
    assert read_link_status(tmp_path) is None
    for status in (STATUS, STATUS._replace(connected=False)):
        write_status(tmp_path, status)
        assert read_link_status(tmp_path) == status
    assert [path.name for path in tmp_path.iterdir()] == ["status.json"]


def test_outdated_link_status_is_ignored(tmp_path: Path) -> None:
    write_status(tmp_path, STATUS)
    written_s = (tmp_path / "status.json").stat().st_mtime
    assert read_link_status(tmp_path, lambda: written_s + 3.0) == STATUS
    assert read_link_status(tmp_path, lambda: written_s + 5.0) is None


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"acknowledged":-1,"waiting":0,"connected":true}', "1" * 9000]
)
def test_damaged_link_status_is_ignored(tmp_path: Path, text: str) -> None:
    (tmp_path / "status.json").write_text(text)
    assert read_link_status(tmp_path) is None


def test_link_status_is_not_written_to_missing_folder(tmp_path: Path) -> None:
    write_status(tmp_path / "absent", STATUS)
    assert not (tmp_path / "absent").exists()


def test_control_status_reads_back_with_share_of_late_periods(tmp_path: Path) -> None:
    assert read_control_status(tmp_path) is None
    write_status(tmp_path, ControlStatus(200, 3, 1))
    found = read_control_status(tmp_path)
    assert found == ControlStatus(200, 3, 1)
    assert found.share == 0.015
    assert ControlStatus(0, 0).share == 0.0


def test_damaged_control_status_reads_as_none(tmp_path: Path) -> None:
    for text in (
        b"",
        b"{",
        b'{"periods": 1}',
        b'{"periods": 1, "late": 0, "delayed": true}',
        b"[]" * 3000,
    ):
        (tmp_path / "control.json").write_bytes(text)
        assert read_control_status(tmp_path) is None
