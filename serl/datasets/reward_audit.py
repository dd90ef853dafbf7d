"""How far a reward model can be trusted: the mistakes of single images, and of what it ends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from serl.training.evaluation import wilson
from serl.log.annotations import Origin
from serl.reward import RewardConfig, StageReward
from serl.datasets.reward_truth import UNKNOWN, Told, between
from serl.types import Observation


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


def endings(episodes: Sequence[Told], config: RewardConfig, threshold: float) -> Endings:
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


def _told_at(episode: Told, config: RewardConfig, threshold: float) -> int | None:
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
