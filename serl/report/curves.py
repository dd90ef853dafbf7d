"""The numbers in a run's plots and tables, computed from the rows of its metrics."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serl.errors import counted
from serl.log.metrics import EpisodeRow, EvaluationRow, MetricsRow, RequestRow
from serl.training.evaluation import void_cause
from serl.types import parse_reason

Values = NDArray[np.float64]

WINDOW = 20
"""Episodes of a running mean."""


def number(row: MetricsRow, name: str) -> float:
    """Return a field as a number (True is 1); NaN where it is absent or not a number."""
    value: Any = row.get(name)
    return float(value) if isinstance(value, int | float) else math.nan


def series(rows: Sequence[MetricsRow], name: str) -> Values:
    """Return one field of all rows, NaN where absent; shape (N,)."""
    return np.array([number(row, name) for row in rows], np.float64)


def judged(episodes: Iterable[MetricsRow]) -> list[MetricsRow]:
    """Return the episodes by which the policy can be judged.

    Ctrl-C or a fault of the machine ended the others, which would be void as trials.
    """
    reasons = ((row, row.get("reason")) for row in episodes)
    return [
        row
        for row, text in reasons
        if not (text and isinstance(text, str) and void_cause(*parse_reason(text)))
    ]


def running_ratio(part: Values, whole: Values, window: int = WINDOW) -> Values:
    """Return the running ratio of sums, `part` over `whole`, in a trailing window; shape (N,)."""
    ratio: Values = np.full(len(part), math.nan)
    totals = _running_sum(whole, window)
    np.divide(_running_sum(part, window), totals, out=ratio, where=totals > 0)
    return ratio


def running_mean(values: Values, window: int = WINDOW) -> Values:
    """Return the running mean of the last `window` entries, ignoring NaN; shape (N,)."""
    return running_ratio(values, np.isfinite(values).astype(np.float64), window)


def _running_sum(values: Values, window: int) -> Values:
    sums = np.concatenate([[0.0], np.cumsum(np.nan_to_num(values))])
    ends = np.arange(1, len(sums))
    last: Values = sums[ends] - sums[np.maximum(ends - window, 0)]
    return last


def thin(x: Values, y: Values, max_points: int) -> tuple[Values, Values]:
    """Return at most `max_points` finite points, as means of neighbours."""
    kept = np.isfinite(x) & np.isfinite(y)
    x, y = x[kept], y[kept]
    if len(x) <= max_points:
        return x, y
    starts = np.linspace(0, len(x), max_points, endpoint=False).astype(int)
    sizes = np.diff(np.append(starts, len(x)))
    return np.add.reduceat(x, starts) / sizes, np.add.reduceat(y, starts) / sizes


def reached(rows: Sequence[MetricsRow], share: float = 0.9) -> tuple[float, float]:
    """Return online steps and seconds at which a run first succeeded in a share of episodes.

    It is the first of: the last `WINDOW` unassisted training episodes, or the trials of one
    checkpoint. Infinite if neither reached the share.
    """
    alone = _alone(rows)
    good = running_mean(series(alone, "success"))[WINDOW - 1 :] >= share
    first = alone[WINDOW - 1 + int(good.argmax())] if good.any() else None
    in_training = (first["steps"], first["time_s"]) if first else (math.inf, math.inf)
    solved = [
        number(row, "checkpoint")
        for row in rows
        if row["kind"] == EvaluationRow.kind and row.get("purpose") != "clone"
        if number(row, "successes") >= share * number(row, "trials") > 0
    ]
    step = min(solved, default=math.inf)
    times_s = (row["time_s"] for row in rows if row["steps"] >= step)
    return min(in_training, (step, next(times_s, math.inf)))


def success_curve(rows: Sequence[MetricsRow], steps: Values) -> Values:
    """Return the success rate of the last `WINDOW` unassisted training episodes at each step.

    It is 0 before the first such episode.
    """
    alone = _alone(rows)
    ends, rates = series(alone, "steps"), running_mean(series(alone, "success"))
    before = np.searchsorted(ends, steps, side="right")
    curve: Values = np.concatenate([[0.0], np.nan_to_num(rates)])[before]
    return curve


def _alone(rows: Sequence[MetricsRow]) -> list[MetricsRow]:
    episodes = [row for row in rows if row["kind"] == EpisodeRow.kind]
    return [row for row in judged(episodes) if not row.get("assisted")]


@dataclass(frozen=True, slots=True)
class Quarter:
    """A quarter of a run's online steps; an episode belongs to the quarter in which it ends.

    Attributes:
        last_step: online steps at the end of the quarter.
        episodes: number of episodes that ended in the quarter.
        human_share: share of human steps; NaN without any step.
        interventions: takeovers per episode; NaN without any episode.
        unassisted: (successes, episodes) of episodes without a human step.
        assisted: (successes, episodes) of episodes with a human step.
    """

    last_step: int
    episodes: int
    human_share: float
    interventions: float
    unassisted: tuple[int, int]
    assisted: tuple[int, int]


def quarters(episodes: Sequence[MetricsRow]) -> list[Quarter]:
    """Return the four quarters of a run's online steps from its episode rows; [] without any."""
    total = int(max((row["steps"] for row in episodes), default=0))
    if total == 0:
        return []
    edges = [-1, *(math.ceil(total * part / 4) for part in range(1, 5))]  # 0: before any update
    return [
        _quarter([row for row in episodes if first < row["steps"] <= last], last)
        for first, last in pairwise(edges)
    ]


def _quarter(episodes: list[MetricsRow], last_step: int) -> Quarter:
    steps = np.nansum(series(episodes, "length"))
    human = np.nansum(series(episodes, "human_steps"))
    takeovers = np.nansum(series(episodes, "interventions"))
    return Quarter(
        last_step=last_step,
        episodes=len(episodes),
        human_share=float(human / steps) if steps else math.nan,
        interventions=float(takeovers / len(episodes)) if episodes else math.nan,
        unassisted=_successes([row for row in episodes if not row.get("assisted")]),
        assisted=_successes([row for row in episodes if row.get("assisted")]),
    )


def _successes(episodes: list[MetricsRow]) -> tuple[int, int]:
    episodes = judged(episodes)
    return sum(bool(row.get("success")) for row in episodes), len(episodes)


@dataclass(frozen=True, slots=True)
class Assistance:
    """Human help in the online episodes of a run, or of several.

    Attributes:
        steps: number of their steps.
        takeovers: segments of human steps.
        requests: requests for a person, by a robot that could not restore its scene.
    """

    episodes: int = 0
    steps: int = 0
    human_steps: int = 0
    takeovers: int = 0
    requests: int = 0

    @property
    def human_share(self) -> float:
        """Share of human steps; NaN without any step."""
        return self.human_steps / self.steps if self.steps else math.nan

    @property
    def requests_per_100(self) -> float:
        """Requests for a person per hundred episodes; NaN without an episode."""
        return 100.0 * self.requests / self.episodes if self.episodes else math.nan

    def __str__(self) -> str:
        text = f"requests for a person: {self.requests} in {counted(self.episodes, 'episode')}"
        rate = f" ({self.requests_per_100:.2g} per 100)" if self.episodes else ""
        return f"{text}{rate}, takeovers: {self.takeovers:,}"


def assistance(rows: Sequence[MetricsRow]) -> Assistance:
    """Return the human help in a run, from the rows of its metrics."""
    played = [row for row in rows if row["kind"] == EpisodeRow.kind]
    return Assistance(
        episodes=len(played),
        steps=_sum(played, "length"),
        human_steps=_sum(played, "human_steps"),
        takeovers=_sum(played, "interventions"),
        requests=sum(row["kind"] == RequestRow.kind for row in rows),
    )


def total_assistance(parts: Iterable[Assistance]) -> Assistance:
    """Return the total help in several runs."""
    return Assistance(*map(sum, zip(*map(astuple, parts), strict=True)))


def _sum(rows: Sequence[MetricsRow], name: str) -> int:
    values = (row.get(name) for row in rows)
    return sum(value for value in values if isinstance(value, int))
