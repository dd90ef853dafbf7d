"""Audit of a reward model: errors on single images, and on the episodes that it would end."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from serl import plugins
from serl.camera import View
from serl.datasets.recording_session import read_session
from serl.errors import SpecMismatch, counted
from serl.log.annotations import TRUTH_FILE, Origin, read_labels
from serl.reward import RewardConfig, StageReward, may_be_there
from serl.runs.config import TrainConfig, resolve, stage_configs
from serl.runs.folder import CONFIG, RunFolder
from serl.runs.real_arm import tuned_settings
from serl.runs.reward_data import LabelledRecording, recordings, run_of
from serl.runs.task_setup import make_task
from serl.system.settings_file import merge
from serl.training.evaluation import wilson
from serl.types import ActionSource, Image, Observation

UNKNOWN = -1

Classes = np.ndarray[Any, np.dtype[np.int64]]
Probabilities = np.ndarray[Any, np.dtype[np.float32]]
Model = Callable[[Mapping[str, Image]], Probabilities]
"""Maps images by view, (B, H, W, 3), to class probabilities.  # (B, classes)"""

_UNSURE_STEPS = 10
"""Steps before a reported success that may already be one, as a task may wait until it is sure."""


class LabelledEpisode(NamedTuple):
    """An episode with the ground truth of its observations and a model's predictions.

    Attributes:
        origins: location of each observation in the recordings.
        truths: class of each observation; `UNKNOWN` without ground truth.  # (N,)
        probabilities: predicted class probabilities, as a reward uses them; empty without ground
            truth.  # (N, C)
        by: source of the ground truth: "labels", "simulation", "outcome", or "" for none.
        placed: whether the recording contains the tool's position at every observation.
    """

    origins: tuple[Origin, ...]
    truths: Classes
    probabilities: Probabilities
    by: str
    placed: bool


def labelled_episodes(
    folders: Sequence[Path],
    views: Mapping[str, View],
    model: Model,
    config: RewardConfig,
    classes: int,
) -> Iterator[LabelledEpisode]:
    """Yield each episode with its ground truth and the model's predictions.

    Where the tool is outside the bounds of a success, the first class ("nothing") is predicted. A
    label takes precedence over the truth recorded by a simulation (`serl.log.annotations`), and
    that over an outcome. Outcomes are used in runs whose reward was the task's own: a step that did
    not end its episode was no success, except for the ten before one, which are unknown.

    Args:
        folders: each holds the episodes of an actor, or a collection.
        views: inputs of the model.
        model: see `Model`.
        config: contains the bounds of the tool's position at a success.
        classes: number of the model's classes; the last one is the success.

    Raises:
        CorruptData: an episode, a label or a position is damaged.
        SpecMismatch: the folders contain other views, or a label that the model lacks.
    """
    for folder in folders:
        run = run_of(folder)
        has_outcomes = run is not None and run.config.reward.kind == "task"
        witnessed = read_labels(folder, TRUTH_FILE)
        for recorded in recordings(folder, views, labelled=False):
            # Older logs label resets too: always as no success, as these steps were never judged.
            recorded_truths = witnessed if _has_outcome(recorded) else {}
            here = {
                place.step: n for place, n in recorded_truths.items() if place[:2] == recorded.name
            }
            truths = _outcomes(recorded, classes - 1) if has_outcomes else _nothing(recorded)
            by = "outcome" if (truths != UNKNOWN).any() else ""
            if _put(truths, {step: (classes - 1) * word for step, word in here.items()}):
                truths, by = between(truths), "simulation"
            if (highest := max(recorded.labels.values(), default=0)) >= classes:
                raise SpecMismatch(
                    f"{folder}: a step is labelled {highest}, the model knows 0 to {classes - 1}"
                )
            if _put(truths, recorded.labels):
                by = "labels"
            origins = tuple(map(recorded.origin, range(len(truths))))
            probabilities, tools_m = np.zeros((0, classes), np.float32), recorded.tools_m
            if by:
                probabilities = _predict(recorded, views, model)
                there = may_be_there(tools_m, config.tool_low_m, config.tool_high_m)
                probabilities[~there] = np.eye(classes)[0]
            yield LabelledEpisode(
                origins, truths, probabilities, by, bool(np.isfinite(tools_m).all())
            )


def between(truths: Classes) -> Classes:
    """Return the classes with gaps between two equal labels filled in."""
    filled, known = truths.copy(), np.flatnonzero(truths != UNKNOWN)
    for first, last in pairwise(known):
        if truths[first] == truths[last]:
            filled[first:last] = truths[first]
    return filled


def _put(truths: Classes, words: Mapping[int, int]) -> bool:
    """Write labels into `truths` at their steps; return whether there were any."""
    kept = {step: word for step, word in words.items() if 0 <= step < len(truths)}
    truths[list(kept)] = list(kept.values())
    return bool(kept)


def _has_outcome(recorded: LabelledRecording) -> bool:
    """Return whether the task judged the episode; resets are never judged."""
    steps = recorded.episode.steps
    return bool(steps) and steps[0].source is not ActionSource.SCRIPT


def _nothing(recorded: LabelledRecording) -> Classes:
    return np.full(len(recorded.observations), UNKNOWN)


def _outcomes(recorded: LabelledRecording, success: int) -> Classes:
    """Return the classes that follow from the outcome the task reported during the episode."""
    truths = _nothing(recorded)
    if _has_outcome(recorded):
        truths[:] = 0
        if recorded.episode.success:
            truths[-1 - _UNSURE_STEPS :] = UNKNOWN
            truths[-1] = success
    return truths


def _predict(recorded: LabelledRecording, views: Mapping[str, View], model: Model) -> Probabilities:
    observations = recorded.observations
    return model(
        {
            name: np.stack([observation.images[name] for observation in observations])
            for name in views
        }
    )


class Audit(NamedTuple):
    """Errors of a model that predicts success from a threshold on.

    Attributes:
        accuracy: number of correctly classified samples, and of all samples.
        precision: number of true successes among the predicted ones, and of predicted ones.
        recall: number of predicted successes among the true ones, and of true ones.
        false_positives: rows of samples wrongly predicted a success, the most confident first.
        false_negatives: rows of successes that were missed, the most confident first.
    """

    accuracy: tuple[int, int]
    precision: tuple[int, int]
    recall: tuple[int, int]
    false_positives: tuple[int, ...]
    false_negatives: tuple[int, ...]

    def lines(self) -> list[str]:
        """Format the audit for display."""
        return [
            _line("accuracy", self.accuracy, "samples are classified correctly"),
            _line("precision", self.precision, "of its predicted successes are"),
            _line("recall", self.recall, "of the successes are seen"),
        ]


def audit(
    labels: np.ndarray[Any, np.dtype[np.int64]],
    probabilities: np.ndarray[Any, np.dtype[np.float32]],
    threshold: float,
) -> Audit:
    """Compare labels (N,) with probabilities (N, classes), whose last class is the success."""
    last = probabilities.shape[1] - 1
    sureness = probabilities[:, last]
    believed = (sureness >= threshold) & (probabilities.argmax(1) == last)
    true = labels == last
    wrong, missed = np.flatnonzero(believed & ~true), np.flatnonzero(~believed & true)
    hits = int((believed & true).sum())
    return Audit(
        (int((believed == true).sum()), len(labels)),
        (hits, int(believed.sum())),
        (hits, int(true.sum())),
        tuple(wrong[np.argsort(-sureness[wrong], kind="stable")].tolist()),
        tuple(missed[np.argsort(sureness[missed], kind="stable")].tolist()),
    )


class Endings(NamedTuple):
    """Episode ends by a reward that waits for k of n images and checks the tool's position.

    Attributes:
        right: number of episodes ended at a success.
        wrong: episodes ended at no success, as (folder, epoch, episode, step).
        unclear: number of episodes ended where the steps nearby have no ground truth.
        detected: number of detected successes among those that last for k images, and of all those.
        short: number of undetected successes that are not known to last for k images.
        episodes: number of all episodes with ground truth.
    """

    right: int
    wrong: tuple[Origin, ...]
    unclear: int
    detected: tuple[int, int]
    short: int
    episodes: int

    def lines(self) -> list[str]:
        """Format the counts for display."""
        ended, wrong = self.right + len(self.wrong), len(self.wrong)
        found = [
            _line("precision", (self.right, ended), "episodes that it ends are successes"),
            _line("recall", self.detected, "lasting successes are detected"),
            _line("false", (wrong, self.episodes), "episodes end with a false success"),
        ]
        if self.short:
            found.append(f"too short to detect a success: {counted(self.short, 'recording')}")
        if self.unclear:
            found.append(f"it ends {counted(self.unclear, 'episode')} at steps without a label")
        return found


def endings(episodes: Sequence[LabelledEpisode], config: RewardConfig, threshold: float) -> Endings:
    """Replay the reward on each episode with ground truth and count its episode ends."""
    (k, n), right, unclear, short = config.hold, 0, 0, 0
    wrong: list[Origin] = []
    detected = successes = 0
    for episode in episodes:
        last = episode.probabilities.shape[1] - 1
        filled = between(episode.truths)
        end = _success_index(episode, config, threshold)
        near = filled[max(0, (end or 0) - n) : (end or 0) + n + 1]
        lasts = _runs(filled == last) >= k
        if end is None:
            successes += lasts
            short += bool((filled == last).any()) and not lasts
        elif filled[end] == UNKNOWN and (near == UNKNOWN).all():
            unclear += 1
        elif filled[end] == last or (filled[end] == UNKNOWN and (near == last).any()):
            right += 1
            successes, detected = successes + lasts, detected + lasts
        else:
            wrong.append(episode.origins[end])
            successes += lasts
    return Endings(right, tuple(wrong), unclear, (detected, successes), short, len(episodes))


def _success_index(episode: LabelledEpisode, config: RewardConfig, threshold: float) -> int | None:
    """Return the observation at which the reward reports success; the first one is not judged."""
    rows, nothing = iter(episode.probabilities[1:]), Observation({})
    anywhere = config.model_copy(update={"tool_low_m": None, "tool_high_m": None})
    stages = episode.probabilities.shape[1] - 1
    reward = StageReward(lambda reading: next(rows), stages, anywhere, threshold)
    reward.begin(nothing)
    steps = range(1, len(episode.probabilities))
    return next((step for step in steps if reward(nothing).success), None)


def _runs(mask: np.ndarray[Any, np.dtype[np.bool_]]) -> int:
    """Return the length of the longest run of True."""
    longest = length = 0
    for here in mask.tolist():
        length = length + 1 if here else 0
        longest = max(longest, length)
    return longest


def _line(name: str, counts: tuple[int, int], text: str) -> str:
    part, whole = counts
    if not whole:
        return f"{name:10} -        nothing to count"
    low, high = wilson(part, whole)
    return f"{name:10} {part / whole:6.1%}   {part} of {whole} {text}; 95 % {low:.1%} to {high:.1%}"


def tuned_reward(folders: Sequence[Path], task: str) -> RewardConfig:
    """Return the reward settings a training of the recorded task would use, without the model.

    Episodes of a training take the settings of their run. A person's recording, and a collection of
    a known task or of a stage of one, take the defaults of a training of that task.

    Args:
        folders: folders of episodes; the first one counts.
        task: name of their task, as in the records.

    Raises:
        BadInput: the file of the task that a person recorded is missing.
        CorruptData: the session file of a person's recording is damaged.
    """
    run = run_of(folders[0]) if folders else None
    if run is None and folders and (folders[0] / CONFIG).is_file():
        run = RunFolder.open(folders[0])  # a person's collection
    if run is None:
        return _open(_of_name(task))
    if read_session(run.path) is None:
        return _open(run.config.reward)
    tuned = tuned_settings(run.config, make_task(run.config)).get("reward", {})
    own = run.config.reward.model_dump(exclude_defaults=True)
    found = {**merge(tuned, own), "kind": "task"}  # a classifier declared without its file is none
    known = {name: value for name, value in found.items() if name in RewardConfig.model_fields}
    return _open(RewardConfig.model_validate(known))


def _of_name(task: str) -> RewardConfig:
    """Return the reward settings of a known task, or of a stage with its own task name."""
    for name in plugins.names("task"):
        if task == name or task.startswith(f"{name}_"):
            for each in _trainings(name):
                if make_task(each).name == task:
                    return each.reward
    return RewardConfig()


def _trainings(name: str) -> Sequence[TrainConfig]:
    """Return the default trainings of a known task: one, or one for each of its stages."""
    named: Mapping[str, Any] = {"task": name}
    config = resolve(make_task(resolve(named)).training_defaults(), named)
    return list(stage_configs(config).values()) or [config]


def _open(reward: RewardConfig) -> RewardConfig:
    return reward.model_copy(update={"kind": "task", "model": None, "sha256": None})
