"""The index of the records that the learner accepted, in their order: `index.sqlite` of a run.

The order makes learning repeatable: replay is rebuilt, and learning continues, in this order. The
index is a cache: a missing one is rebuilt from the episode files. It also keeps a checksum of each
accepted record, for `serl verify`; a rebuilt index, or one of format 1, lacks them.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from typing import NamedTuple, Self

from serl.errors import BadInput, CorruptData
from serl.log.content import CHECKSUM, ChecksumBlock, add_checksum
from serl.system.database import (
    BESIDE,
    DamagedDatabase,
    check,
    connect,
    limited_work,
    read_rows,
    schema_of,
    sqlite_error,
)
from serl.system.files import checked_name, sync
from serl.types import Arrival, place_after

Stream = tuple[str, int]
"""An actor's name and one of its epochs; a record's ordinal in a stream is its sequence number."""

Cursors = Mapping[Stream, int]
"""The sequence number of the first record that is not held, by stream."""

FORMAT = 2
_ORDER = """
CREATE TABLE span (
    id INTEGER PRIMARY KEY, actor TEXT NOT NULL, epoch INTEGER NOT NULL,
    first INTEGER NOT NULL, length INTEGER NOT NULL,
    next_episode INTEGER, next_step INTEGER  -- what follows it; NULL when it is not known
) STRICT;
CREATE TABLE home (
    actor TEXT PRIMARY KEY, home TEXT NOT NULL, place TEXT NOT NULL
) STRICT;
"""
_CONTENT = f"""
CREATE TABLE content (
    actor TEXT NOT NULL, epoch INTEGER NOT NULL, first INTEGER NOT NULL,
    cameras TEXT NOT NULL,  -- names of the images that the checksums are of, one a line
    checksums BLOB NOT NULL,  -- of the records from `first` on, 8 bytes each
    PRIMARY KEY (actor, epoch, first)
) STRICT, WITHOUT ROWID;
PRAGMA user_version = {FORMAT};
"""
_SCHEMAS = {1: schema_of(_ORDER), FORMAT: schema_of(_ORDER + _CONTENT)}
_SPANS = "SELECT actor, epoch, first, length FROM span ORDER BY id"


class Span(NamedTuple):
    """`length` records of one stream from the sequence number `first` on, accepted in a row."""

    actor: str
    epoch: int
    first: int
    length: int

    @property
    def stream(self) -> Stream:
        """The stream of the records."""
        return self.actor, self.epoch


class _Place(NamedTuple):
    """The position of a stream: its records so far, and episode and step of the next record.

    The episode is None when it is unknown, after a rebuild.
    """

    length: int = 0
    episode: int | None = 0
    step: int = 0

    def after(self, record: Arrival) -> _Place:
        """Return the position after the record; raise `BadInput` if it is not the next one."""
        key, expected = record.key, (self.episode, self.step)
        found = key.episode, key.index
        if self.episode is not None and found != expected:
            stream = f"{key.actor}/{key.epoch}"
            raise BadInput(f"index: expected record {expected} of {stream}, got {found}")
        return _Place(self.length + 1, *place_after(record))


class Index:
    """The accepted records as spans, and the home of each actor; every change is durable at once.

    `claim` and the cursors may be used from any thread, all else from one thread alone.

    Args:
        path: file of the database; made if absent.

    Raises:
        DamagedDatabase: the database is damaged; it can be rebuilt, see `open_index`.
        CorruptData: the database was made by another version of serl.
        SerlError: the disk refused.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = Lock()
        if not path.exists():
            _make(path)
        self._places: dict[Stream, _Place] = {}
        # The last row of checksums of each stream, since the start.
        self._blocks: dict[Stream, ChecksumBlock] = {}
        self._last = (0, Span("", 0, 0, 0))
        try:
            self._database = connect(path)
            with ExitStack() as on_error, limited_work(self._database, path):
                on_error.callback(self.close)
                self._prepare()
                self._load()
                self._homes = {
                    actor: (home, place)
                    for actor, home, place in read_rows(self._database, path, "SELECT * FROM home")
                }
                on_error.pop_all()
        except sqlite3.OperationalError as error:
            raise sqlite_error(path, error) from error
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
            raise DamagedDatabase(f"{path}: {error}") from error

    @property
    def cursors(self) -> dict[Stream, int]:
        """The number of accepted records of each stream."""
        with self._lock:
            return {stream: place.length for stream, place in self._places.items()}

    @property
    def places(self) -> dict[Stream, tuple[int, int]]:
        """Episode and step of the next record, for each stream where they are known."""
        with self._lock:
            return {
                stream: (place.episode, place.step)
                for stream, place in self._places.items()
                if place.episode is not None
            }

    def spans(self) -> list[Span]:
        """Return the accepted records as spans, in the order of acceptance."""
        return [Span(*row) for row in self._database.execute(_SPANS).fetchall()]

    def accept(self, records: Sequence[Arrival]) -> None:
        """Append records to the order, all or none; they are on disk when this returns.

        Raises:
            BadInput: a record is not the next one of its stream; nothing was accepted.
            SerlError: the disk refused; nothing was accepted.
        """
        places: dict[Stream, _Place] = {}
        spans: list[Span] = []
        blocks: dict[Stream, list[ChecksumBlock]] = {}
        for record in records:
            stream = record.key.actor, record.key.epoch
            before = places.get(stream) or self._places.get(stream, _Place())
            places[stream] = before.after(record)
            if spans and spans[-1].stream == stream:
                spans[-1] = spans[-1]._replace(length=spans[-1].length + 1)
            else:
                spans.append(Span(*stream, before.length, 1))
            if stream not in blocks:
                blocks[stream] = [self._blocks[stream]] if stream in self._blocks else []
            add_checksum(blocks[stream], before.length, record)
        self._append(spans, places, blocks)

    def claim(self, actor: str, home: str, place: str) -> str:
        """Claim a name for an actor; return why it is not available, empty when it is.

        Args:
            actor: name of the actor; belongs permanently to the home that claimed it first.
            home: unique identifier of the actor's folder.
            place: location of that folder, for messages.
        """
        with self._lock:
            owner, known_place = self._homes.get(actor, (home, ""))
            if owner != home:
                return f"actor {actor!r} of this run is at {known_place}; choose another --name"
            if known_place != place:
                with self._transaction():
                    row = (actor, home, place)
                    self._database.execute("INSERT OR REPLACE INTO home VALUES (?, ?, ?)", row)
                self._homes[actor] = (home, place)
        return ""

    def cut(self, held: Cursors) -> dict[Stream, int]:
        """Remove records that the log does not hold; return the number removed by stream."""
        lost = {
            stream: cursor - held.get(stream, 0)
            for stream, cursor in self.cursors.items()
            if cursor > held.get(stream, 0)
        }
        with self._lock, self._transaction():
            for stream in lost:
                end = held.get(stream, 0)
                mine = "WHERE actor = ? AND epoch = ? AND"
                self._database.execute(f"DELETE FROM span {mine} first >= ?", (*stream, end))
                self._database.execute(
                    "UPDATE span SET length = ? - first, next_episode = NULL, next_step = NULL "
                    f"{mine} first + length >= ?",
                    (end, *stream, end),
                )
                self._database.execute(f"DELETE FROM content {mine} first >= ?", (*stream, end))
                self._database.execute(
                    "UPDATE content SET checksums = substr(checksums, 1, ? * (? - first)) "
                    f"{mine} length(checksums) > ? * (? - first)",
                    (CHECKSUM.size, end, *stream, CHECKSUM.size, end),
                )
                self._blocks.pop(stream, None)
        if lost:
            self._load()
        return lost

    def rebuild(self, taken: Cursors, logged: Cursors) -> None:
        """Fill an empty index: first the `taken` records, then the other `logged` ones."""
        spans = [Span(*stream, 0, taken[stream]) for stream in sorted(taken, key=_by_epoch)]
        for stream in sorted(logged, key=_by_epoch):
            first = taken.get(stream, 0)
            spans.append(Span(*stream, first, logged[stream] - first))
        places = {stream: _Place(cursor, None) for stream, cursor in logged.items()}
        self._append([span for span in spans if span.length], places, {})

    def close(self) -> None:
        """Close the database; a second call does nothing."""
        self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _prepare(self) -> None:
        database = self._database
        version = check(database, self.path, _SCHEMAS)
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = FULL")
        if version < FORMAT:
            with self._transaction():
                for statement in _CONTENT.split(";")[:-1]:
                    database.execute(statement)

    def _load(self) -> None:
        """Read each stream's position; raise `DamagedDatabase` if spans are not consecutive."""
        rows = read_rows(self._database, self.path, "SELECT * FROM span ORDER BY id")
        self._places, self._last = {}, (0, Span("", 0, 0, 0))
        for number, actor, epoch, first, length, episode, step in rows:
            span = Span(actor, epoch, first, length)
            if length < 1 or first != self._places.get(span.stream, _Place()).length:
                raise DamagedDatabase(f"{self.path}: {span} does not follow the ones before it")
            self._places[span.stream] = _Place(first + length, episode, step or 0)
            self._last = number, span

    def _append(
        self,
        spans: Sequence[Span],
        places: Mapping[Stream, _Place],
        blocks: Mapping[Stream, Sequence[ChecksumBlock]],
    ) -> None:
        """Store spans and checksums in one transaction; the first span may extend the last one."""
        if not spans:
            return
        number, last = self._last
        follows = last.stream == spans[0].stream
        if follows:
            grown = last.length + spans[0].length
            spans = [Span(*last.stream, last.first, grown), *spans[1:]]
        numbers = count(number if follows else number + 1)
        rows = [
            (number, *span, places[span.stream].episode, places[span.stream].step)
            for number, span in zip(numbers, spans, strict=False)
        ]
        with self._lock:
            with self._transaction():
                insert = "INSERT OR REPLACE INTO span VALUES (?, ?, ?, ?, ?, ?, ?)"
                self._database.executemany(insert, rows)
                self._database.executemany(
                    "INSERT OR REPLACE INTO content VALUES (?, ?, ?, ?, ?)",
                    [
                        (*stream, block.first, "\n".join(block.cameras), block.checksums)
                        for stream, mine in blocks.items()
                        for block in mine
                    ],
                )
            self._blocks.update({stream: mine[-1] for stream, mine in blocks.items()})
            self._last = rows[-1][0], spans[-1]
            self._places.update(places)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        try:
            self._database.execute("BEGIN IMMEDIATE")
            yield
            self._database.execute("COMMIT")
        except sqlite3.Error as error:
            if self._database.in_transaction:
                self._database.execute("ROLLBACK")
            raise sqlite_error(self.path, error) from error


def _make(path: Path) -> None:
    """Create an empty index atomically: no process ever sees a part of it."""
    scratch = path.with_name(f".{path.name}.tmp")
    scratch.unlink(missing_ok=True)
    os.close(os.open(scratch, os.O_RDWR | os.O_CREAT, 0o600))
    try:
        with closing(sqlite3.connect(scratch, isolation_level=None)) as database:
            database.executescript(f"BEGIN; {_ORDER} {_CONTENT} COMMIT;")
    except sqlite3.Error as error:
        raise sqlite_error(path, error) from error
    for suffix in BESIDE:  # leftovers of a removed database would be replayed into the new one
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    scratch.rename(path)
    sync(path.parent)


def read_index(path: Path) -> tuple[list[Span], dict[Stream, list[ChecksumBlock]]]:
    """Read the stored spans, unchecked, and the checksums; both are empty without an index.

    The index is not changed.

    Raises:
        CorruptData: the file is not an index, is damaged, or of another version.
    """
    try:
        try:
            return _read(path) if path.exists() else ([], {})
        except sqlite3.OperationalError:
            with TemporaryDirectory() as scratch:
                return _read(_copy_database(path, Path(scratch)))
    except (sqlite3.Error, OSError, UnicodeDecodeError) as error:
        raise CorruptData(f"{path}: {error}") from error


def _read(path: Path) -> tuple[list[Span], dict[Stream, list[ChecksumBlock]]]:
    blocks: dict[Stream, list[ChecksumBlock]] = {}
    with closing(connect(path, read_only=True)) as database, limited_work(database, path):
        version = check(database, path, _SCHEMAS)
        spans = [Span(*row) for row in read_rows(database, path, _SPANS)]
        for actor in {span.actor for span in spans}:
            checked_name(actor, f"{path}: actor")
        content = read_rows(database, path, "SELECT * FROM content") if version == FORMAT else ()
        for actor, epoch, first, cameras, checksums in content:
            block = ChecksumBlock(first, tuple(filter(None, cameras.split("\n"))), checksums)
            blocks.setdefault((actor, epoch), []).append(block)
    return spans, blocks


def _copy_database(path: Path, folder: Path) -> Path:
    """Copy the database and its write-ahead log into `folder`; return the path of the copy.

    SQLite reads a database with a write-ahead log only where it can write beside it; an archive
    may be read-only. (SQLite's `immutable` would ignore the log.)
    """
    log = path.with_name(f"{path.name}-wal")
    for file in (path, log):
        if file.exists():
            shutil.copyfile(file, folder / file.name)
    return folder / path.name


def _by_epoch(stream: Stream) -> tuple[int, str]:
    """Return the sort key that orders streams by the start of their actors."""
    return stream[1], stream[0]
