"""Faults of the disk below an actor's log."""

from __future__ import annotations

import errno
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from random import Random
from unittest.mock import patch

from serl.episodes import PART, EpisodeFile, episode_paths, read_episode
from serl.errors import CorruptData, SerlError
from serl.recording import EpisodeLog, LogConfig
from serl.recovery import recover
from serl.testing.logs import ACTOR, RUN
from serl.types import Key

from .namespaces import inside, make_read_only, mount
from .records import SPEC, episode, keys, write_log
from .refusal import refusal
from .registry import REGISTRY, Level, Recipe
from .strace import inject

PAGE = 4096
SIZES_KB = range(20, 220, 4)
EVERY_STEP = LogConfig(fsync="step", min_free_bytes=0)


def open_log(folder: Path, config: LogConfig = EVERY_STEP, epoch: int = 1) -> EpisodeLog:
    return EpisodeLog(folder, SPEC, RUN, ACTOR, epoch, config)


def append_until_refused(
    log: EpisodeLog, episodes: int = 10**6, steps: int = 20
) -> tuple[int, str]:
    """Append whole episodes; returns how many records the log took, and why not the next one."""
    taken = 0
    for number in range(episodes):
        for record in episode(number, steps):
            if why := refusal(partial(log.append, record)):
                return taken, why
            taken += 1
    return taken, ""


def recovered(folder: Path) -> int:
    """The records that a successor finds, after it checked that none is missing in between."""
    recover(folder)
    found = [key for path in episode_paths(folder) for key in keys(path)]
    expected = (Key(RUN, ACTOR, 1, number // 21, number % 21) for number in range(len(found)))
    assert found == list(expected)
    return len(found)


@REGISTRY.fault(
    9,
    "Power cut",
    injected="open log cut at every byte of its records, with 4 KiB of garbage; and cut back to "
    "what was synced, with a random half of the later pages",
    required="clean prefix; at most the last second is lost, with `fsync: step` nothing",
    level=Level.UNIT,
)
def power_cut(folder: Path) -> None:
    with open_log(folder / "whole") as log:
        append_until_refused(log, 1, 2)
    (path,) = episode_paths(folder / "whole")
    data, expected = path.read_bytes(), keys(path)
    with closing(EpisodeFile(path)) as file:
        file.next_message()
        first = file.offset
    rng = Random(9)
    garbage = rng.randbytes(PAGE)
    part = folder / f"1-000000{PART}"
    seen = set()
    for cut in (*range(0, first, 7), *range(first, len(data))):
        part.write_bytes(data[:cut] + garbage)
        with closing(EpisodeFile(part)) as file:
            found = [file.record(message).key for message in file.prefix()]
        assert found == expected[: len(found)], cut
        seen.add(len(found))
    assert seen == set(range(len(expected) + 1))
    assert _lost_in_power_cut(folder / "step", EVERY_STEP, rng)[0] == 0
    interval = LogConfig(interval_s=0.2, min_free_bytes=0)
    lost, oldest_s = _lost_in_power_cut(folder / "interval", interval, rng)
    assert lost > 0
    assert oldest_s < 1.0, f"a record of {oldest_s:.2f} s ago was lost"


def _lost_in_power_cut(folder: Path, config: LogConfig, rng: Random) -> tuple[int, float]:
    """Records that a power cut in the middle of an episode costs, and the age of the oldest."""
    appended_s = []
    with _noting_syncs() as synced, open_log(folder, config) as log:
        begin_s = time.monotonic()
        for record in episode(0, 10**6):
            log.append(record)
            appended_s.append(time.monotonic())
            time.sleep(0.002)
            if appended_s[-1] > begin_s + 1.0:
                break
        (part,) = folder.glob(f"*{PART}")
        cut_s, kept = time.monotonic(), synced.get(part.stat().st_ino, 0)
        survivor = Path(shutil.copytree(folder, folder.with_name(f"{folder.name}-cut"))) / part.name
    pages = bytearray(survivor.read_bytes())
    for start in range(kept, len(pages), PAGE):
        if rng.random() < 0.5:
            pages[start : start + PAGE] = bytes(len(pages[start : start + PAGE]))
    survivor.write_bytes(pages[: rng.randrange(kept, len(pages) + 1)] + rng.randbytes(PAGE))
    sealed = recover(survivor.parent)
    found = len(keys(sealed[0])) if sealed else 0
    return len(appended_s) - found, cut_s - min(appended_s[found:], default=cut_s)


@contextmanager
def _noting_syncs() -> Iterator[dict[int, int]]:
    """Note up to which byte each file (by inode) is on the disk for sure."""
    synced: dict[int, int] = {}

    def noting(real: Callable[[int], None]) -> Callable[[int], None]:
        def sync(descriptor: int) -> None:
            status = os.fstat(descriptor)
            real(descriptor)
            synced[status.st_ino] = status.st_size

        return sync

    with (
        patch.object(os, "fsync", noting(os.fsync)),
        patch.object(os, "fdatasync", noting(os.fdatasync)),
    ):
        yield synced


@REGISTRY.fault(
    20,
    "Disk full",
    injected="tmpfs of 20 to 216 kB in a namespace, filled: 50 sizes; and one with a reserve",
    required="what was appended is recovered: lost 0; with a reserve: the current episode is "
    "finished, the next one refused with the reason",
    level=Level.COMPONENT,
    needs=(Recipe.NAMESPACES,),
)
def full_disk(folder: Path) -> None:
    inside("logs", "full", folder)


def _fill(folder: Path) -> None:
    for size_kb in SIZES_KB:
        mount(disk := folder / f"{size_kb}", f"size={size_kb}k")
        try:
            log = open_log(disk / ACTOR)
        except SerlError:
            continue  # too small even for that
        taken, why = append_until_refused(log)
        closing_failed = refusal(log.close)
        assert why in closing_failed or "No space" in closing_failed or not closing_failed
        assert "No space left" in why, why
        larger = Path(shutil.copytree(disk / ACTOR, folder / f"{size_kb}-mended"))
        assert recovered(larger) == taken, size_kb
    mount(disk := folder / "reserve", "size=5m")
    with open_log(disk / ACTOR, LogConfig(min_free_bytes=2_000_000)) as log:
        taken, why = append_until_refused(log)
    assert taken % 21 == 0, "an episode was cut"
    assert "min_free_bytes" in why, why
    assert shutil.disk_usage(disk).free > 1_900_000
    assert recovered(disk / ACTOR) == taken


@REGISTRY.fault(
    21,
    "Short write, EIO, fsync EIO",
    injected="system calls wrapped: every write short; the N-th write or fsync fails, every N",
    required="what was appended is recovered: lost 0; after the error nothing more is taken, no "
    "file is synced again",
    level=Level.UNIT,
)
def failing_disk(folder: Path) -> None:
    with patch.object(os, "writev", _short_writev), open_log(folder / "short") as log:
        taken, why = append_until_refused(log, 2)
    assert (taken, why) == (recovered(folder / "short"), "")
    offered = [record for number in range(2) for record in episode(number, 20)]
    for call in ("writev", "fdatasync", "fsync"):
        for number in range(1, 100):
            with _damaged_log(target := folder / f"{call}{number}") as log:
                with _failing(call, number) as calls:
                    taken, why = append_until_refused(log, 2)
                    if why:
                        assert why == refusal(partial(log.append, offered[taken]))
                failed = [inode for name, inode, sound in calls if not sound]
                assert len(failed) <= 1
                again = calls[[sound for *_, sound in calls].index(False) + 1 :] if failed else []
                assert (call, *failed) not in [(name, inode) for name, inode, _ in again]
            assert recovered(target) >= taken, (call, number)
            if not failed:
                break
        assert number > 2, call


@contextmanager
def _damaged_log(folder: Path) -> Iterator[EpisodeLog]:
    """A log that may be unable to close."""
    log = open_log(folder)
    yield log
    assert "Input/output error" in (refusal(log.close) or "Input/output error")


def _short_writev(descriptor: int, pieces: Sequence[bytes]) -> int:
    """Take a third of what is given, as a disk that is nearly full may."""
    data = b"".join(bytes(piece) for piece in pieces)
    return os.write(descriptor, data[: max(1, len(data) // 3)])


@contextmanager
def _failing(call: str, number: int) -> Iterator[list[tuple[str, int, bool]]]:
    """Fail the N-th such call; yields all calls: which, on which inode, with which success."""
    calls: list[tuple[str, int, bool]] = []

    def wrapped(name: str) -> Callable[..., object]:
        real = getattr(os, name)

        def run(descriptor: int, *arguments: object) -> object:
            before = [past for past, *_ in calls].count(call)
            sound = name != call or before + 1 != number
            calls.append((name, os.fstat(descriptor).st_ino, sound))
            if not sound:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return real(descriptor, *arguments)

        return run

    names = ("writev", "fsync", "fdatasync")
    with ExitStack() as stack:
        for name in names:
            stack.enter_context(patch.object(os, name, wrapped(name)))
        yield calls


@REGISTRY.fault(
    21,
    "Short write, EIO, fsync EIO",
    injected="strace: fdatasync fails with EIO, writev with ENOSPC, in an actor's process",
    required="what was appended is recovered: lost 0; the process ends with one line that says why",
    level=Level.COMPONENT,
    needs=(Recipe.STRACE,),
)
def failing_system_calls(folder: Path) -> None:
    for call, error in (("fdatasync", "EIO"), ("writev", "ENOSPC")):
        done = inject(call, f"error={error}:when=30+", "logs", ["append", folder / call])
        taken, _, why = done.stdout.partition(" ")
        assert os.strerror(getattr(errno, error)) in why, done
        assert why.count("\n") == 1
        assert recovered(folder / call) >= int(taken) > 10


@REGISTRY.fault(
    22,
    "Read-only log folder",
    injected="read-only mount in a namespace",
    required="refused before the first episode, with one line that names the folder",
    level=Level.COMPONENT,
    needs=(Recipe.NAMESPACES,),
)
def read_only(folder: Path) -> None:
    inside("logs", "read-only", folder)


def _refuse(folder: Path) -> None:
    existing = folder / "episodes" / ACTOR
    write_log(existing, 1, 3)
    make_read_only(folder)
    for target in (existing, folder / "episodes" / "new"):
        assert str(target) in refusal(partial(open_log, target, epoch=2))
        assert str(target) in refusal(partial(recover, target))
    assert len(read_episode(episode_paths(existing)[0], SPEC).steps) == 3


@REGISTRY.fault(
    23,
    "Bit flip in the log",
    injected="2000 random bits, one at a time, in sealed and in open files",
    required="noticed, and named by file and byte; of an open file the records before it remain",
    level=Level.UNIT,
)
def bit_flip(folder: Path) -> None:
    path = write_log(folder / "sealed", 1, 8)[0]
    expected = keys(path)
    part = folder / f"{path.name.removesuffix('.mcap')}{PART}"
    sealed, open_ = path.read_bytes(), path.read_bytes()[: path.stat().st_size * 2 // 3]
    rng = Random(23)
    for number in range(2000):
        file, data = (path, bytearray(sealed)) if number % 5 else (part, bytearray(open_))
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        file.write_bytes(data)
        if line := refusal(partial(keys, file), CorruptData):
            assert str(file) in line
        else:
            assert file == part, "a flipped bit of a sealed file was not noticed"
            found = keys(file)
            assert found == expected[: len(found)]


if __name__ == "__main__":
    what, where = sys.argv[1], Path(sys.argv[2])
    if what == "append":
        taken, why = append_until_refused(open_log(where), 100)
        sys.stdout.write(f"{taken} {why}\n")
        os._exit(1)  # the log cannot be closed either
    {"full": _fill, "read-only": _refuse}[what](where)
