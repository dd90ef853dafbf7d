"""Recovery of an actor's log after a crash or damage: sealing, quarantine, stand-ins for losses."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, suppress
from itertools import count
from pathlib import Path
from typing import NamedTuple

from serl.errors import CorruptData, SerlError
from serl.log.episode_log import lock_log
from serl.log.episode_reader import (
    PART,
    SEALED,
    EpisodeFile,
    EpisodeName,
    count_records,
    episode_exists,
    episode_name,
    episode_paths,
    read_episode,
)
from serl.log.episode_writer import EpisodeWriter
from serl.log.manifest import Entry, append_entry, read_entries
from serl.log.wire import END, encode_lost
from serl.specs import Spec
from serl.system.files import sha256_of, sync
from serl.types import Arrival, Key, LostRecord

QUARANTINE = "quarantine"

ReportLine = Callable[[str], object]
"""A function called with one line of text for each episode that is put aside."""


class LoggedEpisode(NamedTuple):
    """An episode that an actor logged.

    Attributes:
        name: epoch and number of the episode.
        path: path of the episode's file; None when the file is gone.
        records: number of records that the episode holds, or held.
    """

    name: EpisodeName
    path: Path | None
    records: int


def survey(folder: Path, report: ReportLine) -> list[LoggedEpisode]:
    """Return all episodes of a log in order, lost ones included; put damaged ones aside.

    Records are counted, not read, which reveals only some damage.

    Raises:
        CorruptData: an episode cannot be read although it is as it was sealed.
        SerlError: a damaged episode cannot be put aside.
    """
    lost = lost_records(folder)
    found = [_count(path, report) for path in episode_paths(folder)]
    return sorted([*found, *(LoggedEpisode(name, None, records) for name, records in lost.items())])


def read_logged(
    episodes: Iterable[LoggedEpisode], run: str, actor: str, spec: Spec, report: ReportLine
) -> Iterator[Arrival]:
    """Yield the records of logged episodes, one episode at a time; damaged ones are put aside.

    Records of lost episodes are yielded as `LostRecord`.

    Raises:
        CorruptData: an episode cannot be read although it is as it was sealed.
        SpecMismatch: an episode was recorded with another spec; the line names the difference.
        SerlError: a damaged episode cannot be put aside.
    """
    for name, path, records in episodes:
        if path is not None:
            try:
                episode = read_episode(path, spec)
            except CorruptData as error:
                report(quarantine_episode(path, error))
            else:
                yield from episode.steps
                if episode.end is not None:
                    yield episode.end
                continue
        yield from stand_ins(run, actor, name, records)


def encode_losses(
    folder: Path, run: str, actor: str, report: ReportLine, name: EpisodeName
) -> list[bytes]:
    """Return the encoded stand-ins for a lost or damaged episode; empty when it is sound.

    A damaged episode is put aside. Raises as `read_logged`.
    """
    path = name.path(folder, SEALED)
    if path.exists():
        try:
            with closing(EpisodeFile(path, checksum=True)) as file:
                for _ in file.whole():
                    pass
        except CorruptData as error:
            report(quarantine_episode(path, error))
    records = lost_records(folder).get(name, 0)
    return [encode_lost(lost) for lost in stand_ins(run, actor, name, records)]


def stand_ins(run: str, actor: str, name: EpisodeName, records: int) -> Iterator[LostRecord]:
    """Yield one `LostRecord` for each record of an episode that is gone."""
    for index in range(records):
        yield LostRecord(Key(run, actor, name.epoch, name.episode, index), index == records - 1)


def lost_records(folder: Path) -> dict[EpisodeName, int]:
    """Return the episodes that were sealed and are gone, with their numbers of records."""
    return {
        name: max(entry.records for entry in entries)
        for text, entries in read_entries(folder).items()
        if not episode_exists(folder, name := episode_name(Path(text)))
    }


def quarantine_episode(path: Path, error: CorruptData) -> str:
    """Move a damaged sealed episode to `quarantine/`; return a line for the operator.

    Another process may already have moved the file.

    Args:
        path: path of the episode.
        error: why the episode cannot be read.

    Raises:
        CorruptData: `error`, when the episode is as it was sealed: another version made it.
        SerlError: the disk refused.
    """
    try:
        if path.exists():
            digest = sha256_of(path)
            listed = read_entries(path.parent).get(path.name, [])
            if any(entry.sha256 == digest for entry in listed):
                raise error
            if not listed:
                records = _readable(path)
                entry = Entry(path.name, path.stat().st_size, digest, records, False, True)
                append_entry(path.parent, entry)
            move_to_quarantine(path)
    except OSError as cause:
        raise SerlError(f"{error}; it cannot be moved to {QUARANTINE}/: {cause}") from cause
    records = lost_records(path.parent).get(episode_name(path), 0)
    return f"{error}: moved to {QUARANTINE}/, its {records} records are lost"


def move_to_quarantine(path: Path) -> None:
    """Move a file to the `quarantine/` beside it, without replacing an earlier file."""
    folder = path.parent / QUARANTINE
    folder.mkdir(mode=0o700, exist_ok=True)
    names = (folder / (f"{path.name}.{number}" if number else path.name) for number in count())
    path.rename(next(name for name in names if not name.exists()))
    sync(folder)
    sync(path.parent)


def _count(path: Path, report: ReportLine) -> LoggedEpisode:
    name = episode_name(path)
    try:
        return LoggedEpisode(name, path, count_records(path))
    except CorruptData as error:
        report(quarantine_episode(path, error))
    return LoggedEpisode(name, None, lost_records(path.parent).get(name, 0))


def _readable(path: Path) -> int:
    """Return the number of records known to be in a damaged file that is not listed."""
    try:
        return count_records(path)
    except CorruptData:
        with closing(EpisodeFile(path)) as file:
            return sum(1 for _ in file.prefix())


_SCRATCH = ".recovered"


def recover(folder: Path) -> list[Path]:
    """Seal the files that an actor left open when it died: their undamaged beginnings.

    An episode truncated by the crash has no `End`, which its manifest line records. A file of which
    a part had to be left out is kept in `quarantine/`, and so is a file whose predecessor lost its
    end: after a power cut a later file may be on disk without an earlier one. An interrupted
    recovery can be started again without harm.

    Returns:
        The sealed files.

    Raises:
        BadInput: the actor is alive, or the folder cannot be written to.
        SerlError: the disk refused.
    """
    with lock_log(folder):
        try:
            for scratch in folder.glob(f"*{_SCRATCH}"):
                scratch.unlink()
            _list_unlisted(folder)
            parts = sorted(folder.glob(f"*{PART}"), key=episode_name)
            sealed = [path for part in parts if (path := _recover_file(part)) is not None]
        except OSError as error:
            raise SerlError(f"log: cannot recover {folder}: {error}") from error
        return sealed


def _recover_file(part: Path) -> Path | None:
    """Rewrite one file under a temporary name, seal it, then remove the old one.

    Even a complete file is rewritten: the disk may have refused to sync it.
    """
    if not _follows(part):
        move_to_quarantine(part)
        return None
    with closing(EpisodeFile(part)) as source:
        sealed, copied = _rewrite(source)
        whole = copied and (source.sealed or source.offset == part.stat().st_size)
    if whole:
        part.unlink()
        sync(part.parent)
    else:
        move_to_quarantine(part)
    return sealed


def _follows(part: Path) -> bool:
    """Return whether the episode before an open file in its epoch is sealed with its end."""
    name = episode_name(part)
    if name.episode == 0:
        return True
    before = name._replace(episode=name.episode - 1).path(part.parent, SEALED)
    entries = read_entries(part.parent).get(before.name)
    return bool(entries and entries[-1].ended)


def _rewrite(source: EpisodeFile) -> tuple[Path | None, bool]:
    """Copy the undamaged beginning into a sealed file, if there is a record in it.

    Returns:
        The sealed file, and whether all records were copied.
    """
    writer: EpisodeWriter | None = None
    copied = True
    try:
        for message in source.prefix():
            assert source.spec is not None  # the spec precedes the first message
            if writer is None:
                writer = EpisodeWriter(source.path.parent, _SCRATCH, source.metadata, source.spec)
            try:
                writer.copy(message)
            except CorruptData:
                copied = False
                break
    except BaseException:
        if writer is not None:
            writer.discard()
        raise
    if writer is not None and writer.records == 0:
        writer.discard()
        writer = None
    return writer.seal(recovered=True) if writer else None, copied


def _list_unlisted(folder: Path) -> None:
    """Add sealed files that are missing in the manifest to it, if they are sound."""
    listed = read_entries(folder)
    for path in episode_paths(folder):
        if path.name not in listed:
            with suppress(CorruptData), closing(EpisodeFile(path, checksum=True)) as file:
                kinds = [message.kind for message in file.whole()]
                size = path.stat().st_size
                entry = Entry(
                    path.name, size, sha256_of(path), len(kinds), kinds[-1:] == [END], True
                )
                append_entry(folder, entry)
