"""What is known of recorded steps: what was said of them, else how the run's own task judged."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from serl.camera import View
from serl.log.annotations import Origin, read_labels
from serl.reward import RewardConfig, may_be_there
from serl.runs.reward_data import Recorded, recordings, run_of
from serl.log.truth_log import TRUTH_FILE
from serl.types import Image, Source

UNKNOWN = -1

Classes = np.ndarray[Any, np.dtype[np.int64]]
Probabilities = np.ndarray[Any, np.dtype[np.float32]]
Model = Callable[[Mapping[str, Image]], Probabilities]
"""Of images by view, (B, H, W, 3): how probable each class is.  # (B, classes)"""

_UNSURE_STEPS = 10
"""Before a task says success it may be one already: it may wait until it is sure."""


class Told(NamedTuple):
    """An episode: what is known of its observations, and what a model says of them.

    Attributes:
        origins: where each observation lies.
        truths: its class; `UNKNOWN` where nobody knows.  # (N,)
        probabilities: of each class, as a reward sees them; empty where nothing is known.  # (N, C)
        by: how it is known: "labels", "simulation", "outcome", or "" where nothing is.
        placed: the recording says where the tool was.
    """

    origins: tuple[Origin, ...]
    truths: Classes
    probabilities: Probabilities
    by: str
    placed: bool


def told_episodes(
    folders: Sequence[Path],
    views: Mapping[str, View],
    model: Model,
    config: RewardConfig,
    classes: int,
) -> Iterator[Told]:
    """What a model says of each episode; where the tool cannot be at a success, nothing.

    A label counts before what a simulation knew besides (`serl.log.truth_log`), and that before an
    outcome. Outcomes count in a run that was judged by its task itself: what did not end an episode
    was no success, but for a second before one.

    Args:
        folders: each holds the episodes of an actor, or a collection.
        views: what the model sees.
        model: see `Model`.
        config: says where the tool must be.
        classes: of the model; the last one is the success.

    Raises:
        CorruptData: an episode, a label or a place is damaged.
        SpecMismatch: the folders show other views.
    """
    for folder in folders:
        run = run_of(folder)
        judged = run is not None and run.config.reward.kind == "task"
        witnessed = read_labels(folder, TRUTH_FILE)
        for recorded in recordings(folder, views, labelled=False):
            # Logs of before hold words on resets, too: always no, as nobody had looked.
            asked = witnessed if _is_judged(recorded) else {}
            here = {place.step: n for place, n in asked.items() if place[:2] == recorded.name}
            truths = _outcomes(recorded, classes - 1) if judged else _nothing(recorded)
            by = "outcome" if (truths != UNKNOWN).any() else ""
            if _put(truths, {step: (classes - 1) * word for step, word in here.items()}):
                truths, by = between(truths), "simulation"
            if _put(truths, recorded.labels):
                by = "labels"
            origins = tuple(map(recorded.origin, range(len(truths))))
            probabilities, tools_m = np.zeros((0, classes), np.float32), recorded.tools_m
            if by:
                probabilities = _seen(recorded, views, model)
                there = may_be_there(tools_m, config.tool_low_m, config.tool_high_m)
                probabilities[~there] = np.eye(classes)[0]
            yield Told(origins, truths, probabilities, by, bool(np.isfinite(tools_m).all()))


def between(truths: Classes) -> Classes:
    """With what lies between two equal labels filled in."""
    filled, known = truths.copy(), np.flatnonzero(truths != UNKNOWN)
    for first, last in pairwise(known):
        if truths[first] == truths[last]:
            filled[first:last] = truths[first]
    return filled


def _put(truths: Classes, words: Mapping[int, int]) -> bool:
    """Put what was said in its place; whether anything was."""
    kept = {step: word for step, word in words.items() if 0 <= step < len(truths)}
    truths[list(kept)] = list(kept.values())
    return bool(kept)


def _is_judged(recorded: Recorded) -> bool:
    """Nobody judges a reset."""
    steps = recorded.episode.steps
    return bool(steps) and steps[0].source is not Source.SCRIPT


def _nothing(recorded: Recorded) -> Classes:
    return np.full(len(recorded.observations), UNKNOWN)


def _outcomes(recorded: Recorded, success: int) -> Classes:
    """As the task judged while the episode ran."""
    truths = _nothing(recorded)
    if _is_judged(recorded):
        truths[:] = 0
        if recorded.episode.success:
            truths[-1 - _UNSURE_STEPS :] = UNKNOWN
            truths[-1] = success
    return truths


def _seen(recorded: Recorded, views: Mapping[str, View], model: Model) -> Probabilities:
    observations = recorded.observations
    return model({name: np.stack([seen.images[name] for seen in observations]) for name in views})
