"""Test the order of accepted records: against a list, after reopening, damage and loss."""

from __future__ import annotations

import shutil
import sqlite3
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serl.errors import BadInput, CorruptData, SerlError
from serl.log.content import BLOCK_RECORDS, checksum
from serl.log.index import Index, Span, Stream, read_index
from serl.runs.resume import accepted_records, open_index
from serl.types import ActionSource, End, EndReason, Key, Observation, Record, Step

NOTHING = Observation({})
LENGTH = 4  # steps per episode


def record(actor: str, epoch: int, sequence: int) -> Record:
    """Return the record of a sequence number; episodes have LENGTH steps and an end."""
    episode, index = divmod(sequence, LENGTH + 1)
    key = Key("run", actor, epoch, episode, index)
    if index == LENGTH:
        return End(key, NOTHING, False, EndReason.TIME_LIMIT, 0.0, 0.0)
    action = np.zeros(1, np.float32)
    policy = ActionSource.POLICY
    return Step(key, NOTHING, action, action, 0.0, "truth", False, False, policy, 0, 0.0, 0.0)


def records(actor: str, epoch: int, count: int, first: int = 0) -> list[Record]:
    return [record(actor, epoch, sequence) for sequence in range(first, first + count)]


def record_keys(spans: Sequence[Span]) -> list[tuple[str, int, int]]:
    """Return the actor, epoch and sequence number of each record of the spans."""
    return [
        (span.actor, span.epoch, sequence)
        for span in spans
        for sequence in range(span.first, span.first + span.length)
    ]


def sequences(stream: Stream) -> Iterator[Record]:
    sequence = 0
    while True:
        yield record(*stream, sequence)
        sequence += 1


@settings(max_examples=20, deadline=None)
@given(
    batches=st.lists(
        st.tuples(
            st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 2), st.integers(1, 7))),
            st.booleans(),
        ),
        max_size=12,
    )
)
def test_records_are_returned_in_accepted_order(
    batches: list[tuple[list[tuple[str, int, int]], bool]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("run") / "index.sqlite"
    index = Index(path)
    expected: list[Record] = []
    sent: Counter[Stream] = Counter()
    for batch, reopened in batches:
        arrived: list[Record] = []
        for actor, epoch, count in batch:
            arrived += records(actor, epoch, count, sent[actor, epoch])
            sent[actor, epoch] += count
        index.accept(arrived)
        expected += arrived
        if reopened:
            index.close()
            index = Index(path)
        assert index.cursors == sent
    spans = index.spans()
    index.close()
    again = list(accepted_records(spans, sequences))
    assert [item.key for item in again] == [item.key for item in expected]
    assert all(a.stream != b.stream for a, b in pairwise(spans))


@pytest.mark.parametrize("wrong", [0, 6, 8, 12])
@pytest.mark.parametrize("reopened", [False, True])
def test_out_of_order_record_is_refused_with_its_batch(
    tmp_path: Path, wrong: int, reopened: bool
) -> None:
    index = Index(tmp_path / "index.sqlite")
    index.accept(records("a", 1, 7))
    if reopened:
        index.close()
        index = Index(tmp_path / "index.sqlite")
    with pytest.raises(BadInput, match=r"expected record \(1, 2\) of a/1"):
        index.accept([*records("b", 1, 3), record("a", 1, wrong)])
    assert index.cursors == {("a", 1): 7}
    index.accept(records("a", 1, 5, first=7))
    index.close()


def test_accepted_record_is_on_disk(tmp_path: Path) -> None:
    """Copy the files after each record, as a kill would leave them."""
    index = Index(tmp_path / "index.sqlite")
    for sequence in range(30):
        index.accept([record("a", 1, sequence)])
        folder = tmp_path / str(sequence)
        folder.mkdir()
        for suffix in ("", "-wal"):
            file = tmp_path / f"index.sqlite{suffix}"
            (folder / file.name).write_bytes(file.read_bytes())
        with Index(folder / "index.sqlite") as copy:
            assert copy.cursors == {("a", 1): sequence + 1}
    index.close()


def test_actor_name_belongs_to_first_home_that_claims_it(tmp_path: Path) -> None:
    path = tmp_path / "index.sqlite"
    with Index(path) as index:
        assert index.claim("a", "home 1", "here:/run") == ""
        assert index.claim("a", "home 1", "here:/moved") == ""
    with Index(path) as index:
        assert index.claim("b", "home 2", "there:/run") == ""
        refusal = index.claim("a", "home 2", "there:/run")
        assert refusal == "actor 'a' of this run is at here:/moved; choose another --name"
        assert index.claim("a", "home 1", "here:/run") == ""


def test_records_lost_from_log_are_removed_from_index_with_notice(tmp_path: Path) -> None:
    path = tmp_path / "index.sqlite"
    with Index(path) as index:
        for sequence in range(0, 12, 3):
            index.accept(records("a", 1, 3, sequence) + records("b", 2, 3, sequence))
    opened = open_index(path, {("a", 1): 7, ("b", 2): 12}, {("a", 1): 9, ("b", 2): 6})
    with opened.index as index:
        assert opened.notices == ("the log of a/1 lost its last 5 records, which were accepted",)
        assert opened.taken == 7 + 6
        assert index.cursors == {("a", 1): 7, ("b", 2): 12}
        kept = [key for key in record_keys(index.spans()) if key[0] == "a"]
        assert kept == [("a", 1, sequence) for sequence in range(7)]
        first = record_keys(index.spans())[: opened.taken]
        assert Counter(key[0] for key in first) == {"a": 7, "b": 6}
        index.accept(records("b", 2, 2, 12))


def test_consistent_index_is_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "index.sqlite"
    with Index(path) as index:
        index.accept(records("b", 2, 3) + records("a", 1, 3) + records("b", 2, 3, 3))
    opened = open_index(path, {("a", 1): 8, ("b", 2): 6}, {("b", 2): 3, ("a", 1): 1})
    with opened.index as index:
        assert (opened.taken, opened.notices) == (4, ())
        assert record_keys(index.spans())[0] == ("b", 2, 0)
        assert index.cursors == {("a", 1): 3, ("b", 2): 6}
    assert [child.name for child in tmp_path.iterdir()] == ["index.sqlite"]


def overwrite(path: Path) -> None:
    path.write_bytes(b"not a database, but long enough to be one" * 100)


def zero_page(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[4096:8192] = bytes(4096)
    path.write_bytes(data)


def reorder(path: Path) -> None:
    with sqlite3.connect(path) as database:
        database.execute("UPDATE span SET first = first + 1")
    database.close()


def forget(path: Path) -> None:
    with sqlite3.connect(path) as database:
        database.execute("DELETE FROM span WHERE id > 2")
    database.close()


def make_foreign_database(path: Path) -> None:
    path.unlink()
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE other (x)")
    database.close()


def lose_index_with_wal_left(path: Path) -> None:
    """Delete the database but leave its write-ahead log, which SQLite would replay."""
    with closing(sqlite3.connect(path)) as database:
        database.execute("INSERT INTO span VALUES (99, 'z', 9, 0, 5, 0, 0)")
        database.commit()
        left = {suffix: Path(f"{path}{suffix}").read_bytes() for suffix in ("-wal", "-shm")}
    path.unlink()
    for suffix, data in left.items():
        Path(f"{path}{suffix}").write_bytes(data)


@pytest.mark.parametrize(
    "damage",
    [
        *(overwrite, zero_page, reorder, forget, make_foreign_database, Path.unlink),
        lose_index_with_wal_left,
    ],
)
def test_untrusted_index_is_rebuilt_with_notice(tmp_path: Path, damage: object) -> None:
    path = tmp_path / "index.sqlite"
    with Index(path) as index:
        for sequence in range(0, 20, 5):
            index.accept(records("b", 1, 5, sequence) + records("a", 2, 5, sequence))
    damage(path)  # type: ignore[operator]
    before = path.read_bytes() if path.exists() else None
    logged = {("b", 1): 22, ("a", 2): 20}
    opened = open_index(path, logged, taken={("b", 1): 12, ("a", 2): 11})
    with opened.index as index:
        (notice,) = opened.notices
        assert str(path) in notice
        assert "rebuilt from the log, 42 records" in notice
        assert "\n" not in notice
        assert index.spans() == [
            Span("b", 1, 0, 12),
            Span("a", 2, 0, 11),
            Span("b", 1, 12, 10),
            Span("a", 2, 11, 9),
        ]
        assert opened.taken == 23
        index.accept([record("a", 2, 20)])  # the log defines the next record
    with Index(path) as index:
        assert index.cursors == {("b", 1): 22, ("a", 2): 21}
    if before is not None:
        assert (tmp_path / "index.sqlite.1").read_bytes() == before


def test_first_start_accepts_logged_records_without_notice(tmp_path: Path) -> None:
    opened = open_index(tmp_path / "index.sqlite", {("a", 1): 3})
    with opened.index as index:
        assert (opened.taken, opened.notices) == (0, ())
        assert index.cursors == {("a", 1): 3}


def test_index_of_unknown_format_is_refused_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "index.sqlite"
    Index(path).close()
    with sqlite3.connect(path) as database:
        database.execute("PRAGMA user_version = 7")
    database.close()
    with pytest.raises(CorruptData, match="format 7, this version reads 2"):
        open_index(path, {}, {})
    assert [child.name for child in tmp_path.iterdir()] == ["index.sqlite"]


def test_log_shorter_than_accepted_records_raises(tmp_path: Path) -> None:
    spans = [Span("a", 1, 0, 3), Span("b", 1, 0, 2), Span("a", 1, 3, 3)]
    given = accepted_records(spans, lambda stream: iter(records(*stream, 5)))
    with pytest.raises(CorruptData, match="a/1 has no record 5, which was accepted"):
        list(given)


def test_locked_database_raises_and_accepts_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    index = Index(folder / "index.sqlite")
    index.accept(records("a", 1, 3))
    with sqlite3.connect(folder / "index.sqlite") as other:
        other.execute("BEGIN IMMEDIATE")
        index._database.execute("PRAGMA busy_timeout = 0")
        with pytest.raises(SerlError, match="database is locked"):
            index.accept(records("a", 1, 3, 3))
        assert index.cursors == {("a", 1): 3}
    other.close()
    index.accept(records("a", 1, 3, 3))
    assert index.cursors == {("a", 1): 6}
    index.close()


def test_spans_are_read_from_unwritable_folder(tmp_path: Path) -> None:
    path = tmp_path / "index.sqlite"
    with Index(path) as index:
        index.accept(records("a", 1, 7))
        # Copy what a killed learner leaves on a read-only disk: no file can be created next to the
        # index, and its last records are in the write-ahead log.
        archive = tmp_path / "archive"
        archive.mkdir()
        for name in (path.name, f"{path.name}-wal"):
            shutil.copyfile(tmp_path / name, archive / name)
    (archive / f"{path.name}-shm").mkdir()
    before = {file.name: file.stat().st_mtime_ns for file in archive.iterdir()}
    assert read_index(archive / path.name)[0] == [Span("a", 1, 0, 7)]
    assert {file.name: file.stat().st_mtime_ns for file in archive.iterdir()} == before
    (archive / path.name).write_bytes(b"x" * 4096)
    with pytest.raises(CorruptData, match="index"):
        read_index(archive / path.name)


def stored_checksums(path: Path) -> dict[Stream, dict[int, bytes]]:
    """Return the checksums in the index by stream and sequence number."""
    _, blocks = read_index(path)
    return {
        stream: dict(item for block in mine for item in block.contents())
        for stream, mine in blocks.items()
    }


def test_index_stores_checksum_of_each_accepted_record(tmp_path: Path) -> None:
    """Cover batches of several sizes, reopening, and a cut."""
    path, count = tmp_path / "index.sqlite", 3 * BLOCK_RECORDS
    expected = {
        stream: {number: checksum(item, ()) for number, item in enumerate(records(*stream, count))}
        for stream in (("a", 1), ("b", 2))
    }
    for first in range(0, count, BLOCK_RECORDS // 2):
        with Index(path) as index:
            for half in (first, first + BLOCK_RECORDS // 4):
                some = zip(
                    *(records(*stream, BLOCK_RECORDS // 4, half) for stream in expected),
                    strict=True,
                )
                index.accept([item for pair in some for item in pair])
    assert stored_checksums(path) == expected
    assert len(set(expected["a", 1].values())) == count
    left = BLOCK_RECORDS + 7
    with Index(path) as index:
        index.accept(records("a", 1, 1, count))
        index.cut({("a", 1): left, ("b", 2): count})
        index.accept(records("a", 1, 2, left))
    with Index(path) as index:
        index.accept(records("a", 1, 1, left + 2))
    assert stored_checksums(path)["b", 2] == expected["b", 2]
    assert stored_checksums(path)["a", 1] == {
        number: expected["a", 1][number] for number in range(left + 3)
    }


def convert_to_format_1(path: Path) -> None:
    with closing(sqlite3.connect(path)) as database:
        database.executescript("DROP TABLE content; PRAGMA user_version = 1;")


def test_index_of_format_1_is_read_and_converted_to_format_2(tmp_path: Path) -> None:
    path = tmp_path / "index.sqlite"
    with Index(path) as index:
        index.accept(records("a", 1, 7))
        index.claim("a", "home", "here")
    convert_to_format_1(path)
    assert read_index(path) == ([Span("a", 1, 0, 7)], {})
    assert open_index(path, {("a", 1): 7}, {("a", 1): 5}).notices == ()
    with Index(path) as index:
        index.accept(records("a", 1, 3, 7))
        assert index.claim("a", "other", "there")
    assert [*stored_checksums(path)["a", 1]] == [7, 8, 9]
    assert read_index(path)[0] == [Span("a", 1, 0, 10)]
