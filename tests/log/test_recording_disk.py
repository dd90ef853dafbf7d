"""Test full, slow and failing disks: appended records are kept and errors are reported."""

from __future__ import annotations

import errno
import logging
import os
import resource
import threading
from collections import namedtuple
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from serl.errors import BadInput, SerlError
from serl.log import episode_log as recording
from serl.log.episode_log import EpisodeLog, LogConfig
from serl.log.episode_reader import PART, read_records
from serl.log.recovery import recover
from serl.testing.samples import (
    BLIND,
    CONFIG,
    EPOCH,
    SPEC,
    encoded,
    open_log,
    random_records,
)
from serl.types import Record

OFTEN = CONFIG.model_copy(update={"interval_s": 0.001})


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """Make writes beyond `size` bytes fail after a partial write, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def append_until_refused(log: EpisodeLog, items: list[Record]) -> int:
    """Append until the first refusal, check that all later ones fail, and count the records."""
    taken = 0
    with suppress(SerlError):
        for item in items:
            log.append(item)
            taken += 1
    for item in items[taken:]:
        with pytest.raises(SerlError, match="the episode ends here"):
            log.append(item)
    return taken


def test_full_disk_raises_and_keeps_appended_records(tmp_path: Path) -> None:
    items = random_records(40, ended=False)
    log = open_log(tmp_path)
    with file_size_limit(12_345):
        taken = append_until_refused(log, items)
    assert 3 < taken < 40
    with pytest.raises(SerlError, match="File too large"):
        log.close()
    assert encoded(list(read_records(tmp_path, SPEC))) == encoded(items[:taken])
    recover(tmp_path)
    assert encoded(list(read_records(tmp_path, SPEC))) == encoded(items[:taken])


class FaultyCall:
    """Operating system call that fails from the `first` to the `last` invocation."""

    def __init__(self, call: str, first: int, last: int = 1 << 30) -> None:
        self.calls = 0
        self.threads: set[int] = set()
        self.reached = threading.Event()
        self._call: Callable[..., object] = getattr(os, call)
        self._first, self._last = first, last

    def __call__(self, *arguments: object) -> object:
        self.calls += 1
        self.threads.add(threading.get_ident())
        if self._first <= self.calls <= self._last:
            self.reached.set()
            raise OSError(errno.EIO, "Input/output error")
        return self._call(*arguments)


@pytest.mark.parametrize("last", ["once", "for good"])
@pytest.mark.parametrize("call", ["open", "writev", "fsync", "fdatasync", "rename"])
def test_failed_system_call_loses_no_appended_record(tmp_path: Path, call: str, last: str) -> None:
    config = CONFIG.model_copy(update={"fsync": "step"})
    items = random_records(3, 2)
    for number in range(1, 100):
        folder = tmp_path / str(number)
        with pytest.MonkeyPatch.context() as patch:
            faulty = FaultyCall(call, number, number if last == "once" else 1 << 30)
            log = open_log(folder, config=config)
            patch.setattr(os, call, faulty)
            taken = append_until_refused(log, items)
            error = ""
            try:
                log.close()
            except SerlError as raised:
                error = str(raised)
        assert ("Input/output error" in error) == (faulty.calls >= number)
        recover(folder)
        found = encoded(list(read_records(folder, SPEC)))
        assert len(found) >= taken
        assert found == encoded(items)[: len(found)]
        if faulty.calls < number:
            assert number > 1
            assert found == encoded(items)
            return
    raise AssertionError("the call never succeeded")


def test_failed_background_sync_ends_log_without_retry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    faulty = FaultyCall("fdatasync", 1)
    monkeypatch.setattr(os, "fdatasync", faulty)
    items = random_records(5000, ended=False, spec=BLIND)
    log = open_log(tmp_path, spec=BLIND, config=OFTEN)
    log.append(items[0])
    assert faulty.reached.wait(10)
    taken = 1 + append_until_refused(log, items[1:])
    assert taken < len(items)
    with pytest.raises(SerlError, match="Input/output error"):
        log.close()
    assert faulty.calls == 1
    assert list(tmp_path.glob(f"*{PART}"))  # the file must not be sealed
    monkeypatch.undo()
    recover(tmp_path)
    assert encoded(read_records(tmp_path, BLIND)) == encoded(items[:taken])


def test_open_file_is_synced_in_background_without_appends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = threading.Event()
    calls: list[int] = []

    def fdatasync(descriptor: int) -> None:
        calls.append(threading.get_ident())
        if len(calls) == 3:
            synced.set()

    monkeypatch.setattr(os, "fdatasync", fdatasync)
    with open_log(tmp_path, config=OFTEN) as log:
        log.append(random_records(1)[0])
        assert synced.wait(10)
    assert threading.get_ident() not in calls


def test_fsync_step_syncs_each_record_before_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = FaultyCall("fdatasync", 1 << 30)
    monkeypatch.setattr(os, "fdatasync", counted)
    with open_log(tmp_path, config=CONFIG.model_copy(update={"fsync": "step"})) as log:
        for number, item in enumerate(random_records(3, 2), start=1):
            log.append(item)
            assert counted.calls == number
    assert counted.threads == {threading.get_ident()}


Disk = namedtuple("Disk", ["f_bavail", "f_frsize", "f_blocks"])


def test_no_episode_begins_on_nearly_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    free = [500]
    monkeypatch.setattr(os, "statvfs", lambda path: Disk(free[0], 1_000_000, 1000))
    config = LogConfig(min_free_bytes=100_000_000)
    items = random_records(2, 2)
    with caplog.at_level(logging.WARNING), open_log(tmp_path, config=config) as log:
        log.append(items[0])
        assert caplog.messages == []
        free[0] = 50
        for item in items[1:3]:
            log.append(item)
        for refused in (log.admit, lambda: log.append(items[3])):
            with pytest.raises(BadInput, match=r"50 MB free.* 100 MB at least .log.min_free_bytes"):
                refused()
        free[0] = 150
        for item in items[3:]:
            log.append(item)
        log.admit()
    assert len(caplog.messages) == 1
    assert "only 150 MB free" in caplog.messages[0]
    assert caplog.messages[0].endswith("below 100 MB")
    assert encoded(read_records(tmp_path, SPEC)) == encoded(items)
    with pytest.raises(BadInput, match="free some space"):
        open_log(tmp_path, EPOCH + 1, config=LogConfig(min_free_bytes=1 << 60))
    open_log(tmp_path, EPOCH + 1).close()


def test_unwritable_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(BadInput, match="cannot write to"):
        open_log(tmp_path / "file")
    with pytest.raises(BadInput, match="cannot write to"):
        open_log(tmp_path / "file" / "log")


def test_new_folders_and_files_are_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        synced.append(os.fstat(descriptor).st_ino)
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    folder = tmp_path / "episodes" / "actor"
    with open_log(folder, config=CONFIG.model_copy(update={"fsync": "step"})) as log:
        assert synced[-2:] == [tmp_path.stat().st_ino, folder.parent.stat().st_ino]
        first, second, *_ = random_records(2)
        log.append(first)
        assert synced[-1] == folder.stat().st_ino
        count = len(synced)
        log.append(second)
        assert len(synced) == count


def test_log_stops_without_blocking_when_seals_hang(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hanging = threading.Event()
    real = os.fsync

    def fsync(descriptor: int) -> None:
        hanging.wait()
        real(descriptor)

    monkeypatch.setattr(recording, "_PATIENCE_S", 0.01)
    items = random_records(*[1] * 12)
    with suppress(SerlError), open_log(tmp_path) as log:
        monkeypatch.setattr(os, "fsync", fsync)
        try:
            taken = append_until_refused(log, items)
            with pytest.raises(SerlError, match="8 episodes wait to be sealed"):
                log.append(items[-1])
        finally:
            hanging.set()
    assert taken >= 2 * 9
    recover(tmp_path)
    assert encoded(list(read_records(tmp_path, SPEC))[:taken]) == encoded(items[:taken])
