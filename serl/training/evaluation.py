"""Unassisted trials: seeds of their starts, and the statistics of their results."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum

from serl.errors import BadInput


class Purpose(StrEnum):
    """Purpose of an episode's start; two purposes never share a start."""

    DEMONSTRATION = "demonstration"
    TRAINING = "training"
    SELECTION = "selection"
    FINAL = "final"
    REWARD = "reward"


_DIGEST_BITS = 48


def start_seed(purpose: Purpose, run_seed: int, actor: str, episode: int) -> int:
    """Return the seed of an episode's start, below 2^53 (exact in JSON and in a float64).

    The purpose is in the top bits, so that seeds of different purposes differ by construction;
    the lower 48 bits are a digest of the other arguments.
    """
    digest = hashlib.sha256(f"{run_seed}/{actor}/{episode}".encode()).digest()
    number = int.from_bytes(digest[: _DIGEST_BITS // 8], "big")
    return ((list(Purpose).index(purpose) + 1) << _DIGEST_BITS) | number


def evaluation_seeds(purpose: Purpose, run_seed: int, trials: int) -> tuple[int, ...]:
    """Return the seeds of an evaluation's starts; more trials extend the seeds of fewer."""
    return tuple(start_seed(purpose, run_seed, "evaluation", trial) for trial in range(trials))


def wilson(successes: int, trials: int, z: float = 1.96) -> tuple[float, float]:
    """Return Wilson's score interval of a success rate; (0, 1) without trials.

    Wilson (1927), Probable inference, the law of succession, and statistical inference. JASA 22.

    Args:
        successes: number of successes, from 0 to `trials`.
        trials: number of independent trials.
        z: quantile of the normal distribution; 1.96 for 95 %.

    Raises:
        BadInput: the counts are impossible.
    """
    if not 0 <= successes <= trials:
        raise BadInput(f"successes must be from 0 to the {trials} trials, got {successes}")
    if trials == 0:
        return 0.0, 1.0
    rate, spread = successes / trials, z**2 / trials
    centre = (rate + spread / 2) / (1 + spread)
    half = z * math.sqrt(rate * (1 - rate) / trials + spread / (4 * trials)) / (1 + spread)
    return max(0.0, centre - half), min(1.0, centre + half)


@dataclass(frozen=True, slots=True)
class Trial:
    """One unassisted episode.

    Attributes:
        seed: seed of the start.
        success: True if the task was solved, by the ground truth.
        steps: length in steps.
        duration_s: task time.
        reason: reason why the episode ended.
    """

    seed: int
    success: bool
    steps: int
    duration_s: float
    reason: str


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Trials of one policy, each from a different start."""

    trials: tuple[Trial, ...]

    @property
    def successes(self) -> int:
        """The number of trials that solved the task."""
        return sum(trial.success for trial in self.trials)

    @property
    def success_rate(self) -> float:
        """The share of trials that solved the task."""
        return self.successes / len(self.trials)

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % Wilson interval of the success rate."""
        return wilson(self.successes, len(self.trials))

    @property
    def cycle_time_s(self) -> float | None:
        """The mean task time of the successes; None without any."""
        times_s = [trial.duration_s for trial in self.trials if trial.success]
        return sum(times_s) / len(times_s) if times_s else None

    def summary(self) -> str:
        """Return the result as one line of text."""
        low, high = self.interval
        cycle = "" if self.cycle_time_s is None else f", mean cycle time {self.cycle_time_s:.1f} s"
        return (
            f"{self.successes} of {len(self.trials)} trials succeeded: {self.success_rate:.1%} "
            f"(95 % interval {low:.1%} to {high:.1%}){cycle}"
        )


def evaluate(run_episode: Callable[[int], Trial], seeds: Iterable[int]) -> Evaluation:
    """Run one trial per seed.

    Raises:
        BadInput: no seed is given, or one twice (the interval assumes independent trials).
    """
    seeds = tuple(seeds)
    if not seeds:
        raise BadInput("an evaluation needs at least one trial, got none")
    if len(set(seeds)) < len(seeds):
        raise BadInput(f"an evaluation needs {len(seeds)} different seeds, got {len(set(seeds))}")
    return Evaluation(tuple(run_episode(seed) for seed in seeds))
