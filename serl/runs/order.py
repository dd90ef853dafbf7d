"""The order in which records of a run were accepted, in agreement with its log and checkpoint."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from serl.system.database import DamagedDatabase
from serl.errors import CorruptData
from serl.log.index import Cursors, Index, Span, Stream
from serl.types import Arrival


@dataclass(frozen=True, slots=True)
class Opened:
    """An index that agrees with the log and the checkpoint.

    Attributes:
        index: the order of the accepted records.
        taken: how many of the first of them the checkpoint's learner had taken.
        notices: what a person should know of.
    """

    index: Index
    taken: int
    notices: tuple[str, ...]


def open_index(path: Path, logged: Cursors, taken: Cursors | None = None) -> Opened:
    """Open the index of a run; rebuild it from the log where it is damaged or missing.

    Args:
        path: of the database.
        logged: how many records the log holds.
        taken: how many of them the checkpoint's learner had taken; None without a checkpoint.

    Raises:
        CorruptData: made by another version of serl.
        SerlError: the disk refused.
    """
    notices = []
    held = {stream: min(cursor, logged.get(stream, 0)) for stream, cursor in (taken or {}).items()}
    problem = f"{path} was missing" if taken is not None else ""
    if path.exists():
        try:
            index = Index(path)
        except DamagedDatabase as error:
            problem = f"{error}: kept as {_move_aside(path)}"
        else:
            notices += [
                f"the log of {actor}/{epoch} lost its last {lost} records, which were accepted"
                for (actor, epoch), lost in index.cut(logged).items()
            ]
            if _begins_with(index.spans(), held):
                return Opened(index, sum(held.values()), tuple(notices))
            index.close()
            problem = f"{path} does not fit the checkpoint: kept as {_move_aside(path)}"
    index = Index(path)
    index.rebuild(held, logged)
    if problem:
        notices.append(f"{problem}; rebuilt from the log, {sum(logged.values())} records")
    return Opened(index, sum(held.values()), tuple(notices))


def accepted(
    spans: Sequence[Span], open_stream: Callable[[Stream], Iterator[Arrival]]
) -> Iterator[Arrival]:
    """The records of the spans in order; a stream is open from its first to its last one.

    Raises:
        CorruptData: a stream ends too early.
    """
    last = {span.stream: number for number, span in enumerate(spans)}
    streams: dict[Stream, Iterator[Arrival]] = {}
    for number, span in enumerate(spans):
        if span.stream not in streams:
            streams[span.stream] = open_stream(span.stream)
        for given in range(span.length):
            record = next(streams[span.stream], None)
            if record is None:
                missing = f"{span.actor}/{span.epoch} has no record {span.first + given}"
                raise CorruptData(f"log: {missing}, which was accepted")
            yield record
        if last[span.stream] == number:
            del streams[span.stream]


def _begins_with(spans: Sequence[Span], cursors: Cursors) -> bool:
    """Whether the first records are those before the cursors, whatever their order."""
    left, seen = sum(cursors.values()), Counter[Stream]()
    for span in spans:
        seen[span.stream] += min(span.length, left)
        left -= min(span.length, left)
    return left == 0 and seen == Counter(cursors)


def _move_aside(path: Path) -> Path:
    """Rename a database and what SQLite keeps beside it; returns the new path."""
    for number in count(1):
        aside = path.with_name(f"{path.name}.{number}")
        if not aside.exists():
            break
    for suffix in ("-wal", "-shm", ""):
        beside = path.with_name(path.name + suffix)
        if beside.exists():
            beside.rename(aside.with_name(aside.name + suffix))
    return aside
