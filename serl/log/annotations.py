"""Labels of recorded steps by people and scripts: an append-only file beside the episodes.

Each line is a JSON object; the last line of a step is its label, so that a label can be corrected
while the file still holds the earlier labels and their authors.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

from serl.errors import BadInput, CorruptData
from serl.log.episode_reader import EpisodeName
from serl.loop import Observer
from serl.system.files import open_regular
from serl.system.json_fields import check_fields, dump_object, read_objects, short
from serl.types import ActionSource, Array, End, Image, Key, Observation, Record, Step

LABELS_FILE = "labels.jsonl"
_LABEL_FIELDS = {
    "epoch": int,
    "episode": int,
    "step": int,
    "label": int,
    "by": str,
    "wall_s": float,
}
_MAX_LABEL = 63


class StepKey(NamedTuple):
    """A step in a folder of episodes; the index after the last step is the final observation."""

    epoch: int
    episode: int
    step: int


class LabelEntry(NamedTuple):
    """A line of the label file: a label of a step, its author and time (seconds since 1970)."""

    place: StepKey
    label: int
    by: str
    wall_s: float


def append_labels(
    folder: Path,
    labels: Iterable[tuple[StepKey, int]],
    by: str,
    now_s: float | None = None,
    file: str = LABELS_FILE,
) -> int:
    """Append labels of steps: 0 for nothing, 1 for success or a first stage, and so on.

    Returns:
        Number of labels written.

    Raises:
        BadInput: a label is out of range, or the file cannot be written.
    """
    lines = []
    for place, label in labels:
        if not 0 <= label <= _MAX_LABEL:
            raise BadInput(f"label {label}: expected 0 to {_MAX_LABEL}")
        wall_s = float(time.time() if now_s is None else now_s)
        lines.append(json.dumps({**place._asdict(), "label": label, "by": by, "wall_s": wall_s}))
    try:
        with open_regular(folder / file, mode="ab") as stream:
            drop_cut_line(folder / file)
            stream.write("".join(f"{line}\n" for line in lines).encode())
    except OSError as error:
        raise BadInput(f"{folder / file}: {error.strerror}") from error
    return len(lines)


def drop_cut_line(path: Path) -> None:
    """Remove a last line without an end, which a writer left incomplete when it died."""
    with open_regular(path) as stream:
        stream.seek(max(0, stream.seek(0, os.SEEK_END) - 1))
        whole = stream.read() in (b"", b"\n")
    if not whole:
        os.truncate(path, path.read_bytes().rfind(b"\n") + 1)


def read_labels(folder: Path, file: str = LABELS_FILE) -> dict[StepKey, int]:
    """Return the last label of each labelled step; raise as `read_label_entries` does."""
    return {entry.place: entry.label for entry in read_label_entries(folder, file)}


def read_label_entries(folder: Path, file: str = LABELS_FILE) -> Iterator[LabelEntry]:
    """Yield all labels in the order of writing, corrected ones included; none without a file.

    A truncated last line is left out.

    Raises:
        BadInput: the path is not that of a file.
        CorruptData: another line is damaged; the error names it.
    """
    path = folder / file
    if not path.exists():
        return
    if not path.is_file():
        raise BadInput(f"{path}: expected a file")
    for where, fields in read_objects(path):
        check_fields(fields, _LABEL_FIELDS, where)
        label = fields["label"]
        if not 0 <= label <= _MAX_LABEL:
            raise CorruptData(f"{where}: label {short(label)}, allowed 0 to {_MAX_LABEL}")
        place = StepKey(fields["epoch"], fields["episode"], fields["step"])
        yield LabelEntry(place, label, fields["by"], fields["wall_s"])


class Origin(NamedTuple):
    """The folder and the step of a sample."""

    folder: Path
    place: StepKey


class Samples(NamedTuple):
    """Labelled frames of several episodes.

    Attributes:
        images: frames by view.  # (N, H, W, 3)
        labels: class of each frame.  # (N,)
        episodes: number of each frame's episode.  # (N,)
        origins: folder and step of each frame.
        tools_m: position of the tool in the base frame; NaN if not recorded.  # (N, 3)
    """

    images: Mapping[str, Image]
    labels: np.ndarray[Any, np.dtype[np.int64]]
    episodes: np.ndarray[Any, np.dtype[np.int64]]
    origins: tuple[Origin, ...]
    tools_m: np.ndarray[Any, np.dtype[np.float32]]

    def where(self, kept: np.ndarray[Any, np.dtype[np.bool_]]) -> Self:
        """Return the samples for which `kept` is true."""
        return type(self)(
            {name: frames[kept] for name, frames in self.images.items()},
            self.labels[kept],
            self.episodes[kept],
            tuple(self.origins[row] for row in np.flatnonzero(kept)),
            self.tools_m[kept],
        )


TOOLS_FILE = "tools.jsonl"
_TOOL_FIELDS = {"epoch": int, "episode": int, "tools_m": list}
_LINE_PLACES = 10_000  # below 100 bytes each, so that a line can be read again
_NOWHERE = [None, None, None]

logger = logging.getLogger(__name__)


class ToolLog(Observer):
    """A log of the tool's positions; a robot without a tool pose gets no file.

    Args:
        folder: folder of an actor's episodes.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._readings: deque[tuple[float, list[float]]] = deque(maxlen=4)  # stamps, positions (m)
        self._tools_m: list[list[float] | list[None]] = []

    def on_reading(self, reading: Observation) -> None:
        """Note the tool's position in a reading of the robot."""
        if "tcp_pose" in reading.state and "robot" in reading.stamps:
            place = [round(value, 6) for value in reading.state["tcp_pose"][:3].tolist()]
            self._readings.append((reading.stamps["robot"], place))

    def on_step(self, step: Step) -> None:
        """Note that a step of an earlier reading was logged."""
        self._add(step)

    def on_end(self, end: End) -> None:
        """Write the episode."""
        self._add(end)
        if any(place is not _NOWHERE for place in self._tools_m):
            self._write(end.key)

    def _add(self, record: Record) -> None:
        stamp_s, key = record.observation.stamps.get("robot"), record.key
        if key.index == 0:
            self._tools_m = []
        found = [place for read_s, place in self._readings if read_s == stamp_s]
        self._tools_m.append(found[-1] if found else _NOWHERE)

    def _write(self, key: Key) -> None:
        name = {"epoch": key.epoch, "episode": key.episode}
        lines = [
            dump_object({**name, "tools_m": self._tools_m[first : first + _LINE_PLACES]}) + b"\n"
            for first in range(0, len(self._tools_m), _LINE_PLACES)
        ]
        try:
            with open_regular(self._folder / TOOLS_FILE, mode="ab") as stream:
                drop_cut_line(self._folder / TOOLS_FILE)
                stream.write(b"".join(lines))
        except (OSError, CorruptData) as error:  # only an audit needs the file
            logger.warning("%s: %s", self._folder / TOOLS_FILE, error)


def read_tools(folder: Path) -> dict[EpisodeName, Array]:
    """Read the tool's position at each observation, by episode, base frame, m.  # (N, 3) each.

    Unknown positions are NaN; the result is empty without a file. A truncated last line is left
    out.

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
            places = np.array(values, np.float32)  # None becomes NaN
            if places.shape == (len(values), 3) and not np.isinf(places).any():
                return places
    raise CorruptData(f"{where}: expected places x, y, z, got {short(values)}")


TRUTH_FILE = "truth.jsonl"
_BY = "simulation"


class TruthLog(Observer):
    """A log of the observations at which the task begins and ceases to be solved, per episode.

    Args:
        folder: folder of an actor's episodes.
        solved: returns whether the task was solved at the newest reading.
    """

    def __init__(self, folder: Path, solved: Callable[[], bool]) -> None:
        self._folder, self._solved = folder, solved
        self._changes: list[tuple[StepKey, int]] = []
        self._newest: tuple[StepKey, int] | None = None

    def on_step(self, step: Step) -> None:
        """Note whether the task is solved after a step, unless a script made it, as in a reset."""
        if step.source is ActionSource.SCRIPT:
            return
        key = step.key
        now = StepKey(key.epoch, key.episode, key.index + 1), int(self._solved())
        if self._newest is None:
            self._changes.append(now)
        elif self._newest[1] != now[1]:
            self._changes += [self._newest, now]
        self._newest = now

    def on_end(self, end: End) -> None:
        """Write the episode."""
        if self._newest is None:
            return
        labels = dict([*self._changes, self._newest])
        self._changes, self._newest = [], None
        try:
            append_labels(self._folder, labels.items(), _BY, file=TRUTH_FILE)
        except BadInput as error:  # only an audit needs the file
            logger.warning("%s", error)
