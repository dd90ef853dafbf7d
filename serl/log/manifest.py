"""The manifest of an actor's folder: sealed files and their hashes, one JSON line for each file.

A file may be listed more than once, since a crash repeats a seal and compaction replaces a file;
it is sound when it matches any of its lines. Lines are only ever added.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple, get_type_hints

from serl.errors import BadInput
from serl.log.episode_reader import episode_name
from serl.system.files import open_regular, write_all
from serl.system.json_fields import MAX_JSON_BYTES, check_fields, dump_object, parse_object

MANIFEST = "MANIFEST.jsonl"
_MAX_BYTES = 1 << 30


class Entry(NamedTuple):
    """A line of the manifest.

    Attributes:
        bytes: size of the file.
        sha256: sha256 of the file's content, in hex.
        records: number of records in the file.
        ended: whether the last record is the episode's `End`; without it the episode is truncated.
        recovered: whether the file was recovered after a crash.
    """

    name: str
    bytes: int
    sha256: str
    records: int
    ended: bool
    recovered: bool


_FIELDS = get_type_hints(Entry)


def append_entry(folder: Path, entry: Entry) -> None:
    """Add a line and wait until the disk has it; several processes may do so at once.

    Raises:
        OSError: the disk refused.
    """
    descriptor = os.open(folder / MANIFEST, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        size = os.fstat(descriptor).st_size
        torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
        line = dump_object(entry._asdict())
        write_all(descriptor, (b"\n" if torn else b"") + line + b"\n")
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_entries(folder: Path) -> dict[str, list[Entry]]:
    """Read the lines by name of the file; empty when there is no manifest.

    A torn or damaged line is skipped: its file is then not listed.

    Raises:
        CorruptData: the manifest is not a regular file, or is larger than 1 GiB.
    """
    entries: dict[str, list[Entry]] = {}
    with suppress(FileNotFoundError), open_regular(folder / MANIFEST, _MAX_BYTES) as file:
        for line in iter(partial(file.readline, MAX_JSON_BYTES), b""):
            with suppress(BadInput):
                fields = parse_object(line, MANIFEST)
                check_fields(fields, _FIELDS, MANIFEST)
                entry = Entry(**fields)
                episode_name(Path(entry.name))
                entries.setdefault(entry.name, []).append(entry)
    return entries
