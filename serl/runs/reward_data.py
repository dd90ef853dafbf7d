"""Labelled images of recorded steps, as a reward model is trained on and measured with."""

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
from serl.runs.task_setup import drawn_by, logged_views
from serl.system.files import read_bounded, write_atomic
from serl.system.json_fields import MAX_JSON_BYTES, parse_object
from serl.training.successes import Successes
from serl.types import Array, Episode, Image, Observation

VIEWS = "views.json"
_NOWHERE = np.full(3, np.nan, np.float32)
_UNNOTED = np.zeros((0, 3), np.float32)


class Sight(NamedTuple):
    """What the images of episodes are of, and what drew them; empty where nobody wrote it down."""

    views: dict[str, View]
    renderer: str


class LabelledRecording(NamedTuple):
    """An episode as far as it was recorded.

    Attributes:
        folder: where it lies.
        name: of its file.
        episode: what was recorded.
        labels: what was said of its steps, by number.
        noted_m: where the tool was, as the actor noted beside it.  # (N, 3), empty if it did not
    """

    folder: Path
    name: EpisodeName
    episode: Episode
    labels: Mapping[int, int]
    noted_m: Array = _UNNOTED

    @property
    def observations(self) -> tuple[Observation, ...]:
        """Those of the steps, and the final one."""
        end = (self.episode.end,) if self.episode.end else ()
        return tuple(record.observation for record in (*self.episode.steps, *end))

    @property
    def tools_m(self) -> Array:
        """Where the tool was at each observation, base frame; NaN if unknown.  # (N, 3)."""
        seen = self.observations
        noted = self.noted_m if len(self.noted_m) == len(seen) else [_NOWHERE] * len(seen)
        places = [
            each.state.get("tcp_pose", place)[:3] for each, place in zip(seen, noted, strict=True)
        ]
        return np.array(places, np.float32).reshape(-1, 3)

    def origin(self, step: int) -> Origin:
        """Where an observation lies."""
        return Origin(self.folder, StepKey(*self.name, step))


def write_views(folder: Path, views: Mapping[str, View], renderer: str = "") -> None:
    """Say beside episodes what their images are of, and what drew them."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"{folder}: cannot be made: {error.strerror}") from error
    shown = {name: view.model_dump(mode="json") for name, view in views.items()}
    values = {"renderer": renderer, "views": shown}
    write_atomic(folder / VIEWS, json.dumps(values, indent=2).encode())


def read_sight(folder: Path) -> Sight:
    """What the images of a folder of episodes are of: a collection's, or those of a run's actor.

    Raises:
        BadInput: it is neither.
        CorruptData: the file that says so is damaged.
    """
    path = folder / VIEWS
    if not path.exists():
        run = run_of(folder)
        if run is None:
            raise BadInput(
                f"{folder}: expected a collection with {VIEWS}, a run, or RUN/episodes/ACTOR of one"
            )
        return Sight(dict(logged_views(run.config)), drawn_by(run.config))
    values = parse_object(read_bounded(path, MAX_JSON_BYTES), str(path))
    renderer, shown = values.get("renderer"), values.get("views")
    if not (isinstance(renderer, str) and isinstance(shown, dict)):
        renderer, shown = "", values  # as it was written before it said so
    try:
        return Sight({name: View.model_validate(value) for name, value in shown.items()}, renderer)
    except ValidationError as error:
        raise CorruptData(f"{path}: {error.errors()[0]['msg']}") from error


def run_of(folder: Path) -> RunFolder | None:
    """The run of a folder RUN/episodes/ACTOR; None where it is no such folder."""
    above = folder.resolve().parent
    with suppress(SerlError):
        return RunFolder.open(above.parent) if above.name == "episodes" else None
    return None


def episode_folders(paths: Sequence[Path]) -> list[Path]:
    """The folders of episodes in these: of a run those of all its actors, of all its stages.

    Each is there once, however often it is named: its episodes would count as several, of which
    one is measured on and another one trained.

    Raises:
        BadInput: a run in which no actor has recorded anything, or a folder is none of ours.
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
    """The task that episodes are of; empty without any.

    Raises:
        CorruptData: an episode is damaged.
        SpecMismatch: they are of several tasks.
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
    """The episodes of a folder, with the images of these views and no others.

    Args:
        folder: of episodes and their labels.
        views: what is asked for.
        labelled: only episodes of which something was said.

    Raises:
        CorruptData: an episode, a label or a place is damaged.
        SpecMismatch: its images are of other views.
    """
    found, said = read_sight(folder).views, read_labels(folder)
    if not found:
        raise BadInput(f"{folder}: its episodes have no images, only state (--observe pixels)")
    for view_name, view in views.items():
        if found.get(view_name) != view:
            other = found.get(view_name, "none")
            raise SpecMismatch(f"{folder}: view {view_name!r}: expected {view}, found {other}")
    noted = read_tools(folder)
    for path in episode_paths(folder):
        name = episode_name(path)
        here = {place.step: label for place, label in said.items() if place[:2] == name}
        spec = None if labelled and not here else read_spec(path)
        if spec is None:
            continue
        if lacking := sorted(views.keys() - spec.observation.images.keys()):
            raise SpecMismatch(f"{path}: was recorded without {', '.join(lacking)}")
        episode, noted_m = read_episode(path, spec.limited_to(views)), noted.get(name, _UNNOTED)
        yield LabelledRecording(folder, name, episode, here, noted_m)


def read_images(origins: Sequence[Origin], views: Sequence[str]) -> dict[str, Image]:
    """The images of observations that were read before, in their order.  # (N, H, W, 3)."""
    found: dict[Origin, Observation] = {}
    for folder, place in dict.fromkeys(
        (origin.folder, EpisodeName(*origin.place[:2])) for origin in origins
    ):
        path = next(path for path in episode_paths(folder) if episode_name(path) == place)
        spec = read_spec(path)
        assert spec is not None  # it was read before
        recorded = LabelledRecording(folder, place, read_episode(path, spec.limited_to(views)), {})
        for step, observation in enumerate(recorded.observations):
            found[recorded.origin(step)] = observation
    return {
        name: np.array([found[origin].images[name] for origin in origins], np.uint8)
        for name in views
    }


def read_samples(
    folders: Sequence[Path], views: Mapping[str, View] | None = None
) -> tuple[Samples, dict[str, View]]:
    """The labelled observations of folders of episodes, and the views that they share.

    Args:
        folders: each holds episodes and their labels.
        views: what is asked for; by default all views of the first folder.

    Raises:
        BadInput: nothing is labelled, or a folder is none.
        CorruptData: an episode, a label or a place is damaged.
        SpecMismatch: the folders show other views.
    """
    images: dict[str, list[Image]] = {}
    labels: list[int] = []
    episodes: list[int] = []
    origins: list[Origin] = []
    tools_m: list[Array] = []
    wanted = dict(views) if views else {}
    number = 0
    for folder in folders:
        wanted = wanted or read_sight(folder).views
        if not wanted:
            raise BadInput(f"{folder}: its episodes have no images to learn from")
        for recorded in recordings(folder, wanted, labelled=True):
            number += 1
            places_m = recorded.tools_m
            for step, observation in enumerate(recorded.observations):
                if step in recorded.labels:
                    for name in wanted:
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
    return Samples(arrays, np.array(labels), np.array(episodes), tuple(origins), found_m), wanted


def with_labelled(
    successes: Successes, folders: Sequence[Path], views: Mapping[str, View]
) -> Successes:
    """These, and the steps of collections that are labelled as successes.

    In each that is the highest label: it may tell stages on the way as well.

    Args:
        successes: of demonstrations.
        folders: collections, or runs.
        views: what the policy sees.

    Raises:
        BadInput: the policy sees no images, or a folder holds no labelled success.
        CorruptData: an episode or a label is damaged.
        SpecMismatch: the images are of other views.
    """
    from serl.runs.reward_data import (  # make tasks, by what needs this
        episode_folders,
        read_samples,
    )

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
