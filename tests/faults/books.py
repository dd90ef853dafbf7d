"""Books of actors and learner: one line per record, kept beside the run for verification."""

from __future__ import annotations

import os
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

from serl.errors import CorruptData
from serl.log.index import read_index
from serl.types import Key


def accepted_book(run: Path) -> Path:
    """Return the file with the keys of records accepted by the learner, in order."""
    return run / "accepted.txt"


def appended_book(run: Path, actor: str) -> Path:
    """Return the file with the keys of records accepted by the actor's log, in order."""
    return run / f"appended-{actor}.txt"


def enough_file(run: Path) -> Path:
    """Return the file whose existence tells actors to end."""
    return run / "enough"


def lines_of(keys: Iterable[Key]) -> str:
    """Format keys as lines of a book; lines have equal length if the actors' names do."""
    return "".join(f"{key.actor} {key.epoch:020} {key.episode:06} {key.index:06}\n" for key in keys)


def read_book(book: Path) -> list[str]:
    """Return the complete lines of a book; an empty list if it does not exist yet."""
    return book.read_text().split("\n")[:-1] if book.exists() else []


def lost_or_doubled(appended: list[str], accepted: list[str]) -> str:
    """Describe lost or duplicated records of one actor; empty when each was accepted once.

    An actor killed between an append and its note has appended one record more than its book shows.
    """
    if lost := sorted(set(appended) - set(accepted)):
        return f"{len(lost)} lost, from {lost[0]} on"
    doubled = next((b for a, b in pairwise(accepted) if b <= a), "")
    return doubled and f"duplicated, or out of order: {doubled}"


def count_lines(book: Path) -> int:
    """Count the complete lines of a book."""
    if not book.exists():
        return 0
    with book.open("rb") as file:
        line = file.readline()
        return os.fstat(file.fileno()).st_size // len(line) if line.endswith(b"\n") else 0


def count_accepted(index: Path) -> int:
    """Count the records accepted by the learner."""
    try:
        return sum(span.length for span in read_index(index)[0])
    except CorruptData:  # the index is being created
        return 0
