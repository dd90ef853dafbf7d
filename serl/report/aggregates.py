"""Aggregates of results over tasks and seeds, with intervals by seed and then by trial.

The aggregates follow Agarwal et al. (2021), Deep reinforcement learning at the edge of the
statistical precipice: interquartile mean, stratified bootstrap, probability of improvement and
performance profile. Times that were not reached are censored, see Kaplan and Meier (1958),
Nonparametric estimation from incomplete observations.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]

DRAWS = 10_000
"""Bootstrap draws of an interval."""

_CURVE_DRAWS = 2000  # of seeds within each task
_CHUNK = 500  # draws at a time, which bounds memory
_TAILS = (2.5, 97.5)


class Estimate(NamedTuple):
    """A number with the ends of its 95 % interval; NaN where it is not defined."""

    value: float
    low: float
    high: float


NOTHING = Estimate(math.nan, math.nan, math.nan)


@dataclass(frozen=True, eq=False)
class SeedResults:
    """Results of one configuration in one task, one per seed, or bootstrap draws of them.

    Attributes:
        values: result of each seed; the time at which observation ended if censored.  # (..., N)
        trials: number of trials behind each share; 0 for a value that is no share.  # (N,)
        censored: whether the event did not happen within the observed time.  # (..., N)
    """

    values: Values
    trials: NDArray[np.int64]
    censored: NDArray[np.bool_]

    @classmethod
    def of(
        cls,
        values: Sequence[float] | Values,
        trials: Sequence[int] | NDArray[np.int64] | None = None,
        censored: Sequence[bool] | NDArray[np.bool_] | None = None,
    ) -> SeedResults:
        """Make a sample from one number per seed."""
        size = len(values)
        return cls(
            np.asarray(values, np.float64),
            np.zeros(size, np.int64) if trials is None else np.asarray(trials, np.int64),
            np.zeros(size, np.bool_) if censored is None else np.asarray(censored, np.bool_),
        )

    def resampled(self, draws: int, rng: np.random.Generator) -> SeedResults:
        """Draw seeds with replacement, then the success rate of each seed given its trials.

        The rate is drawn from its posterior under Jeffreys' prior, so that the trials of a seed
        that solved all or none still leave an uncertainty.
        """
        size = self.values.shape[-1]
        drawn = rng.integers(size, size=(draws, size))
        values, trials = self.values[drawn], self.trials[drawn]
        if self.trials.any():
            won = values * trials
            rates = rng.beta(won + 0.5, trials - won + 0.5)
            values = np.where(trials > 0, rates, values)
        return replace(self, values=values, censored=self.censored[drawn])


Group = Sequence[SeedResults]
"""Results of one configuration, one sample per task."""

Statistic = Callable[..., Values]
"""A function of one or more groups that reduces the last axis of their samples."""


def estimate(statistic: Statistic, *groups: Group, draws: int = DRAWS) -> Estimate:
    """Return a statistic of groups with its interval, by a bootstrap stratified by task.

    The interval is that of percentiles, extended to hold the statistic itself.

    Args:
        statistic: function of the groups.
        *groups: results of each configuration; seeds are drawn in each task apart.
        draws: number of draws.

    Returns:
        The estimate; `NOTHING` if a group lacks results in a task.
    """
    if not all(group and all(sample.values.size for sample in group) for group in groups):
        return NOTHING
    rng = np.random.default_rng(0)
    value = float(statistic(*groups))
    found = np.concatenate(
        [
            statistic(*([s.resampled(min(_CHUNK, draws - at), rng) for s in g] for g in groups))
            for at in range(0, draws, _CHUNK)
        ]
    )
    found = found[~np.isnan(found)]
    if not math.isfinite(value) or not found.size:
        return NOTHING
    low, high = np.percentile(found, _TAILS, method="nearest")  # some may be infinite
    return Estimate(value, min(float(low), value), max(float(high), value))


def interquartile_mean(values: Values) -> Values:
    """Return the mean along the last axis without its lowest and highest quarter.

    A quarter is rounded down to whole values: of 5 values the middle 3 remain, of 3 all.
    """
    size = values.shape[-1]
    cut = size // 4
    middle: Values = np.sort(values, axis=-1)[..., cut : size - cut].mean(-1)
    return middle


def pooled_iqm(group: Group) -> Values:
    """Return the interquartile mean over all tasks and seeds, for results on one scale."""
    return interquartile_mean(np.concatenate([sample.values for sample in group], axis=-1))


def iqm_by_task(group: Group) -> Values:
    """Return the interquartile mean over seeds of each task, (tasks, ...)."""
    return np.stack([interquartile_mean(sample.values) for sample in group])


def restricted_mean_by_task(group: Group) -> Values:
    """Return the restricted mean time of each task, (tasks, ...); see `restricted_mean`."""
    return np.stack([restricted_mean(sample) for sample in group])


def mean_over_tasks(by_task: Statistic) -> Statistic:
    """Return the statistic that is the mean over tasks of another one."""
    return lambda group: by_task(group).mean(0)


def difference(statistic: Statistic) -> Statistic:
    """Return the statistic of two groups that is the first one's minus the second one's."""
    return lambda group, base: statistic(group) - statistic(base)


def log_ratio(by_task: Statistic) -> Statistic:
    """Return the statistic of two groups that is the mean over tasks of the log of their ratio.

    It is infinite where one group's statistic is 0 in a task, and NaN where both are.
    """

    def of_groups(group: Group, base: Group) -> Values:
        with np.errstate(divide="ignore", invalid="ignore"):
            logs = np.log(np.stack([by_task(group), by_task(base)]))
            mean: Values = (logs[0] - logs[1]).mean(0)
        return mean

    return of_groups


def probability_of_improvement(group: Group, base: Group) -> Values:
    """Return the mean over tasks of the probability that a run has a higher value than one of base.

    Ties count half. Of two times, the earlier one counts as higher if the sign of the values is
    reversed; a censored time has to be given as an infinite value.
    """
    shares = []
    for sample, other in zip(group, base, strict=True):
        ours, theirs = sample.values[..., :, None], other.values[..., None, :]
        shares.append((0.5 * (ours > theirs) + 0.5 * (ours >= theirs)).mean((-2, -1)))
    mean: Values = np.stack(shares).mean(0)
    return mean


class Bands(NamedTuple):
    """A curve with pointwise 95 % intervals; (points,) each."""

    values: Values
    low: Values
    high: Values


def performance_profile(group: Group, thresholds: Values, draws: int = _CURVE_DRAWS) -> Bands:
    """Return the share of all runs with a value above each threshold.

    Args:
        group: results of one configuration.
        thresholds: thresholds.  # (points,)
        draws: number of bootstrap draws.
    """
    rng = np.random.default_rng(0)
    drawn = [sample.resampled(draws, rng) for sample in group]
    curves = [
        np.stack([(values > threshold).mean(-1) for threshold in thresholds], axis=-1)
        for values in (
            np.concatenate([sample.values for sample in each], axis=-1) for each in (group, drawn)
        )
    ]
    return _bands(curves[0], curves[1])


def mean_curve(curves: Sequence[Values]) -> Bands:
    """Return the mean over tasks and seeds of curves on a common grid, with intervals by seed.

    Args:
        curves: curves of the seeds of each task.  # per task (N, points)
    """
    rng = np.random.default_rng(0)
    means, drawn = [], []
    for of_task in curves:
        size = len(of_task)
        weights = rng.multinomial(size, np.full(size, 1 / size), size=_CURVE_DRAWS) / size
        means.append(of_task.mean(0))
        drawn.append(weights @ of_task)
    return _bands(np.mean(means, axis=0), np.mean(drawn, axis=0))


def _bands(values: Values, drawn: Values) -> Bands:
    low, high = np.percentile(drawn, _TAILS, axis=0)
    return Bands(values, np.minimum(low, values), np.maximum(high, values))


def survival_curve(sample: SeedResults) -> tuple[Values, Values]:
    """Return Kaplan and Meier's estimate of the share that an event has not reached yet.

    Returns:
        Times in ascending order, 0 first, and the share after each; of (..., N + 1) both. Equal
        times each have a step of their own.
    """
    order = np.lexsort((sample.censored, sample.values))  # an event precedes a loss at its time
    times = np.take_along_axis(sample.values, order, -1)
    happened = ~np.take_along_axis(sample.censored, order, -1)
    at_risk = np.arange(times.shape[-1], 0, -1)
    left = np.cumprod(1.0 - happened / at_risk, axis=-1)
    start = np.zeros((*times.shape[:-1], 1))
    return np.concatenate([start, times], -1), np.concatenate([start + 1.0, left], -1)


def reached_curve(group: Group, grids: Sequence[Values]) -> Bands:
    """Return the mean over tasks of the share of runs for which an event has happened.

    Args:
        group: times of one configuration.
        grids: times at which to evaluate each task.  # per task (points,)
    """
    rng = np.random.default_rng(0)
    exact, drawn = (
        np.mean([_reached(sample, grid) for sample, grid in zip(each, grids, strict=True)], axis=0)
        for each in (group, [sample.resampled(_CURVE_DRAWS, rng) for sample in group])
    )
    return _bands(exact, drawn)


def _reached(sample: SeedResults, grid: Values) -> Values:
    times, left = survival_curve(sample)
    passed = times[..., None, :] <= grid[:, None]
    share: Values = 1.0 - np.where(passed, left[..., None, :], 1.0).min(-1)
    return share


def restricted_mean(sample: SeedResults) -> Values:
    """Return the mean of times restricted to the longest one, the area below the survival curve.

    Samples that are compared have to be observed equally long, see `SeedResults.values`.
    """
    times, left = survival_curve(sample)
    area: Values = (np.diff(times, axis=-1) * left[..., :-1]).sum(-1)
    return area
