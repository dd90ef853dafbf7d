"""Databases not made by serl: refused in one line after a bounded amount of work."""

from __future__ import annotations

import signal
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from serl.errors import CorruptData
from serl.log.index import Index, read_index
from serl.runs.resume import open_index
from serl.system.database import DamagedDatabase, connect, limited_work, read_rows

from .log.test_index import records

ENDLESS = """(
    WITH RECURSIVE more(id) AS (SELECT 1 UNION ALL SELECT id + 1 FROM more)
    SELECT id, 'a' actor, 1 epoch, 0 first, 1 length, 0 next_episode, 0 next_step FROM more
)"""


def replace_by_a_view(path: Path) -> None:
    execute(path, f"DROP TABLE span; CREATE VIEW span AS SELECT * FROM {ENDLESS};")


def add_a_trigger(path: Path) -> None:
    execute(path, f"CREATE TRIGGER t AFTER INSERT ON span BEGIN SELECT max(id) FROM {ENDLESS}; END")


def add_a_generated_column(path: Path) -> None:
    execute(path, "ALTER TABLE span ADD COLUMN x INTEGER AS (length + 1)")


def add_a_default(path: Path) -> None:
    execute(path, "ALTER TABLE home ADD COLUMN x TEXT DEFAULT (1)")


def add_an_index(path: Path) -> None:
    execute(path, "CREATE INDEX i ON span (actor) WHERE length(actor) > 1")


def add_a_virtual_table(path: Path) -> None:
    execute(path, "DROP TABLE home; CREATE VIRTUAL TABLE home USING fts5(actor, x, place)")


def name_in_no_utf8(path: Path) -> None:
    execute(path, "UPDATE span SET actor = CAST(x'ff41' AS TEXT)")


def home_in_no_utf8(path: Path) -> None:
    execute(path, "INSERT INTO home VALUES (CAST(x'ff41' AS TEXT), 'x', 'y')")


def name_of_a_megabyte(path: Path) -> None:
    execute(path, "UPDATE span SET actor = printf('%.*c', 1000000, 'a')")


def execute(path: Path, script: str) -> None:
    with closing(sqlite3.connect(path)) as database:
        database.executescript(script)


HOSTILE = [
    *(replace_by_a_view, add_a_trigger, add_a_generated_column, add_a_default, add_an_index),
    *(add_a_virtual_table, name_in_no_utf8, home_in_no_utf8, name_of_a_megabyte),
]


@pytest.mark.parametrize("harm", HOSTILE)
def test_index_with_foreign_schema_or_text_is_refused_and_rebuilt(
    tmp_path: Path, harm: Callable[[Path], None]
) -> None:
    path = tmp_path / "index.sqlite"
    with Index(path) as index:
        index.accept(records("a", 1, 7))
    harm(path)
    readers = (Index,) if harm is home_in_no_utf8 else (Index, read_index)
    for read in readers:
        with pytest.raises(CorruptData, match=r"index\.sqlite: ") as refusal:
            read(path)
        assert "\n" not in str(refusal.value)
    opened = open_index(path, {("a", 1): 7}, {("a", 1): 5})
    with opened.index as index:
        assert "rebuilt from the log, 7 records" in opened.notices[0]
        assert index.cursors == {("a", 1): 7}


def test_query_beyond_work_limit_is_aborted(tmp_path: Path) -> None:
    with closing(connect(tmp_path / "index.sqlite")) as database:
        began_s = time.process_time()
        with pytest.raises(DamagedDatabase, match="takes more work"):  # noqa: SIM117
            with limited_work(database, tmp_path / "index.sqlite"):
                database.execute(f"SELECT max(id) FROM {ENDLESS}").fetchone()
        assert time.process_time() - began_s < 20
        database.execute("SELECT 1")  # the limit no longer applies


def test_more_rows_than_limit_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serl.system.database._MAX_ROWS", 2)
    with closing(connect(tmp_path / "rows.sqlite")) as database:
        assert len(list(read_rows(database, tmp_path, "VALUES (1), (2)"))) == 2
        with pytest.raises(DamagedDatabase, match="more than 2 rows"):
            list(read_rows(database, tmp_path, "VALUES (1), (2), (3)"))


def test_schema_of_index_is_not_trusted(tmp_path: Path) -> None:
    path = tmp_path / "index.sqlite"
    execute(path, "CREATE VIEW v AS SELECT unsafe()")
    with closing(connect(path, read_only=True)) as index:
        index.create_function("unsafe", 0, lambda: 1)
        with pytest.raises(sqlite3.OperationalError, match="unsafe use of unsafe"):
            index.execute("SELECT * FROM v").fetchall()


def test_signal_aborts_long_query(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check it with SIGTERM, which raises KeyboardInterrupt here, as Ctrl-C does in commands."""
    monkeypatch.setattr("serl.system.database._FIRST_CALLS", 10**9)
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    sent = threading.Timer(0.3, signal.raise_signal, [signal.SIGTERM])
    try:
        with closing(connect(tmp_path / "index.sqlite")) as database:
            sent.start()
            with pytest.raises(KeyboardInterrupt):  # noqa: SIM117
                with limited_work(database, tmp_path / "index.sqlite"):
                    database.execute(f"SELECT max(id) FROM {ENDLESS}").fetchone()
    finally:
        sent.join()
        signal.signal(signal.SIGTERM, before)
