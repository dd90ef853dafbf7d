"""How well an actor keeps its control rate, told through a file: for those who watch a run."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from serl.errors import CorruptData
from serl.system.json_fields import check_fields, dump_object, parse_object
from serl.system.files import read_bounded

_CONTROL_FILE = "control.json"
_MAX_BYTES = 4096
_CONTROL_FIELDS = {"periods": int, "late": int, "delayed": int}


class ControlStatus(NamedTuple):
    """Control periods of an actor in real time, since its start.

    Attributes:
        periods: how many there were.
        late: how many of them began late by more than a tenth of a period.
        delayed: actions that were late by more than 1.5 periods, see `serl.ros.nodes.actor`.
    """

    periods: int
    late: int
    delayed: int = 0

    @property
    def share(self) -> float:
        """Of the late ones."""
        return self.late / self.periods if self.periods else 0.0


def write_control_status(folder: Path, status: ControlStatus) -> None:
    """Replace the status in the folder where an actor and its link meet; a full disk keeps it."""
    scratch = folder / f".{_CONTROL_FILE}"
    with suppress(OSError):
        scratch.write_bytes(dump_object(status._asdict()))
        scratch.replace(folder / _CONTROL_FILE)


def read_control_status(folder: Path) -> ControlStatus | None:
    """The status, or None when there is none, or a damaged one."""
    with suppress(OSError, CorruptData):
        fields = parse_object(read_bounded(folder / _CONTROL_FILE, _MAX_BYTES), _CONTROL_FILE)
        check_fields(fields, _CONTROL_FIELDS, _CONTROL_FILE)
        return ControlStatus(**fields)
    return None
