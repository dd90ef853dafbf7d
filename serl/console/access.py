"""Where a running console can be found, for whoever may read the run's folder."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from serl.errors import CorruptData
from serl.system.json_fields import check_fields, dump_object, parse_object
from serl.system.files import read_bounded, write_atomic

_FILE = "console.json"
_MAX_BYTES = 1024
_FIELDS = {"url": str, "token": str}


class Door(NamedTuple):
    """The address of a console, and the token that opens it."""

    url: str
    token: str


def write_door(folder: Path, door: Door) -> None:
    """Say it in a file that only its owner can read."""
    write_atomic(folder / _FILE, dump_object(door._asdict()))


def read_door(folder: Path) -> Door | None:
    """The console that runs; None when there is none."""
    with suppress(OSError, CorruptData):
        fields = parse_object(read_bounded(folder / _FILE, _MAX_BYTES), _FILE)
        check_fields(fields, _FIELDS, _FILE)
        return Door(**fields)
    return None


def remove_door(folder: Path) -> None:
    """The console closes."""
    (folder / _FILE).unlink(missing_ok=True)
