"""Power cuts: states that a disk may be in afterwards."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from itertools import cycle
from pathlib import Path
from random import Random
from stat import S_ISDIR
from unittest.mock import patch

from serl.log.episode_log import LogConfig
from serl.log.episode_reader import PART, EpisodeFile, episode_paths
from serl.log.recovery import recover
from serl.testing.samples import encoded
from serl.types import Key

from .logs import EVERY_STEP, append_until_refused, open_log
from .records import episode, keys, records_of
from .registry import REGISTRY, Level

PAGE = 4096


@REGISTRY.fault(
    9,
    "Power cut",
    injected="an open log is cut at every seventh byte of its records, and nothing, 4 KiB of zeros "
    "or 4 KiB of garbage follow; or files created since the last sync of their folder are missing, "
    "and a random half of the pages after the synced bytes of a file is zero",
    required="the records before the cut are read; at most the last second is lost, and with "
    "`fsync: step` nothing is lost",
    level=Level.UNIT,
)
def power_cut(folder: Path) -> None:
    rng = Random(9)
    _cut_everywhere(folder, rng, every=7)
    assert _lost_in_power_cut(folder / "first", EVERY_STEP, rng, 0.0)[0] == 0
    assert _lost_in_power_cut(folder / "step", EVERY_STEP, rng, 1.0)[0] == 0
    interval = LogConfig(interval_s=0.2, min_free_bytes=0)
    for number in range(3):  # a busy disk may delay one attempt; a defect fails all
        lost, oldest_s = _lost_in_power_cut(folder / f"interval{number}", interval, rng, 1.5)
        assert lost > 0
        if oldest_s < 1.0:
            break
    assert oldest_s < 1.0, f"a record of {oldest_s:.2f} s ago was lost"


@REGISTRY.fault(
    9,
    "Power cut",
    injected="an open log is cut at every byte of its records, and nothing, 4 KiB of zeros or "
    "4 KiB of garbage follow",
    required="the records before the cut are read",
    level=Level.SOAK,
)
def power_cut_at_every_byte(folder: Path) -> None:
    _cut_everywhere(folder, Random(9), every=1)


def _cut_everywhere(folder: Path, rng: Random, every: int) -> None:
    with open_log(folder / "whole") as log:
        append_until_refused(log, 1, 2)
    (path,) = episode_paths(folder / "whole")
    data, expected = path.read_bytes(), encoded(episode(0, 2))
    with closing(EpisodeFile(path)) as file:
        file.next_message()
        first = file.offset
    garbage = cycle((b"", bytes(PAGE), rng.randbytes(PAGE)))
    part = folder / f"1-000000{PART}"
    seen = set()
    for cut in (*range(0, first, 7 * every), *range(first, len(data), every)):
        part.write_bytes(data[:cut] + next(garbage))
        found = encoded(records_of(part))
        assert found == expected[: len(found)], cut
        seen.add(len(found))
    assert seen == set(range(len(expected) + 1))


def _lost_in_power_cut(
    folder: Path, config: LogConfig, rng: Random, after_s: float
) -> tuple[int, float]:
    """Return the number of records lost by a power cut within an episode and the oldest's age."""
    appended: list[tuple[Key, float]] = []
    with _noting_syncs() as synced, open_log(folder, config) as log:
        begin_s = time.monotonic()
        for record in (record for number in range(10**6) for record in episode(number, 100)):
            log.append(record)
            appended.append((record.key, time.monotonic()))
            time.sleep(0.002)
            if record.key.index == 50 and time.monotonic() > begin_s + after_s:
                break
        cut_s, survivor = time.monotonic(), synced.survivor(folder, rng)
    recover(survivor)
    found = [key for path in episode_paths(survivor) for key in keys(path)]
    assert found == [key for key, _ in appended[: len(found)]]
    oldest_s = min((at_s for _, at_s in appended[len(found) :]), default=cut_s)
    return len(appended) - len(found), cut_s - oldest_s


class SyncedData:
    """Data guaranteed to be on the disk: bytes of files and names in folders, by inode."""

    def __init__(self) -> None:
        self._bytes: dict[int, int] = {}
        self._names: dict[int, set[str]] = {}

    def note(self, descriptor: int, status: os.stat_result) -> None:
        """Record that a file or folder was synced in its state before the call."""
        if S_ISDIR(status.st_mode):
            self._names[status.st_ino] = set(os.listdir(descriptor))
        else:
            self._bytes[status.st_ino] = status.st_size

    def survivor(self, folder: Path, rng: Random) -> Path:
        """Return a copy of a folder in a state that a power cut may leave."""
        (copy := folder.with_name(f"{folder.name}-cut")).mkdir()
        if folder.name in self._names.get(folder.parent.stat().st_ino, ()):
            for name in sorted(self._names.get(folder.stat().st_ino, ())):
                if (file := folder / name).is_file():
                    (copy / name).write_bytes(self._pages(file, rng))
        return copy

    def _pages(self, file: Path, rng: Random) -> bytes:
        pages, kept = bytearray(file.read_bytes()), self._bytes.get(file.stat().st_ino, 0)
        if kept == len(pages):
            return bytes(pages)
        for start in range(kept, len(pages), PAGE):
            if rng.random() < 0.5:
                pages[start : start + PAGE] = bytes(len(pages[start : start + PAGE]))
        return bytes(pages[: rng.randrange(kept, len(pages) + 1)]) + rng.randbytes(PAGE)


@contextmanager
def _noting_syncs() -> Iterator[SyncedData]:
    synced = SyncedData()

    def noting(real: Callable[[int], None]) -> Callable[[int], None]:
        def sync(descriptor: int) -> None:
            status = os.fstat(descriptor)
            real(descriptor)
            synced.note(descriptor, status)

        return sync

    with (
        patch.object(os, "fsync", noting(os.fsync)),
        patch.object(os, "fdatasync", noting(os.fdatasync)),
    ):
        yield synced
