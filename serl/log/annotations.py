"""What people and scripts say of recorded steps: an append-only file beside the episodes.

A line is a JSON object; the last one that names a step counts, so that a label can be corrected
and the file still says who said what before.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

from serl.errors import BadInput, CorruptData
from serl.system.json_fields import check_fields, read_objects, short
from serl.system.files import open_regular
from serl.types import Image

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


class Place(NamedTuple):
    """A step in a folder of episodes; the number of its steps stands for the final observation."""

    epoch: int
    episode: int
    step: int


class Word(NamedTuple):
    """What was said of a step, by whom, and when (seconds since 1970)."""

    place: Place
    label: int
    by: str
    wall_s: float


def append_labels(
    folder: Path,
    labels: Iterable[tuple[Place, int]],
    by: str,
    now_s: float | None = None,
    file: str = LABELS_FILE,
) -> int:
    """Say of steps what they are: 0 for nothing, 1 for success or a first stage, and so on.

    Returns:
        How many were written.

    Raises:
        BadInput: a label that cannot be, or a disk that refuses.
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
    """A line without an end was being written when its writer died; it says nothing."""
    with open_regular(path) as stream:
        stream.seek(max(0, stream.seek(0, os.SEEK_END) - 1))
        whole = stream.read() in (b"", b"\n")
    if not whole:
        os.truncate(path, path.read_bytes().rfind(b"\n") + 1)


def read_labels(folder: Path, file: str = LABELS_FILE) -> dict[Place, int]:
    """The label of each step that has one, the last that was said; raises as `read_words`."""
    return {word.place: word.label for word in read_words(folder, file)}


def read_words(folder: Path, file: str = LABELS_FILE) -> Iterator[Word]:
    """All that was ever said of steps, in its order; nothing without a file.

    A last line that was cut is left out.

    Raises:
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
        place = Place(fields["epoch"], fields["episode"], fields["step"])
        yield Word(place, label, fields["by"], fields["wall_s"])


class Origin(NamedTuple):
    """Where a sample comes from."""

    folder: Path
    place: Place


class Samples(NamedTuple):
    """Labelled frames of several episodes.

    Attributes:
        images: by view.  # (N, H, W, 3)
        labels: classes.  # (N,)
        episodes: number of the episode that each is of.  # (N,)
        origins: where each comes from.
        tools_m: where the tool was, base frame; not a number where nobody wrote it down.  # (N, 3)
    """

    images: Mapping[str, Image]
    labels: np.ndarray[Any, np.dtype[np.int64]]
    episodes: np.ndarray[Any, np.dtype[np.int64]]
    origins: tuple[Origin, ...]
    tools_m: np.ndarray[Any, np.dtype[np.float32]]

    def where(self, kept: np.ndarray[Any, np.dtype[np.bool_]]) -> Self:
        """Those that are kept."""
        return type(self)(
            {name: frames[kept] for name, frames in self.images.items()},
            self.labels[kept],
            self.episodes[kept],
            tuple(self.origins[row] for row in np.flatnonzero(kept)),
            self.tools_m[kept],
        )
