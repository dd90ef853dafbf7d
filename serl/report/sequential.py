"""A group-sequential permutation test: more seeds are run only until the difference is clear.

After Mathieu et al. (2023), AdaStop: adaptive statistical testing for sound comparisons of deep RL
agents. Seeds come in blocks. After each block, the sum of differences so far is compared with those
of all exchanges of results within each block and task. The error of all looks together is bounded.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from serl.errors import BadInput
from serl.report.aggregates import Values
from serl.report.comparison import Metric, samples
from serl.report.outcomes import Configuration

LEVEL = 0.05
"""Bound on the probability that equal configurations are ever found to differ."""

MAX_BLOCK = 8  # seeds, of which all exchanges are enumerated
_MAX_EXCHANGES = 50_000  # beyond this number a random part of them


class SeedPlan(NamedTuple):
    """The looks of a test: at most `blocks` of them, each after `block` more seeds."""

    block: int = 5
    blocks: int = 4

    def checked(self) -> SeedPlan:
        """Return the plan; raise `BadInput` if it cannot be carried out."""
        if not 2 <= self.block <= MAX_BLOCK:
            raise BadInput(f"--block: expected 2 to {MAX_BLOCK} seeds, got {self.block}")
        if not 1 <= self.blocks <= 100:
            raise BadInput(f"--blocks: expected 1 to 100, got {self.blocks}")
        return self


class Look(NamedTuple):
    """One look at the results.

    Attributes:
        differences: sum of the differences to the first configuration, of each other one.
        boundary: absolute value that a difference has to exceed.
    """

    differences: tuple[float, ...]
    boundary: float


class Findings(NamedTuple):
    """The results of a test so far.

    Attributes:
        looks: one look after each whole block of seeds.
        decided: number of the look that found a difference, from 1, for each configuration after
            the first; None without one.
    """

    plan: SeedPlan
    looks: tuple[Look, ...]
    decided: tuple[int | None, ...]

    def text(self, names: Sequence[str]) -> str:
        """Return the state of the test in one sentence, given the names of the configurations."""
        seen = len(self.looks) * self.plan.block
        parts = [
            f"{name} {'differs' if number else 'is not shown to differ'} from {names[0]}"
            for name, number in zip(names[1:], self.decided, strict=True)
        ]
        state = " and ".join(parts) if self.looks else "no whole block of seeds is there"
        after = f"after {seen} of at most {self.plan.block * self.plan.blocks} seeds"
        more = "no more are needed" if self.is_over else f"run {self.plan.block} more of each"
        return f"{after}: {state} (error at most {LEVEL:.0%}); {more}"

    @property
    def is_over(self) -> bool:
        """Whether no further seeds are needed."""
        return len(self.looks) >= self.plan.blocks or None not in self.decided


def sequential_test(
    metric: Metric, configurations: Sequence[Configuration], plan: SeedPlan
) -> Findings:
    """Test whether configurations differ from the first one, with the seeds so far.

    Seeds are taken in ascending order. A run without a value counts as the worst of its task.

    Raises:
        BadInput: a plan or the numbers of seeds are unusable.
    """
    plan.checked()
    tasks = [_by_task(metric, configurations, task) for task in configurations[0].tasks]
    counts = {len(values) for groups in tasks for values in groups}
    looks, rng = min(plan.blocks, min(counts) // plan.block), np.random.default_rng(0)
    sums: Values = np.zeros((len(configurations) - 1, 1))
    active = np.ones(1, np.bool_)
    found: list[Look] = []
    decided: list[int | None] = [None] * (len(configurations) - 1)
    for number in range(1, looks + 1):
        part = slice((number - 1) * plan.block, number * plan.block)
        for groups in tasks:
            exchanged = _exchanged(_scaled(metric, [values[part] for values in groups]))
            sums, active = _extended(sums, active, exchanged, rng)
        largest = np.abs(sums).max(0)
        boundary = _boundary(largest, active, LEVEL * number / plan.blocks)
        active &= largest <= boundary
        found.append(Look(tuple(sums[:, 0].tolist()), boundary))
        for index, value in enumerate(sums[:, 0]):
            if decided[index] is None and abs(value) > boundary:
                decided[index] = number
        if None not in decided:
            break
    return Findings(plan, tuple(found), tuple(decided))


def _by_task(metric: Metric, configurations: Sequence[Configuration], task: str) -> list[Values]:
    """Return a metric's values of one task in the order of seeds, for each configuration."""
    outcomes = [each.tasks[task] for each in configurations]
    if metric.censored:
        alone = [Configuration(each.name, {task: each.tasks[task]}) for each in configurations]
        return [group[0].values for group in samples(metric, alone)]
    found = [np.array([metric.values(run) for run in runs], np.float64) for runs in outcomes]
    every = np.concatenate(found)
    finite = every[np.isfinite(every)]
    worst = 0.0 if not finite.size else finite.min() if metric.higher else finite.max()
    return [np.where(np.isfinite(values), values, worst) for values in found]


def _scaled(metric: Metric, groups: list[Values]) -> list[Values]:
    """Return values on one scale in all tasks: shares as they are, others by their mean."""
    mean = float(np.mean(groups))
    return groups if metric.unit == "share" or mean <= 0 else [values / mean for values in groups]


def _exchanged(groups: list[Values]) -> Values:
    """Return the differences of sums to the first group under all exchanges with it.

    Returns:
        The differences, unexchanged ones first.  # (groups - 1, exchanges)
    """
    base, *others = groups
    size = len(base)
    chosen = np.array(list(itertools.combinations(range(2 * size), size)))
    both = np.stack([np.concatenate([values, base]) for values in others])
    differences: Values = 2 * both[:, chosen].sum(-1) - both.sum(-1, keepdims=True)
    return differences


def _extended(
    sums: Values, active: NDArray[np.bool_], exchanged: Values, rng: np.random.Generator
) -> tuple[Values, NDArray[np.bool_]]:
    """Return sums over one more block, of all pairs of exchanges or of a random part of them."""
    before, more = sums.shape[1], exchanged.shape[1]
    if before * more <= _MAX_EXCHANGES:
        first, second = (part.ravel() for part in np.indices((before, more)))
    else:
        first = rng.integers(before, size=_MAX_EXCHANGES)
        second = rng.integers(more, size=_MAX_EXCHANGES)
        first[0] = second[0] = 0  # results as they are belong to every part
    return sums[:, first] + exchanged[:, second], active[first]


def _boundary(largest: Values, active: NDArray[np.bool_], level: float) -> float:
    """Return the least boundary with which a share of `level` is beyond one, now or earlier.

    Args:
        largest: largest difference of each exchange.  # (exchanges,)
        active: whether an exchange was within all earlier boundaries.  # (exchanges,)
        level: allowed share of exchanges.
    """
    allowed = math.floor(level * len(active) + 1e-9) - int((~active).sum())
    ordered = np.sort(largest[active])[::-1]
    if allowed < 0 or allowed >= len(ordered):
        return math.inf if allowed < 0 else -1.0
    return float(ordered[allowed]) + 1e-9  # rounding must not tell equal sums apart
