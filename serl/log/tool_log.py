"""Where the tool was at each observation of an episode: policies may be shown something else.

Audits and trainings of reward models read it, as the reward itself reads it from the robot; no
agent does. A line an episode, a JSON object; of a very long episode several, one after the other.
"""

from __future__ import annotations

import logging
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from serl.log.episode_reader import EpisodeName
from serl.errors import CorruptData
from serl.system.json_fields import check_fields, dump_object, read_objects, short
from serl.system.files import open_regular
from serl.log.annotations import drop_cut_line
from serl.types import Array, Observation, Record, Step

TOOLS_FILE = "tools.jsonl"
_TOOL_FIELDS = {"epoch": int, "episode": int, "tools_m": list}
_LINE_PLACES = 10_000  # below 100 bytes each, so that a line can be read again
_NOWHERE = [None, None, None]

logger = logging.getLogger(__name__)


class ToolLog:
    """Keeps where the tool of an arm is; of a robot without one there is no file.

    Args:
        folder: of an actor's episodes.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: deque[tuple[float, list[float]]] = deque(maxlen=4)  # stamps and places, m
        self._tools_m: list[list[float] | list[None]] = []

    def see(self, reading: Observation) -> None:
        """A reading came from the robot."""
        if "tcp_pose" in reading.state and "robot" in reading.stamps:
            place = [round(value, 6) for value in reading.state["tcp_pose"][:3].tolist()]
            self._read.append((reading.stamps["robot"], place))

    def take(self, record: Record) -> None:
        """A record was logged, of a reading that was seen; at an end all is written."""
        stamp_s, key = record.observation.stamps.get("robot"), record.key
        if key.index == 0:
            self._tools_m = []
        found = [place for read_s, place in self._read if read_s == stamp_s]
        self._tools_m.append(found[-1] if found else _NOWHERE)
        if isinstance(record, Step) or all(place is _NOWHERE for place in self._tools_m):
            return
        name = {"epoch": key.epoch, "episode": key.episode}
        lines = [
            dump_object({**name, "tools_m": self._tools_m[first : first + _LINE_PLACES]}) + b"\n"
            for first in range(0, len(self._tools_m), _LINE_PLACES)
        ]
        try:
            with open_regular(self._folder / TOOLS_FILE, mode="ab") as stream:
                drop_cut_line(self._folder / TOOLS_FILE)
                stream.write(b"".join(lines))
        except (OSError, CorruptData) as error:  # an audit will miss it, nothing else does
            logger.warning("%s: %s", self._folder / TOOLS_FILE, error)


def read_tools(folder: Path) -> dict[EpisodeName, Array]:
    """Where the tool was at the observations of each episode, base frame, m.  # (N, 3) each.

    Not a number where nobody knows; nothing without a file. A last line that was cut is left out.

    Raises:
        CorruptData: another line is damaged; the error names it.
    """
    path = folder / TOOLS_FILE
    found: dict[EpisodeName, Array] = {}
    if not path.is_file():
        return found
    for where, fields in read_objects(path):
        check_fields(fields, _TOOL_FIELDS, where)
        name = EpisodeName(fields["epoch"], fields["episode"])
        places = _places(fields["tools_m"], where)
        found[name] = np.concatenate([found[name], places]) if name in found else places
    return found


def _places(values: list[Any], where: str) -> Array:
    with suppress(TypeError, ValueError, OverflowError):
        if {type(each) for place in values for each in place} <= {float, int, type(None)}:
            places = np.array(values, np.float32)  # None is no number
            if places.shape == (len(values), 3) and not np.isinf(places).any():
                return places
    raise CorruptData(f"{where}: expected places x, y, z, got {short(values)}")
