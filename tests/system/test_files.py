"""Test that irregular files are refused in one line, and that locks name their owner."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from serl.agents.trunk_weights import load_trunk
from serl.errors import BadInput
from serl.guard.guard import GuardState
from serl.guard.latch import LatchFile
from serl.log.annotations import append_labels, drop_cut_line
from serl.log.episode_reader import read_episode
from serl.log.index import Index, read_index
from serl.log.manifest import read_entries
from serl.log.metrics import read_metrics
from serl.runs.checkpoint import load as load_checkpoint
from serl.runs.deployment import read_trial_results
from serl.system.authentication import load_key
from serl.system.files import (
    FileLock,
    disk_full,
    is_alive,
    new_folder,
    read_bounded,
    sha256_of,
    size_text,
)
from serl.system.json_fields import read_objects
from serl.system.settings_file import read_yaml
from serl.testing.samples import SPEC
from serl.training.link import read_link_status


def make_fifo(path: Path) -> None:
    os.mkfifo(path)


def make_socket(path: Path) -> None:
    """Bind a Unix socket from its own folder, because socket paths must be short."""
    before = Path.cwd()
    os.chdir(path.parent)
    try:
        with closing(socket.socket(socket.AF_UNIX)) as made:
            made.bind(path.name)
    finally:
        os.chdir(before)


def link_endless_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


KINDS: dict[str, Callable[[Path], object]] = {
    "a FIFO": make_fifo,
    "a socket": make_socket,
    "a folder": Path.mkdir,
    "a device": link_endless_device,
}

READERS: dict[str, Callable[[Path], object]] = {
    "x": lambda path: read_bounded(path, 100),
    "y": sha256_of,
    "a.yaml": read_yaml,
    "MANIFEST.jsonl": lambda path: read_entries(path.parent),
    "1-000000.mcap": lambda path: read_episode(path, SPEC),
    "1-000000.part.mcap": lambda path: read_episode(path, SPEC),
    "metrics.jsonl": read_metrics,
    "tools.jsonl": lambda path: list(read_objects(path)),
    "labels.jsonl": drop_cut_line,
    "key": load_key,
    "trunk.safetensors": load_trunk,
    "trials.jsonl": lambda path: read_trial_results(path.parent),
    "MANIFEST.json": lambda path: load_checkpoint(path.parent),
    "index.sqlite": read_index,
    "index": Index,
    "learner.lock": lambda path: FileLock(path, "it"),
}


@pytest.fixture(autouse=True)
def _time_limit() -> Iterator[None]:
    """Interrupt a reader that blocks on a FIFO or reads a device endlessly."""

    def stop(*_: object) -> None:
        raise AssertionError("still reading after 20 s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(20)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("kind", KINDS)
def test_readers_refuse_irregular_file_in_one_line(tmp_path: Path, kind: str) -> None:
    for number, (name, read) in enumerate(READERS.items()):
        path = tmp_path / str(number) / name
        path.parent.mkdir()
        KINDS[kind](path)
        with pytest.raises((BadInput, OSError)) as refusal:
            read(path)
        assert "\n" not in str(refusal.value)
        assert str(path) in str(refusal.value)
        assert path.exists()


@pytest.mark.parametrize("kind", KINDS)
def test_irregular_latch_or_status_file_counts_as_damaged(tmp_path: Path, kind: str) -> None:
    KINDS[kind](tmp_path / "latch")
    assert LatchFile(tmp_path / "latch").read().state is GuardState.ESTOP
    KINDS[kind](tmp_path / "status.json")
    assert read_link_status(tmp_path) is None


def test_labels_are_not_appended_to_fifo(tmp_path: Path) -> None:
    make_fifo(tmp_path / "labels.jsonl")
    with pytest.raises(BadInput, match="FIFO"):
        append_labels(tmp_path, [], "script", 1.0)


def test_lock_waits_until_owner_has_written_its_process_id(
    tmp_path: Path,
) -> None:
    """Test the interval in which the owner has locked the file but not yet written its id."""
    path = tmp_path / "lock"
    path.write_text("999999999\n")  # of an earlier owner, which has ended
    with path.open("r+") as owner:
        fcntl.flock(owner, fcntl.LOCK_EX)
        waited: list[float] = []

        def write_late(seconds: float) -> None:
            waited.append(seconds)
            if len(waited) == 3:
                path.write_text(f"{os.getpid()}\n")

        with pytest.raises(BadInput, match=f"it is in use by process {os.getpid()} "):
            FileLock(path, "it", write_late)
    assert len(waited) == 3


def test_lock_is_acquired_when_owner_ends_without_process_id(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    owner = path.open("w")
    fcntl.flock(owner, fcntl.LOCK_EX)
    with FileLock(path, "it", lambda seconds: owner.close()):
        assert path.read_text() == f"{os.getpid()}\n"


def test_lock_without_process_id_is_refused_after_two_seconds(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    waited: list[float] = []
    with path.open("w") as owner:
        fcntl.flock(owner, fcntl.LOCK_EX)
        with pytest.raises(BadInput, match="in use by process unknown"):
            FileLock(path, "it", waited.append)
    assert sum(waited) == pytest.approx(2.0)


@pytest.mark.parametrize("text", ["", "0", "-1", "x", "9" * 40, "999999999", "\xff"])
def test_damaged_lock_names_no_living_process(tmp_path: Path, text: str) -> None:
    (tmp_path / "lock").write_text(text)
    assert not is_alive(tmp_path / "lock")


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 MB"), (12_400_000, "12 MB"), (1e9, "1.00 GB"), (45.26e9, "45.26 GB")]
)
def test_size_is_in_mb_below_one_gb(count: float, text: str) -> None:
    assert size_text(count) == text


def test_disk_with_free_space_is_not_full(tmp_path: Path) -> None:
    assert disk_full(tmp_path) == ""


@pytest.mark.parametrize("exists", [False, True])
def test_new_folder_appears_whole_or_not_at_all(tmp_path: Path, exists: bool) -> None:
    path = tmp_path / "new"
    if exists:
        path.mkdir()
    dead = (path if exists else tmp_path) / ".new.999999999.tmp"  # no process has this id
    dead.mkdir()
    with pytest.raises(ZeroDivisionError), new_folder(path) as folder:  # noqa: PT012
        (folder / "half").touch()
        raise ZeroDivisionError
    assert [*tmp_path.rglob("*")] == ([path] if exists else [])
    number = path.stat().st_ino if exists else 0
    with new_folder(path) as folder:
        assert folder.name == "new"
        (folder / "one").mkdir()
        (folder / "one/two").touch()
        assert not (path / "one").exists()
    assert {each.name for each in tmp_path.rglob("*")} == {"new", "one", "two"}
    assert not exists or path.stat().st_ino == number, "an empty folder can be a mounted disk"


def test_new_folder_refuses_files_and_folders_that_are_not_empty(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path, problem in (
        (tmp_path, "is not empty, expected a new folder"),
        (tmp_path / "file", "is a file, expected a new folder"),
        (tmp_path / "file/new", "cannot be written: (Not a directory|File exists)"),
    ):
        with pytest.raises(BadInput, match=problem), new_folder(path):
            pass
    assert [each.name for each in tmp_path.iterdir()] == ["file"]
