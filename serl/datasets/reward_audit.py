"""How far a reward model can be trusted: the mistakes of single images, and of what it ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from serl import plugins
from serl.camera import View
from serl.datasets.recording_session import read_session
from serl.log.annotations import TRUTH_FILE, Origin, read_labels
from serl.reward import RewardConfig, StageReward, may_be_there
from serl.runs.config import TrainConfig, resolve, stage_configs
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
"""Of images by view, (B, H, W, 3): how probable each class is.  # (B, classes)"""

_UNSURE_STEPS = 10
"""Before a task says success it may be one already: it may wait until it is sure."""


class LabelledEpisode(NamedTuple):
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
) -> Iterator[LabelledEpisode]:
    """What a model says of each episode; where the tool cannot be at a success, nothing.

    A label counts before what a simulation knew besides (`serl.log.annotations`), and that before
    an outcome. Outcomes count in a run that was judged by its task itself: what did not end an
    episode was no success, but for a second before one.

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
            yield LabelledEpisode(
                origins, truths, probabilities, by, bool(np.isfinite(tools_m).all())
            )


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


def _is_judged(recorded: LabelledRecording) -> bool:
    """Nobody judges a reset."""
    steps = recorded.episode.steps
    return bool(steps) and steps[0].source is not ActionSource.SCRIPT


def _nothing(recorded: LabelledRecording) -> Classes:
    return np.full(len(recorded.observations), UNKNOWN)


def _outcomes(recorded: LabelledRecording, success: int) -> Classes:
    """As the task judged while the episode ran."""
    truths = _nothing(recorded)
    if _is_judged(recorded):
        truths[:] = 0
        if recorded.episode.success:
            truths[-1 - _UNSURE_STEPS :] = UNKNOWN
            truths[-1] = success
    return truths


def _seen(recorded: LabelledRecording, views: Mapping[str, View], model: Model) -> Probabilities:
    observations = recorded.observations
    return model({name: np.stack([seen.images[name] for seen in observations]) for name in views})


class Audit(NamedTuple):
    """Mistakes of a model that believes from a threshold on.

    Attributes:
        accuracy: samples told right, and all.
        precision: of those that it believes a success, how many are; and how many it believes.
        recall: of the successes, how many it believes; and how many there are.
        false_positives: rows of the samples believed wrongly, the surest first.
        false_negatives: rows of the successes not believed, the surest first.
    """

    accuracy: tuple[int, int]
    precision: tuple[int, int]
    recall: tuple[int, int]
    false_positives: tuple[int, ...]
    false_negatives: tuple[int, ...]

    def lines(self) -> list[str]:
        """For people."""
        return [
            _line("accuracy", self.accuracy, "samples are told right"),
            _line("precision", self.precision, "of what it takes for success are"),
            _line("recall", self.recall, "of the successes are seen"),
        ]


def audit(
    labels: np.ndarray[Any, np.dtype[np.int64]],
    probabilities: np.ndarray[Any, np.dtype[np.float32]],
    threshold: float,
) -> Audit:
    """Compare labels (N,) with probabilities (N, classes) of which the last is the success."""
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
    """What a reward does that ends episodes: it waits for k of n images, and believes the tool.

    Attributes:
        right: episodes that it ends at a success ...
        wrong: ... those it ends at none, as (folder, epoch, episode, step) ...
        unclear: ... and those where nothing is known of the steps nearby.
        told: successes that last for k images, and which it tells; and how many there are.
        short: successes that it does not tell, and that are not known to last for k images.
        episodes: all of which something is known.
    """

    right: int
    wrong: tuple[Origin, ...]
    unclear: int
    told: tuple[int, int]
    short: int
    episodes: int

    def lines(self) -> list[str]:
        """For people."""
        ended, wrong = self.right + len(self.wrong), len(self.wrong)
        found = [
            _line("precision", (self.right, ended), "episodes that it ends are successes"),
            _line("recall", self.told, "successes that last are told"),
            _line("false", (wrong, self.episodes), "episodes end with a false success"),
        ]
        if self.short:
            found.append(f"{self.short} successes end their recording before it could tell them")
        if self.unclear:
            found.append(f"{self.unclear} episodes it ends where nobody said what was to be seen")
        return found


def endings(episodes: Sequence[LabelledEpisode], config: RewardConfig, threshold: float) -> Endings:
    """Play the reward along each episode of which something is known."""
    (k, n), right, unclear, short = config.hold, 0, 0, 0
    wrong: list[Origin] = []
    told = successes = 0
    for episode in episodes:
        last = episode.probabilities.shape[1] - 1
        filled = between(episode.truths)
        end = _told_at(episode, config, threshold)
        near = filled[max(0, (end or 0) - n) : (end or 0) + n + 1]
        lasts = _runs(filled == last) >= k
        if end is None:
            successes += lasts
            short += bool((filled == last).any()) and not lasts
        elif filled[end] == UNKNOWN and (near == UNKNOWN).all():
            unclear += 1
        elif filled[end] == last or (filled[end] == UNKNOWN and (near == last).any()):
            right += 1
            successes, told = successes + lasts, told + lasts
        else:
            wrong.append(episode.origins[end])
            successes += lasts
    return Endings(right, tuple(wrong), unclear, (told, successes), short, len(episodes))


def _told_at(episode: LabelledEpisode, config: RewardConfig, threshold: float) -> int | None:
    """The observation at which the reward tells success; it judges all but the first."""
    rows, nothing = iter(episode.probabilities[1:]), Observation({})
    anywhere = config.model_copy(update={"tool_low_m": None, "tool_high_m": None})
    stages = episode.probabilities.shape[1] - 1
    reward = StageReward(lambda reading: next(rows), stages, anywhere, threshold)
    reward.begin(nothing)
    steps = range(1, len(episode.probabilities))
    return next((step for step in steps if reward(nothing).success), None)


def _runs(mask: np.ndarray[Any, np.dtype[np.bool_]]) -> int:
    """The length of the longest run."""
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
    """How a classifier would be used by a training of what was recorded; which one is left open.

    Of a training it is as that run says. What a person recorded, and a collection of a known task
    or of a stage of one, is used as a training of it would by default.

    Args:
        folders: of episodes; the first one counts.
        task: that they are of, as their records name it.

    Raises:
        BadInput: the file of the task that a person recorded is gone.
        CorruptData: what says that a person recorded it is damaged.
    """
    run = run_of(folders[0]) if folders else None
    if run is None:
        return _open(_of_name(task))
    if read_session(run.path) is None:
        return _open(run.config.reward)
    tuned = tuned_settings(run.config, make_task(run.config)).get("reward", {})
    own = run.config.reward.model_dump(exclude_defaults=True)
    return _open(RewardConfig.model_validate(merge(tuned, own)))


def _of_name(task: str) -> RewardConfig:
    """Of a known task, or of a stage of one such as a direction, which has a name of its own."""
    for name in plugins.names("task"):
        if task == name or task.startswith(f"{name}_"):
            for each in _trainings(name):
                if make_task(each).name == task:
                    return each.reward
    return RewardConfig()


def _trainings(name: str) -> Sequence[TrainConfig]:
    """What a known task is by default: one training, or one of each of its stages."""
    named: Mapping[str, Any] = {"task": name}
    config = resolve(make_task(resolve(named)).training_defaults(), named)
    return list(stage_configs(config).values()) or [config]


def _open(reward: RewardConfig) -> RewardConfig:
    return reward.model_copy(update={"kind": "task", "model": None, "sha256": None})
