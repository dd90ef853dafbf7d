"""Safe opening of a SQLite database whose file may be damaged or hostile.

SQLite executes the schema of a file: a view in the place of a table can compute without an end
and fill the disk with temporary files. So the schema must be exactly the expected one, SQLite
keeps temporary data in memory, and the work that reading may take is bounded by the file's size.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from serl.errors import CorruptData, SerlError
from serl.system.files import check_regular, disk_full

Schema = frozenset[tuple[str, str, str, str | None]]
"""Rows of `sqlite_master`: type, name, table, SQL text."""

BESIDE = ("-wal", "-shm", "-journal")
"""Suffixes of the files that SQLite keeps beside a database."""

_MAX_BYTES = 1 << 30
_MAX_VALUE_BYTES = 1 << 16
_MAX_ROWS = 10_000_000
_MASTER = "SELECT type, name, tbl_name, sql FROM sqlite_master LIMIT 64"
_OPERATIONS = 10_000  # of SQLite's virtual machine, between two calls of the progress handler
_FIRST_CALLS, _BYTES_PER_CALL = 100, 1000  # ten operations for each byte of the file


class DamagedDatabase(CorruptData):
    """The error for a database with altered content, or with more work to read than a sound one."""


def schema_of(script: str) -> Schema:
    """Return the schema that an SQL script creates."""
    with closing(sqlite3.connect(":memory:")) as database:
        database.executescript(script)
        return frozenset(database.execute(_MASTER))


def connect(path: Path, read_only: bool = False) -> sqlite3.Connection:
    """Connect to a database in a regular file of at most 1 GiB; every statement is a transaction.

    Raises:
        CorruptData: the file, or one that SQLite keeps beside it, is irregular or too large.
        sqlite3.Error: SQLite refused.
    """
    for suffix in ("", "-wal", "-journal"):  # the files read; a missing "-shm" is made, or refused
        check_regular(path.with_name(path.name + suffix), _MAX_BYTES)
    mode = "ro" if read_only else "rwc"
    database = sqlite3.connect(
        f"{path.resolve().as_uri()}?mode={mode}",
        uri=True,
        isolation_level=None,
        check_same_thread=False,
    )
    try:
        database.text_factory = bytes.decode  # the default one fails on damaged text in odd ways
        database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MAX_VALUE_BYTES)
        for pragma in ("trusted_schema = OFF", "cell_size_check = ON", "temp_store = MEMORY"):
            database.execute(f"PRAGMA {pragma}")
    except BaseException:
        database.close()
        raise
    return database


def check(database: sqlite3.Connection, path: Path, schemas: Mapping[int, Schema]) -> int:
    """Check the schema, then the pages; return the version of the format.

    Args:
        database: connection made by `connect`, used inside `limited_work`.
        path: file of the database, for errors.
        schemas: the schema of each known version.

    Raises:
        DamagedDatabase: the schema is not the expected one, or a page is damaged.
        CorruptData: the version is unknown.
    """
    (version,) = database.execute("PRAGMA user_version").fetchone()
    if version == 0:
        raise DamagedDatabase(f"{path}: not an index of a run")
    if version not in schemas:
        raise CorruptData(f"{path}: format {version}, this version reads {max(schemas)}")
    found = frozenset(database.execute(_MASTER))
    if strange := sorted(f"{kind} {name!r}" for kind, name, *_ in found ^ schemas[version]):
        raise DamagedDatabase(f"{path}: not the tables that serl makes: {strange[0][:80]}")
    (finding,) = database.execute("PRAGMA quick_check(1)").fetchone()
    if finding != "ok":
        raise DamagedDatabase(f"{path}: {' '.join(finding.split())}")
    return int(version)


def read_rows(database: sqlite3.Connection, path: Path, query: str) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of a query; raise `DamagedDatabase` after 10,000,000 rows."""
    for number, row in enumerate(database.execute(query)):
        if number == _MAX_ROWS:
            raise DamagedDatabase(f"{path}: more than {_MAX_ROWS:,} rows")
        yield row


@contextmanager
def limited_work(database: sqlite3.Connection, path: Path) -> Iterator[None]:
    """Bound the work of the statements in the block; a `KeyboardInterrupt` ends them at once.

    Raises:
        DamagedDatabase: the statements take more work than a sound file of this size can need.
    """
    sizes = (path.with_name(path.name + suffix) for suffix in ("", "-wal"))
    limit = _FIRST_CALLS + sum(each.stat().st_size for each in sizes if each.exists()) // (
        _BYTES_PER_CALL
    )
    calls = 0

    def tick() -> bool:
        nonlocal calls
        calls += 1
        return calls > limit

    database.set_progress_handler(tick, _OPERATIONS)
    try:
        yield
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode != sqlite3.SQLITE_INTERRUPT:
            raise
        if calls <= limit:  # `tick` was called, and a signal's handler raised in it
            raise KeyboardInterrupt from None
        raise DamagedDatabase(f"{path}: takes more work to read than such a file can") from None
    finally:
        database.set_progress_handler(None, 0)


def sqlite_error(path: Path, error: sqlite3.Error) -> SerlError:
    """Return the error of a failed read or write; if the disk is full, the error gives this."""
    full = disk_full(path.parent)
    return SerlError(f"{path}: {full or error}")
