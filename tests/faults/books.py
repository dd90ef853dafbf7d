"""What actors and learner note down beside the run, one line a record, to check the run against."""

from __future__ import annotations

import os
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

from serl.errors import CorruptData
from serl.log.index import read_index
from serl.types import Key


def accepted_book(run: Path) -> Path:
    """Keys of what the learner accepted, in order."""
    return run / "accepted.txt"


def appended_book(run: Path, actor: str) -> Path:
    """Keys of what the actor's log took, in order."""
    return run / f"appended-{actor}.txt"


def enough_file(run: Path) -> Path:
    """Tells actors, by its existence, to end."""
    return run / "enough"


def lines_of(keys: Iterable[Key]) -> str:
    """Keys as lines of a book, all of one length where the actors' names are."""
    return "".join(f"{key.actor} {key.epoch:020} {key.episode:06} {key.index:06}\n" for key in keys)


def read_book(book: Path) -> list[str]:
    """The whole lines of a book that may not exist yet."""
    return book.read_text().split("\n")[:-1] if book.exists() else []


def lost_or_doubled(appended: list[str], accepted: list[str]) -> str:
    """What is wrong between the books of one actor; empty when each record was accepted once.

    An actor that is killed between an append and its note has appended more than its book says.
    """
    if lost := sorted(set(appended) - set(accepted)):
        return f"{len(lost)} lost, from {lost[0]} on"
    doubled = next((b for a, b in pairwise(accepted) if b <= a), "")
    return doubled and f"duplicated, or out of order: {doubled}"


def count_lines(book: Path) -> int:
    """How many whole lines a book has."""
    if not book.exists():
        return 0
    with book.open("rb") as file:
        line = file.readline()
        return os.fstat(file.fileno()).st_size // len(line) if line.endswith(b"\n") else 0


def count_accepted(index: Path) -> int:
    """How many records the learner has accepted."""
    try:
        return sum(span.length for span in read_index(index)[0])
    except CorruptData:  # it is just being made
        return 0
