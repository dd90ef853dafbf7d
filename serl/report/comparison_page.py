"""The page of a comparison: one self-contained HTML file, and the same results as text."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from serl.errors import counted
from serl.report import page
from serl.report.aggregates import Bands, Values, mean_curve, performance_profile, reached_curve
from serl.report.comparison import (
    METRICS,
    Comparison,
    Metric,
    MetricName,
    interval_text,
    ranks,
    samples,
)
from serl.report.curves import WINDOW
from serl.report.outcomes import GRID, RunOutcome
from serl.report.plots import Colour, Trace, plot
from serl.report.report import HERO_PX, MAX_VIDEO_BYTES, STEPS
from serl.report.run_data import videos
from serl.system.files import write_atomic

COLOURS: tuple[Colour, ...] = ("policy", "human", "evaluation")
"""Colours of the configurations, as many as can be compared."""

SHARE = "% of the steps"
_POINTS = 101


def write_comparison(path: Path, comparison: Comparison, name: MetricName) -> None:
    """Write the page of a comparison.

    Args:
        path: file to write.
        comparison: the results.
        name: metric at the top of the page, and of its profile.
    """
    metric, names = METRICS[name], [each.name for each in comparison.configurations]
    content = page.render(
        "compare.html",
        task=" against ".join(names),
        name=", ".join(comparison.tasks),
        names=names,
        base=names[0],
        metric=metric,
        verdicts=[comparison.verdict(name, number) for number in range(1, len(names))],
        levels=list(_levels(comparison, name)),
        heads=heads(comparison),
        rows=result_rows(comparison),
        remarks=list(remarks(comparison)),
        window=WINDOW,
        learning=_learning(comparison),
        distributions=_distributions(comparison, metric),
        settings=setting_rows(comparison),
        beside=list(_beside(comparison)),
        runs=sum(len(each.outcomes) for each in comparison.configurations),
        run_heads=["task", "seed", "configuration", *map(_head, METRICS.values())],
        run_rows=_run_rows(comparison),
    )
    write_atomic(path, content)


def heads(comparison: Comparison) -> list[str]:
    """Return the heads of the table of results, one for each cell of `result_rows`."""
    base = comparison.configurations[0].name
    return ["metric", "configuration", "value", f"to {base}", f"better than {base}"]


def result_rows(comparison: Comparison) -> list[list[str]]:
    """Return each metric of each configuration with its intervals, and its contrast to the base."""
    rows = []
    for name, metric in METRICS.items():
        result = comparison.results[name]
        contrasts = ["", *map(metric.contrast_text, result.contrasts)]
        shares = (interval_text(p, lambda p: f"{100 * p:.0f}", "{} %") for p in result.improvements)
        better = ["", *shares]
        for number, each in enumerate(comparison.configurations):
            title = "" if number else metric.title
            level = metric.text(result.levels[number])
            rows.append([title, each.name, level, contrasts[number], better[number]])
    return rows


def setting_rows(comparison: Comparison) -> list[list[str]]:
    """Return each differing setting with the values of each configuration."""
    return [
        [name, *(", ".join(values) for values in groups)]
        for name, groups in comparison.differing.items()
    ]


def remarks(comparison: Comparison) -> Iterator[str]:
    """Yield sentences on runs that are not in a metric, or only in part."""
    for name, metric in METRICS.items():
        for each, missing in zip(
            comparison.configurations, comparison.results[name].missing, strict=True
        ):
            if missing:
                runs = counted(missing, "run")
                yield f"{metric.title}: {runs} of {each.name} left out, without a value."
    for each in comparison.configurations:
        if partial := sum(run.partial for run in each.outcomes):
            yield f"Success: the trials of {counted(partial, 'run')} of {each.name} ended early."
    metric = METRICS["steps_to_90"]
    for each, group in zip(
        comparison.configurations, samples(metric, comparison.configurations), strict=True
    ):
        if censored := sum(int(sample.censored.sum()) for sample in group):
            of = len(each.outcomes)
            yield f"{metric.title}: not reached by {censored} of {of} runs of {each.name}."


def _levels(comparison: Comparison, name: MetricName) -> Iterator[dict[str, Any]]:
    metric, levels = METRICS[name], comparison.results[name].levels
    finite = [level.high for level in levels if math.isfinite(level.high)]
    scale = 100.0 / (1.0 if metric.unit == "share" else max([*finite, 1e-9]))
    for each, colour, level in zip(comparison.configurations, COLOURS, levels, strict=False):
        yield {
            "name": each.name,
            "colour": colour,
            "text": metric.text(level),
            "shown": math.isfinite(level.value),
            "value": scale * level.value,
            "low": scale * level.low,
            "high": scale * level.high,
        }


def _beside(comparison: Comparison) -> Iterator[dict[str, Any]]:
    """Yield one run of each configuration for each task, of the same seed where there is one."""
    configurations, tasks = comparison.configurations, comparison.tasks
    share_bytes = MAX_VIDEO_BYTES // (len(configurations) * len(tasks))
    for task in tasks:
        groups = [sorted(each.tasks[task], key=lambda run: run.seed) for each in configurations]
        common = set.intersection(*({run.seed for run in group} for group in groups))
        seed = min(common, default=None)
        runs = [next((r for r in group if r.seed == seed), group[0]) for group in groups]
        yield {
            "task": task,
            "runs": [
                (each.name, f"seed {run.seed}: {run.successes} of {run.trials} trials", films[:1])
                for each, run in zip(configurations, runs, strict=True)
                for films in [page.films(videos(run.path), share_bytes)]
            ],
            "rows": [
                [_head(metric), *(_run_text(metric, run) for run in runs)]
                for metric in METRICS.values()
            ],
        }


def _run_text(metric: Metric, run: RunOutcome) -> str:
    """Return a run's value of a metric; a run that never reached it says so."""
    if metric.of_trials:
        return f"{run.successes}/{run.trials}"
    value = metric.values(run)
    return "never" if metric.censored and math.isinf(value) else metric.number(value)


def _traces(comparison: Comparison, x: Values, curves: list[Bands]) -> list[Trace]:
    return [
        Trace(each.name, colour, x, bands.values, interval=(bands.low, bands.high))
        for each, colour, bands in zip(comparison.configurations, COLOURS, curves, strict=False)
    ]


def _learning(comparison: Comparison) -> list[page.PlotCard]:
    """Return a card of all tasks if there are several, and one of each task."""
    cards = []
    tasks = comparison.tasks
    for title, chosen in ([("All tasks", tasks)] if len(tasks) > 1 else []) + [
        (task, [task]) for task in tasks
    ]:
        curves = [
            mean_curve([np.stack([run.curve for run in each.tasks[task]]) for task in chosen])
            for each in comparison.configurations
        ]
        budgets = {r.budget for c in comparison.configurations for t in chosen for r in c.tasks[t]}
        alone = len(chosen) == len(budgets) == 1
        budget, label = (budgets.pop(), STEPS) if alone else (100, SHARE)
        traces = _traces(comparison, np.linspace(0, budget, GRID), curves)
        figure = plot(f"Learning {title}", traces, label, scale="percent", size_px=HERO_PX)
        cards.append(page.PlotCard(title, figure, legend=traces))
    return cards


def _distributions(comparison: Comparison, metric: Metric) -> list[page.PlotCard]:
    """Return the performance profile of a metric, and the share of runs that reached 90 %."""
    shown = METRICS["success"] if metric.censored else metric
    return [_profile(comparison, shown), _reached(comparison)]


def _profile(comparison: Comparison, metric: Metric) -> page.PlotCard:
    groups = samples(metric, comparison.configurations)
    values = np.concatenate([sample.values for group in groups for sample in group])
    top = 1.0 if metric.unit == "share" else float(values.max(initial=0.0)) * 1.05
    thresholds = np.linspace(0.0, top, _POINTS)
    ranked = [ranks(metric, group) for group in groups]
    curves = [
        performance_profile(group, thresholds if metric.higher else -thresholds)
        for group in ranked
        if all(sample.values.size for sample in group)
    ]
    title = "Performance profile"
    note = f"share of runs with {'more' if metric.higher else 'less'} than the value below"
    label = f"{metric.title[0].lower()}{metric.title[1:]}, {'%' if metric.unit == 'share' else 's'}"
    if len(curves) < len(groups):
        return page.PlotCard(title, plot(title, [], label), note=note)
    x = thresholds * (100 if metric.unit == "share" else 1)
    traces = _traces(comparison, x, curves)
    figure = plot(title, traces, label, scale="percent", size_px=HERO_PX)
    return page.PlotCard(title, figure, note=note, legend=traces)


def _reached(comparison: Comparison) -> page.PlotCard:
    metric, alone = METRICS["steps_to_90"], len(comparison.tasks) == 1
    groups = samples(metric, comparison.configurations)
    ends = [
        max(float(sample.values.max()) for sample in each) for each in zip(*groups, strict=True)
    ]
    curves = [
        reached_curve(group, [np.linspace(0, end, _POINTS) for end in ends]) for group in groups
    ]
    traces = _traces(comparison, np.linspace(0, ends[0] if alone else 100, _POINTS), curves)
    label = STEPS if alone else SHARE
    title, note = "Runs that reached 90 %", "Kaplan and Meier's estimate; 100 % means all runs did"
    figure = plot(title, traces, label, scale="percent", size_px=HERO_PX)
    return page.PlotCard(title, figure, note=note, legend=traces)


def _head(metric: Metric) -> str:
    unit = {"share": ", %", "steps": "", "seconds": ", s"}[metric.unit]
    return "Final trials" if metric.of_trials else f"{metric.title}{unit}"


def _run_rows(comparison: Comparison) -> list[list[str]]:
    rows = []
    for task in comparison.tasks:
        runs = [(each.name, run) for each in comparison.configurations for run in each.tasks[task]]
        for name, run in sorted(runs, key=lambda each: each[1].seed):
            values = [_run_text(metric, run) for metric in METRICS.values()]
            rows.append([task, str(run.seed), name, *values])
    return rows
