"""Comparison of configurations: their metrics with intervals, and the differences between them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np

from serl.report.aggregates import (
    Estimate,
    Group,
    SeedResults,
    Statistic,
    difference,
    estimate,
    iqm_by_task,
    log_ratio,
    mean_over_tasks,
    pooled_iqm,
    probability_of_improvement,
    restricted_mean_by_task,
)
from serl.report.outcomes import Configuration, RunOutcome
from serl.report.page import decimal, whole

MetricName = Literal["success", "auc", "steps_to_90", "human_s", "cycle_s"]


class Metric(NamedTuple):
    """A number of each run that configurations are compared by.

    Attributes:
        title: name for people.
        note: definition of the number, and of its aggregate.
        values: the number of each run.
        unit: format of a value; shares are compared by their difference, others by their ratio.
        by_task: aggregate of a task's seeds; None for the mean over all tasks and seeds together.
        higher: whether a higher value is better.
        censored: whether a run without the event counts as its whole budget, censored.
        of_trials: whether the value is the share of a run's final trials.
    """

    title: str
    note: str
    values: Callable[[RunOutcome], float]
    unit: Literal["share", "steps", "seconds"]
    by_task: Statistic | None = None
    higher: bool = False
    censored: bool = False
    of_trials: bool = False

    def number(self, value: float) -> str:
        """Return a value without its unit."""
        if not math.isfinite(value):
            return "-"
        if self.unit == "share":
            return f"{100 * value:.1f}"
        return whole(value) if self.unit == "steps" else decimal(value)

    def text(self, found: Estimate) -> str:
        """Return an estimate with its unit and its interval."""
        form = {"share": "{} %", "steps": "{}", "seconds": "{} s"}[self.unit]
        return interval_text(found, self.number, form)

    def contrast_text(self, found: Estimate) -> str:
        """Return a difference in percentage points, or a ratio, with its interval."""
        if self.by_task:
            return interval_text(found, lambda value: f"{value:.2f}", "\N{MULTIPLICATION SIGN} {}")
        return interval_text(found, lambda value: f"{100 * value:+.1f}", "{} points")

    @property
    def aggregate(self) -> Statistic:
        """The statistic of one configuration."""
        return mean_over_tasks(self.by_task) if self.by_task else pooled_iqm

    def contrast(self, group: Group, base: Group) -> Estimate:
        """Return the ratio of two configurations, the geometric mean over tasks, or difference."""
        if self.by_task is None:
            return estimate(difference(pooled_iqm), group, base)
        return Estimate(*map(math.exp, estimate(log_ratio(self.by_task), group, base)))

    @property
    def neutral(self) -> float:
        """The contrast of equal configurations."""
        return 1.0 if self.by_task else 0.0


METRICS: Mapping[MetricName, Metric] = {
    "success": Metric(
        "Success",
        "share of the final unassisted trials; interquartile mean over tasks and seeds",
        lambda outcome: outcome.success,
        "share",
        higher=True,
        of_trials=True,
    ),
    "auc": Metric(
        "Area under curve",
        "mean success of unassisted training episodes over the budget; interquartile mean",
        lambda outcome: outcome.auc,
        "share",
        higher=True,
    ),
    "steps_to_90": Metric(
        "Steps to 90 %",
        "environment steps to the first 90 % of successes; runs that never reach them are censored "
        "at their budget (Kaplan and Meier), restricted mean",
        lambda outcome: outcome.steps_to_90,
        "steps",
        restricted_mean_by_task,
        censored=True,
    ),
    "human_s": Metric(
        "Human time",
        "time in which a human drove during training, without demonstrations; interquartile mean",
        lambda outcome: outcome.human_s,
        "seconds",
        iqm_by_task,
    ),
    "cycle_s": Metric(
        "Cycle time",
        "mean time of the successful final trials; interquartile mean",
        lambda outcome: outcome.cycle_s,
        "seconds",
        iqm_by_task,
    ),
}


class MetricResult(NamedTuple):
    """The estimates of one metric; each by configuration, those of contrasts from the second on.

    Attributes:
        levels: value of each configuration.
        contrasts: difference or ratio of the others to the first configuration.
        improvements: probability that a run is better than one of the first configuration.
        missing: number of runs of each configuration without a value.
    """

    levels: tuple[Estimate, ...]
    contrasts: tuple[Estimate, ...]
    improvements: tuple[Estimate, ...]
    missing: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Comparison:
    """Configurations over the same tasks, the first one being the base of comparison.

    Attributes:
        configurations: finished runs of each configuration; names are unique.
        differing: settings that differ, with the values of each configuration.
        results: estimates by metric.
    """

    configurations: tuple[Configuration, ...]
    differing: Mapping[str, tuple[list[str], ...]]
    results: Mapping[MetricName, MetricResult]

    @property
    def tasks(self) -> list[str]:
        """The names of the tasks."""
        return list(self.configurations[0].tasks)

    def verdict(self, name: MetricName, number: int) -> str:
        """Return whether a configuration is better than the first one, in one sentence.

        Args:
            name: the metric.
            number: number of the configuration, from 1.
        """
        metric, contrast = METRICS[name], self.results[name].contrasts[number - 1]
        ours, base = self.configurations[number].name, self.configurations[0].name
        title = metric.title[0].lower() + metric.title[1:]
        if not math.isfinite(contrast.value):
            return f"{ours} cannot be compared with {base} by {title}."
        change = metric.contrast_text(contrast)
        groups = samples(metric, self.configurations)
        for task, *both in zip(self.tasks, groups[0], groups[number], strict=True):
            if min(sample.values.size for sample in both) < 2:
                return f"One seed of {task} decides nothing between {ours} and {base}: {change}."
        if contrast.low <= metric.neutral <= contrast.high:
            return f"No difference in {title} is shown between {ours} and {base}: {change}."
        better = (contrast.value > metric.neutral) == metric.higher
        return f"{ours} is {'better' if better else 'worse'} than {base} in {title}: {change}."


def interval_text(found: Estimate, number: Callable[[float], str], form: str) -> str:
    """Return an estimate in a format, and its 95 % interval; "-" if it is not defined."""
    if not math.isfinite(found.value):
        return "-"
    return f"{form.format(number(found.value))} ({number(found.low)} to {number(found.high)})"


def compare(
    configurations: Sequence[Configuration], differing: Mapping[str, tuple[list[str], ...]]
) -> Comparison:
    """Estimate all metrics of configurations over the same tasks."""
    results: dict[MetricName, MetricResult] = {}
    for name, metric in METRICS.items():
        groups = samples(metric, configurations)
        base, *others = groups
        ranked = [ranks(metric, group) for group in groups]
        results[name] = MetricResult(
            tuple(estimate(metric.aggregate, group) for group in groups),
            tuple(metric.contrast(group, base) for group in others),
            tuple(estimate(probability_of_improvement, group, ranked[0]) for group in ranked[1:]),
            tuple(
                len(each.outcomes) - sum(sample.values.size for sample in group)
                for each, group in zip(configurations, groups, strict=True)
            ),
        )
    return Comparison(tuple(configurations), differing, results)


def samples(metric: Metric, configurations: Sequence[Configuration]) -> list[list[SeedResults]]:
    """Return a metric's values of each configuration in each task.

    Values that do not exist are left out, as the cycle time of a run without a success. Times are
    observed up to the largest budget that all configurations have.
    """
    groups: list[list[SeedResults]] = [[] for _ in configurations]
    for task in configurations[0].tasks:
        outcomes = [each.tasks[task] for each in configurations]
        horizon = min(max(run.budget for run in runs) for runs in outcomes)
        for group, runs in zip(groups, outcomes, strict=True):
            values = np.array([metric.values(run) for run in runs], np.float64)
            if metric.censored:
                limits = np.minimum([run.budget for run in runs], horizon)
                group.append(SeedResults.of(np.minimum(values, limits), censored=values > limits))
                continue
            found = np.isfinite(values)
            trials = np.array([run.trials if metric.of_trials else 0 for run in runs])
            group.append(SeedResults.of(values[found], trials[found]))
    return groups


def ranks(metric: Metric, group: Group) -> list[SeedResults]:
    """Return samples in which a higher value is better, and a censored one worst."""
    return [
        replace(sample, values=np.where(sample.censored, -math.inf, values))
        for sample, values in (
            (sample, sample.values if metric.higher else -sample.values) for sample in group
        )
    ]
