"""Faults of the disk below an actor's log."""

from __future__ import annotations

import errno
import logging
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from random import Random
from threading import Lock
from unittest.mock import patch

from serl.errors import CorruptData, SerlError
from serl.log.episode_log import EpisodeLog, LogConfig
from serl.log.episode_reader import PART, episode_paths, read_episode
from serl.log.index import Index
from serl.log.recovery import recover
from serl.testing.samples import ACTOR, RUN
from serl.types import Key

from .namespaces import inside, make_read_only, mount
from .records import SPEC, episode, keys, write_log
from .refusal import refusal
from .registry import REGISTRY, Level, Recipe
from .strace import inject

SIZES_KB = range(20, 220, 4)
FEW_SIZES_KB = SIZES_KB[::10]
EVERY_STEP = LogConfig(fsync="step", min_free_bytes=0)
LONG, SHORT = 20, 6
"""Numbers of steps of an episode."""


def open_log(folder: Path, config: LogConfig = EVERY_STEP, epoch: int = 1) -> EpisodeLog:
    return EpisodeLog(folder, SPEC, RUN, ACTOR, epoch, config)


def append_until_refused(
    log: EpisodeLog, episodes: int = 10**6, steps: int = LONG
) -> tuple[int, str]:
    """Append episodes until the log refuses; return the accepted count and the refusal."""
    taken = 0
    for number in range(episodes):
        for record in episode(number, steps):
            if why := refusal(partial(log.append, record)):
                return taken, why
            taken += 1
    return taken, ""


def recovered(folder: Path, steps: int = LONG) -> int:
    """Recover the log; check that it has no gap and return the number of records."""
    recover(folder)
    found = [key for path in episode_paths(folder) for key in keys(path)]
    places = (divmod(number, steps + 1) for number in range(len(found)))
    assert found == [Key(RUN, ACTOR, 1, *place) for place in places]
    return len(found)


@REGISTRY.fault(
    20,
    "Disk full",
    injected=f"a tmpfs of 20 to 216 kB in a namespace is filled, {len(FEW_SIZES_KB)} sizes; one "
    "with reserved space",
    required="all appended records are recovered: lost 0; with reserved space: a warning at twice "
    "that space or at 10 % free space, then the current episode is finished, and the next one is "
    "refused with the reason",
    level=Level.COMPONENT,
    needs=(Recipe.NAMESPACES,),
)
def full_disk(folder: Path) -> None:
    inside("logs", "full", folder)


@REGISTRY.longer(full_disk, injected=f"{len(SIZES_KB)} sizes")
def full_disks(folder: Path) -> None:
    inside("logs", "all-full", folder)


def _fill(sizes_kb: Sequence[int], folder: Path) -> None:
    for size_kb in sizes_kb:
        mount(disk := folder / f"{size_kb}", f"size={size_kb}k")
        try:
            log = open_log(disk / ACTOR)
        except SerlError:
            continue  # the disk is too small even for the log's start
        taken, why = append_until_refused(log)
        closing_failed = refusal(log.close)
        assert why in closing_failed or "No space" in closing_failed or not closing_failed
        assert "No space left" in why, why
        needs = refusal(partial(recover, disk / ACTOR))  # a recovery may need more space
        assert "No space left" in needs or not needs
        larger = Path(shutil.copytree(disk / ACTOR, folder / f"{size_kb}-mended"))
        # the refused record may have fitted on the disk except for its index
        assert recovered(larger) in (taken, taken + 1), size_kb
    _fill_to_the_reserve(folder)


def _fill_to_the_reserve(folder: Path) -> None:
    mount(disk := folder / "reserve", "size=3m")
    warned_at: list[int] = []

    def note(record: logging.LogRecord) -> bool:
        warned_at.append(shutil.disk_usage(disk).free)
        return False

    logging.getLogger("serl.log.episode_log").addFilter(note)
    with open_log(disk / ACTOR, LogConfig(min_free_bytes=600_000)) as log:
        taken, why = append_until_refused(log)
    assert taken % 21 == 0, "an episode was cut"
    assert "min_free_bytes" in why, why
    # an episode takes 25 kB, and more blocks if its records are written at more times
    assert shutil.disk_usage(disk).free > 550_000
    (free,) = warned_at
    assert 1_150_000 < free < 1_200_000
    assert recovered(disk / ACTOR) == taken


@REGISTRY.fault(
    20,
    "Disk of the learner full",
    injected="a tmpfs of 300 and 600 kB in a namespace is filled by the learner's index",
    required="one line names the full disk and its free space; accepted records are in the "
    "index; the learner continues once there is space",
    level=Level.COMPONENT,
    needs=(Recipe.NAMESPACES,),
)
def full_disk_of_the_learner(folder: Path) -> None:
    inside("logs", "full-index", folder)


def _fill_with_an_index(folder: Path) -> None:
    for size_kb in (300, 600):
        mount(disk := folder / f"{size_kb}", f"size={size_kb}k")
        index, taken, why = Index(disk / "index.sqlite"), 0, ""
        while not why:
            for record in episode(taken // 21, 20):
                if why := refusal(partial(index.accept, [record])):
                    break
                taken += 1
        assert why.startswith(f"{disk / 'index.sqlite'}: the disk of {disk} is full, 0.0 MB"), why
        assert index.cursors == {(ACTOR, 1): taken}
        larger = Path(shutil.copytree(disk, folder / f"{size_kb}-mended"))
        with Index(larger / "index.sqlite") as mended:
            assert mended.cursors == {(ACTOR, 1): taken}
            mended.accept(list(episode(taken // 21, 20))[taken % 21 :])
        index.close()
        with suppress(OSError), (disk / "filler").open("wb", buffering=0) as filler:
            while filler.write(bytes(4096)):
                pass
        assert "is full" in refusal(partial(Index, disk / "index.sqlite"))


@REGISTRY.fault(
    21,
    "Short write, EIO at a write or an fsync",
    injected="wrapped system calls: every write is short; the N-th write or fsync fails, for "
    "every N",
    required="all appended records are recovered: lost 0; after the error no record is accepted "
    "and no file is synced again",
    level=Level.UNIT,
)
def failing_disk(folder: Path) -> None:
    with patch.object(os, "writev", _short_writev), open_log(folder / "short") as log:
        taken, why = append_until_refused(log, 2)
    assert (taken, why) == (recovered(folder / "short"), "")
    offered = [record for number in range(2) for record in episode(number, SHORT)]
    for call in ("writev", "fdatasync", "fsync"):
        for number in range(1, 100):
            with _damaged_log(target := folder / f"{call}{number}") as log:
                with _failing(call, number) as calls:
                    taken, why = append_until_refused(log, 2, SHORT)
                    if why:
                        assert why == refusal(partial(log.append, offered[taken]))
                its = target.stat().st_ino  # a folder has no data that a second sync could miss
                failed = [inode for name, inode, sound in calls if not sound]
                assert len(failed) <= 1
                again = calls[[sound for *_, sound in calls].index(False) + 1 :] if failed else []
                synced = [(name, inode) for name, inode, _ in again if inode != its]
                assert (call, *failed) not in synced
            assert recovered(target, SHORT) >= taken, (call, number)
            if not failed:
                break
        assert number > 2, call


@contextmanager
def _damaged_log(folder: Path) -> Iterator[EpisodeLog]:
    """Yield a log and tolerate a failure to close it."""
    log = open_log(folder)
    yield log
    assert "Input/output error" in (refusal(log.close) or "Input/output error")


def _short_writev(descriptor: int, pieces: Sequence[bytes]) -> int:
    """Write a third of the data, as a nearly full disk may."""
    data = b"".join(bytes(piece) for piece in pieces)
    return os.write(descriptor, data[: max(1, len(data) // 3)])


@contextmanager
def _failing(call: str, number: int) -> Iterator[list[tuple[str, int, bool]]]:
    """Fail the N-th call; yield the list of all calls as (name, inode, success)."""
    calls: list[tuple[str, int, bool]] = []
    counting = Lock()  # the log's own thread makes these calls too

    def wrapped(name: str) -> Callable[..., object]:
        real = getattr(os, name)

        def run(descriptor: int, *arguments: object) -> object:
            with counting:
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
    "Short write, EIO at a write or an fsync",
    injected="strace: fdatasync fails with EIO, writev with ENOSPC, in an actor's process",
    required="all appended records are recovered: lost 0; the process ends with one line that "
    "names the reason",
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
    injected="500 random bits, one at a time, in sealed and in open files",
    required="detected, and the message names file and byte; in an open file the records before "
    "the byte are read",
    level=Level.UNIT,
)
def bit_flip(folder: Path) -> None:
    _flip(folder, 500)


@REGISTRY.longer(bit_flip, injected="5,000 random bits")
def bit_flips(folder: Path) -> None:
    _flip(folder, 5000)


def _flip(folder: Path, times: int) -> None:
    path = write_log(folder / "sealed", 1, 8)[0]
    expected = keys(path)
    part = folder / f"{path.name.removesuffix('.mcap')}{PART}"
    sealed, open_ = path.read_bytes(), path.read_bytes()[: path.stat().st_size * 2 // 3]
    rng = Random(23)
    for number in range(times):
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
        os._exit(1)  # the log cannot be closed
    acts: dict[str, Callable[[Path], None]] = {
        "full": partial(_fill, FEW_SIZES_KB),
        "all-full": partial(_fill, SIZES_KB),
        "full-index": _fill_with_an_index,
        "read-only": _refuse,
    }
    acts[what](where)
