"""Labelled images of recorded steps, on which a reward model is trained and measured."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
from pydantic import ValidationError

from serl.camera import View
from serl.errors import BadInput, CorruptData, SerlError, SpecMismatch
from serl.log.annotations import Origin, Samples, StepKey, read_labels, read_tools
from serl.log.episode_reader import (
    EpisodeName,
    episode_name,
    episode_paths,
    read_episode,
    read_spec,
)
from serl.runs.folder import CONFIG, RunFolder
from serl.runs.task_setup import logged_views, renderer_of
from serl.system.files import read_bounded, write_atomic
from serl.system.json_fields import MAX_JSON_BYTES, parse_object
from serl.training.successes import Successes
from serl.types import Array, Episode, Image, Observation

VIEWS = "views.json"
_NOWHERE = np.full(3, np.nan, np.float32)
_UNNOTED = np.zeros((0, 3), np.float32)


class Sight(NamedTuple):
    """The camera views in the images of episodes, and their renderer; empty if not recorded."""

    views: dict[str, View]
    renderer: str


class LabelledRecording(NamedTuple):
    """A recorded episode, possibly without an end, with its labels.

    Attributes:
        folder: folder of the episode's file.
        labels: labels by step number.
        noted_m: tool positions that the actor logged beside the episode.  # (N, 3), or empty
    """

    folder: Path
    name: EpisodeName
    episode: Episode
    labels: Mapping[int, int]
    noted_m: Array = _UNNOTED

    @property
    def observations(self) -> tuple[Observation, ...]:
        """The observations of the steps, and the final one if recorded."""
        end = (self.episode.end,) if self.episode.end else ()
        return tuple(record.observation for record in (*self.episode.steps, *end))

    @property
    def tools_m(self) -> Array:
        """The tool positions at each observation, m, base frame; NaN if unknown.  # (N, 3)."""
        seen = self.observations
        noted = self.noted_m if len(self.noted_m) == len(seen) else [_NOWHERE] * len(seen)
        places = [
            each.state.get("tcp_pose", place)[:3] for each, place in zip(seen, noted, strict=True)
        ]
        return np.array(places, np.float32).reshape(-1, 3)

    def origin(self, step: int) -> Origin:
        """Return the folder, file and step of an observation."""
        return Origin(self.folder, StepKey(*self.name, step))


def write_views(folder: Path, views: Mapping[str, View], renderer: str = "") -> None:
    """Write the views and the renderer of a folder's images into its views.json."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"{folder}: cannot be made: {error.strerror}") from error
    shown = {name: view.model_dump(mode="json") for name, view in views.items()}
    values = {"renderer": renderer, "views": shown}
    write_atomic(folder / VIEWS, json.dumps(values, indent=2).encode())


def read_sight(folder: Path) -> Sight:
    """Return the views and the renderer of a collection, or of a folder of a run's actor.

    Raises:
        BadInput: the folder is neither.
        CorruptData: the collection's views.json is damaged.
    """
    path = folder / VIEWS
    if not path.exists():
        run = run_of(folder)
        if run is None:
            raise BadInput(
                f"{folder}: expected a collection with {VIEWS}, a run, or RUN/episodes/ACTOR of one"
            )
        return Sight(dict(logged_views(run.config)), renderer_of(run.config))
    values = parse_object(read_bounded(path, MAX_JSON_BYTES), str(path))
    renderer, shown = values.get("renderer"), values.get("views")
    if not (isinstance(renderer, str) and isinstance(shown, dict)):
        renderer, shown = "", values  # the older format, without a renderer
    try:
        return Sight({name: View.model_validate(value) for name, value in shown.items()}, renderer)
    except ValidationError as error:
        raise CorruptData(f"{path}: {error.errors()[0]['msg']}") from error


def run_of(folder: Path) -> RunFolder | None:
    """Return the run of a folder RUN/episodes/ACTOR; None for any other folder."""
    above = folder.resolve().parent
    with suppress(SerlError):
        return RunFolder.open(above.parent) if above.name == "episodes" else None
    return None


def episode_folders(paths: Sequence[Path]) -> list[Path]:
    """Return the folders of episodes at these paths; of a run, those of all actors and stages.

    Each folder is returned once, even if named several times: otherwise copies of one episode could
    be in both the training and the test set.

    Raises:
        BadInput: a path is not a folder, or is a run without a recorded episode.
    """
    folders: list[Path] = []
    for path in paths:
        if not path.is_dir():
            raise BadInput(f"{path}: no such folder; expected a collection, or a run")
        if (path / VIEWS).exists() or not (path / CONFIG).exists():
            folders.append(path)
            continue
        parts = RunFolder.open(path, data_only=True).parts().values()
        found = [part.episodes(actor) for part in parts for actor in part.actors()]
        if not found:
            raise BadInput(f"{path}: no actor of this run has recorded an episode")
        folders += found
    once: dict[Path, Path] = {}
    for folder in folders:
        once.setdefault(folder.resolve(), folder)
    return list(once.values())


def task_of(folders: Sequence[Path]) -> str:
    """Return the name of the episodes' task; empty without episodes.

    Raises:
        CorruptData: an episode is damaged.
        SpecMismatch: the episodes are of several tasks.
    """
    tasks: dict[str, Path] = {}
    for folder in folders:
        specs = (read_spec(path) for path in episode_paths(folder))
        if spec := next(filter(None, specs), None):
            tasks.setdefault(spec.task, folder)
    if len(tasks) > 1:
        several = "; ".join(f"{folder} of {task}" for task, folder in tasks.items())
        raise SpecMismatch(f"episodes of several tasks: {several}; expected those of one")
    return next(iter(tasks), "")


def recordings(
    folder: Path, views: Mapping[str, View], labelled: bool
) -> Iterator[LabelledRecording]:
    """Yield the episodes of a folder, with the images of the given views only.

    Args:
        folder: folder of episodes and their labels.
        views: views to read.
        labelled: whether to skip episodes without a label.

    Raises:
        BadInput: the episodes have no images.
        CorruptData: an episode, a label or a tool position is damaged.
        SpecMismatch: the images are of other views.
    """
    found, labels = read_sight(folder).views, read_labels(folder)
    if not found:
        raise BadInput(f"{folder}: its episodes have no images, only state (--observe pixels)")
    for view_name, view in views.items():
        if found.get(view_name) != view:
            other = found.get(view_name, "none")
            raise SpecMismatch(f"{folder}: view {view_name!r}: expected {view}, found {other}")
    noted = read_tools(folder)
    for path in episode_paths(folder):
        name = episode_name(path)
        here = {place.step: label for place, label in labels.items() if place[:2] == name}
        spec = None if labelled and not here else read_spec(path)
        if spec is None:
            continue
        if lacking := sorted(views.keys() - spec.observation.images.keys()):
            raise SpecMismatch(f"{path}: was recorded without {', '.join(lacking)}")
        episode, noted_m = read_episode(path, spec.with_images(views)), noted.get(name, _UNNOTED)
        yield LabelledRecording(folder, name, episode, here, noted_m)


def read_images(origins: Sequence[Origin], views: Sequence[str]) -> dict[str, Image]:
    """Return the images of observations that were read before, in their order.  # (N, H, W, 3)."""
    found: dict[Origin, Observation] = {}
    for folder, place in dict.fromkeys(
        (origin.folder, EpisodeName(*origin.place[:2])) for origin in origins
    ):
        path = next(path for path in episode_paths(folder) if episode_name(path) == place)
        spec = read_spec(path)
        assert spec is not None  # it was read before
        recorded = LabelledRecording(folder, place, read_episode(path, spec.with_images(views)), {})
        for step, observation in enumerate(recorded.observations):
            found[recorded.origin(step)] = observation
    return {
        name: np.array([found[origin].images[name] for origin in origins], np.uint8)
        for name in views
    }


def read_samples(
    folders: Sequence[Path], views: Mapping[str, View] | None = None
) -> tuple[Samples, dict[str, View]]:
    """Return the labelled observations of folders of episodes, and the views that were read.

    Args:
        folders: folders of episodes and their labels.
        views: views to read; by default all views of the first folder.

    Raises:
        BadInput: no step is labelled, or a folder is not one of episodes with images.
        CorruptData: an episode, a label or a tool position is damaged.
        SpecMismatch: the folders have other views.
    """
    images: dict[str, list[Image]] = {}
    labels: list[int] = []
    episodes: list[int] = []
    origins: list[Origin] = []
    tools_m: list[Array] = []
    expected = dict(views) if views else {}
    number = 0
    for folder in folders:
        expected = expected or read_sight(folder).views
        if not expected:
            raise BadInput(f"{folder}: its episodes have no images to learn from")
        for recorded in recordings(folder, expected, labelled=True):
            number += 1
            places_m = recorded.tools_m
            for step, observation in enumerate(recorded.observations):
                if step in recorded.labels:
                    for name in expected:
                        images.setdefault(name, []).append(observation.images[name])
                    labels.append(recorded.labels[step])
                    episodes.append(number)
                    origins.append(recorded.origin(step))
                    tools_m.append(places_m[step])
    if not labels:
        where = ", ".join(map(str, folders))
        raise BadInput(
            f"{where}: no step of any episode is labelled: mark some by serl reward label "
            "FOLDER --episode N --steps FIRST:LAST --label 1, and others by --label 0"
        )
    arrays = {name: np.stack(frames) for name, frames in images.items()}
    found_m = np.array(tools_m, np.float32)
    return Samples(arrays, np.array(labels), np.array(episodes), tuple(origins), found_m), expected


def with_labelled(
    successes: Successes, folders: Sequence[Path], views: Mapping[str, View]
) -> Successes:
    """Return the successes together with the steps of collections that are labelled as successes.

    Success is the highest label of each collection, as lower ones may mark intermediate stages.

    Args:
        successes: successes of demonstrations.
        folders: collections, or runs.
        views: the policy's views.

    Raises:
        BadInput: the policy sees no images, or a folder holds no labelled success.
        CorruptData: an episode or a label is damaged.
        SpecMismatch: the images are of other views.
    """
    if not folders:
        return successes
    if not views:
        raise BadInput("vice.positives: are images, and the policy sees none (--observe pixels)")
    images = {name: [frames] for name, frames in successes.images.items()}
    for folder in folders:
        samples, _ = read_samples(episode_folders([folder]), views)
        if not (highest := samples.labels.max()):
            raise BadInput(
                f"vice.positives: {folder}: none of its {len(samples.labels)} labelled steps is a "
                "success (serl reward label FOLDER ... --label 1)"
            )
        for name, frames in images.items():
            frames.append(samples.images[name][samples.labels == highest])
    joined = {name: np.concatenate(frames) for name, frames in images.items()}
    count = len(next(iter(joined.values())))
    return Successes(np.zeros((count, 0), np.float32), joined)
