"""Labelled images of recorded steps, as a reward model is trained on and measured with."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from pydantic import ValidationError

from serl.assignment import logged_views
from serl.camera import View
from serl.episodes import episode_name, episode_paths, read_episode, read_spec
from serl.errors import BadInput, CorruptData, SerlError, SpecMismatch
from serl.fields import MAX_JSON_BYTES, parse_object
from serl.files import read_bounded, write_atomic
from serl.labels import Place, read_labels
from serl.run_folder import RunFolder
from serl.types import Image

VIEWS = "views.json"
_NOWHERE = np.full(7, np.nan, np.float32)


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


def write_views(folder: Path, views: Mapping[str, View]) -> None:
    """Say beside episodes what their images are of."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"{folder}: cannot be made: {error.strerror}") from error
    values = {name: view.model_dump(mode="json") for name, view in views.items()}
    write_atomic(folder / VIEWS, json.dumps(values, indent=2).encode())


def read_views(folder: Path) -> dict[str, View]:
    """What the images of a folder of episodes are of: a collection's, or those of a run's actor.

    Raises:
        BadInput: it is neither.
        CorruptData: the file that says so is damaged.
    """
    path = folder / VIEWS
    if not path.exists():
        try:
            config = RunFolder.open(folder.resolve().parent.parent).config
        except SerlError:
            raise BadInput(
                f"{folder}: expected a collection with {VIEWS}, or RUN/episodes/ACTOR of a run"
            ) from None
        return dict(logged_views(config))
    values = parse_object(read_bounded(path, MAX_JSON_BYTES), str(path))
    try:
        return {name: View.model_validate(value) for name, value in values.items()}
    except ValidationError as error:
        raise CorruptData(f"{path}: {error.errors()[0]['msg']}") from error


def read_samples(
    folders: Sequence[Path], views: Mapping[str, View] | None = None
) -> tuple[Samples, dict[str, View]]:
    """The labelled observations of folders of episodes, and the views that they share.

    Args:
        folders: each holds episodes and their labels.
        views: what is asked for; by default all views of the first folder.

    Raises:
        BadInput: nothing is labelled, or a folder is none.
        CorruptData: an episode or a label is damaged.
        SpecMismatch: the folders show other views.
    """
    images: dict[str, list[Image]] = {}
    labels: list[int] = []
    episodes: list[int] = []
    origins: list[Origin] = []
    tools_m: list[np.ndarray[Any, np.dtype[np.float32]]] = []
    wanted = dict(views) if views else {}
    number = 0
    for folder in folders:
        found, said = read_views(folder), read_labels(folder)
        wanted = wanted or found
        if not wanted:
            raise BadInput(f"{folder}: its episodes have no images to learn from")
        for name, view in wanted.items():
            if found.get(name) != view:
                raise SpecMismatch(
                    f"{folder}: view {name!r}: expected {view}, found {found.get(name, 'none')}"
                )
        for path in episode_paths(folder):
            epoch, episode = episode_name(path)
            here = {place: label for place, label in said.items() if place[:2] == (epoch, episode)}
            spec = read_spec(path) if here else None
            if spec is None:
                continue
            if lacking := sorted(wanted.keys() - spec.observation.images.keys()):
                raise SpecMismatch(f"{path}: was recorded without {', '.join(lacking)}")
            number += 1
            recorded = read_episode(path, spec)
            for record in (*recorded.steps, *((recorded.end,) if recorded.end else ())):
                place = Place(epoch, episode, record.key.index)
                if place in here:
                    for name in wanted:
                        images.setdefault(name, []).append(record.observation.images[name])
                    labels.append(here[place])
                    episodes.append(number)
                    origins.append(Origin(folder, place))
                    tools_m.append(record.observation.state.get("tcp_pose", _NOWHERE)[:3])
    if not labels:
        raise BadInput(f"{', '.join(map(str, folders))}: no step of any episode is labelled")
    arrays = {name: np.stack(frames) for name, frames in images.items()}
    found_m = np.array(tools_m, np.float32)
    return Samples(arrays, np.array(labels), np.array(episodes), tuple(origins), found_m), wanted
