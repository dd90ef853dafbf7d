"""How an actor's link fares, told through a file: for those who watch a run without ROS."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from serl.errors import CorruptData
from serl.system.json_fields import check_fields, dump_object, parse_object
from serl.system.files import read_bounded

PERIOD_S = 1.0
"""The link process tells its status this often."""

_LINK_FILE = "status.json"
_FRESH_S = 4.0
_MAX_BYTES = 4096
_LINK_FIELDS = {"acknowledged": int, "waiting": int, "connected": bool}


class LinkStatus(NamedTuple):
    """What has become of the records of an actor, since its start.

    Attributes:
        acknowledged: records that the learner holds.
        waiting: records that were sent, or are about to be, and are not acknowledged.
        connected: a learner answers.
    """

    acknowledged: int
    waiting: int
    connected: bool


def write_status(folder: Path, status: LinkStatus) -> None:
    """Replace the status in the folder where an actor and its link meet; a full disk keeps the old.

    Nothing depends on it, so it need not survive a power cut either.
    """
    scratch = folder / f".{_LINK_FILE}"
    with suppress(OSError):
        scratch.write_bytes(dump_object(status._asdict()))
        scratch.replace(folder / _LINK_FILE)


def read_status(folder: Path, wall_s: Callable[[], float] = time.time) -> LinkStatus | None:
    """The status, or None when it is absent, out of date or damaged."""
    with suppress(OSError, CorruptData):
        fields = parse_object(read_bounded(folder / _LINK_FILE, _MAX_BYTES), _LINK_FILE)
        check_fields(fields, _LINK_FIELDS, _LINK_FILE)
        if wall_s() - (folder / _LINK_FILE).stat().st_mtime <= _FRESH_S:
            return LinkStatus(**fields)
    return None
