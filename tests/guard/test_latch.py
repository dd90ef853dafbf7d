from __future__ import annotations

import os
from pathlib import Path

import pytest

from serl.guard.guard import GuardState
from serl.guard.latch import Latch, LatchFile

STOPS = [
    Latch(GuardState.ESTOP, "a person"),
    Latch(GuardState.PROTECTIVE_STOP, "force 31 N"),
    Latch(),
]


@pytest.mark.parametrize("latch", STOPS)
def test_latch_file_round_trips(latch: Latch, tmp_path: Path) -> None:
    file = LatchFile(tmp_path / "arm.latch")
    file.write(latch)
    assert file.read() == latch


def test_missing_latch_file_reads_as_estop(tmp_path: Path) -> None:
    latch = LatchFile(tmp_path / "arm.latch").read()
    assert latch.state is GuardState.ESTOP
    assert "no latch file" in latch.cause


def test_latch_of_armed_guard_reads_as_protective_stop(tmp_path: Path) -> None:
    file = LatchFile(tmp_path / "arm.latch")
    file.write(Latch(GuardState.HOLD))
    assert file.read() == Latch(GuardState.PROTECTIVE_STOP, "the guard ended while it was armed")


@pytest.mark.parametrize("latch", STOPS)
def test_damaged_latch_file_never_reads_as_disarmed(latch: Latch, tmp_path: Path) -> None:
    path = tmp_path / "arm.latch"
    file = LatchFile(path)
    file.write(latch)
    whole = path.read_bytes()
    damaged = [whole[:end] for end in range(len(whole))]
    damaged += [whole + b"\0", b"\0" * len(whole), whole * 200]
    for place in range(len(whole)):
        for bit in range(8):
            flipped = bytearray(whole)
            flipped[place] ^= 1 << bit
            damaged.append(bytes(flipped))
    for content in damaged:
        path.write_bytes(content)
        assert file.read().state is not GuardState.DISARMED


@pytest.mark.skipif(os.getuid() == 0, reason="root may read everything")
def test_unreadable_latch_file_reads_as_estop(tmp_path: Path) -> None:
    path = tmp_path / "arm.latch"
    LatchFile(path).write(Latch())
    path.chmod(0)
    assert LatchFile(path).read().state is GuardState.ESTOP


def test_latch_file_of_another_user_reads_as_estop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = LatchFile(tmp_path / "latch")
    file.write(Latch())
    owner = os.geteuid()
    monkeypatch.setattr("os.geteuid", lambda: owner + 1)
    if owner == 0:
        os.chown(tmp_path / "latch", 65534, -1)
    assert file.read().state is GuardState.ESTOP
    assert "is of the user" in file.read().cause


def test_latch_cause_is_one_line_of_bounded_length(tmp_path: Path) -> None:
    file = LatchFile(tmp_path / "arm.latch")
    file.write(Latch(GuardState.ESTOP, "two\nlines \ud800 " + "\U0001f916" * 5000))
    latch = file.read()
    assert latch.state is GuardState.ESTOP
    assert latch.cause.startswith("two lines ? ")


def test_latch_write_syncs_file_and_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    fsync = os.fsync

    def record_sync(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", record_sync)
    LatchFile(tmp_path / "arm.latch").write(Latch(GuardState.ESTOP, "test"))
    assert len(synced) == 2
    assert synced[1] == str(tmp_path)
