"""How much a training was helped: takeovers, and requests of a robot for a person."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from serl.log.metrics import EpisodeRow, MetricsRow, RequestRow


@dataclass(frozen=True, slots=True)
class Assistance:
    """Help in the online episodes of a run, or of several.

    Attributes:
        episodes: how many there were.
        steps: of theirs.
        human_steps: those that a human drove.
        takeovers: segments of human steps.
        requests: how often a robot could not restore its scene and asked for a person.
    """

    episodes: int = 0
    steps: int = 0
    human_steps: int = 0
    takeovers: int = 0
    requests: int = 0

    @property
    def human_share(self) -> float:
        """Of the steps; NaN without any."""
        return self.human_steps / self.steps if self.steps else math.nan

    @property
    def requests_per_100(self) -> float:
        """Requests for a person in a hundred episodes; NaN without an episode."""
        return 100.0 * self.requests / self.episodes if self.episodes else math.nan

    def __str__(self) -> str:
        asked = f"requests for a person: {self.requests} in {self.episodes:,} episodes"
        rate = f" ({self.requests_per_100:.2g} per 100)" if self.episodes else ""
        return f"{asked}{rate}, takeovers: {self.takeovers:,}"


def assistance(rows: Sequence[MetricsRow]) -> Assistance:
    """What the rows of a run's metrics tell of it."""
    played = [row for row in rows if row["kind"] == EpisodeRow.kind]
    return Assistance(
        episodes=len(played),
        steps=_sum(played, "length"),
        human_steps=_sum(played, "human_steps"),
        takeovers=_sum(played, "interventions"),
        requests=sum(row["kind"] == RequestRow.kind for row in rows),
    )


def together(parts: Iterable[Assistance]) -> Assistance:
    """Of several runs."""
    total = Assistance()
    for part in parts:
        total = Assistance(
            total.episodes + part.episodes,
            total.steps + part.steps,
            total.human_steps + part.human_steps,
            total.takeovers + part.takeovers,
            total.requests + part.requests,
        )
    return total


def _sum(rows: Sequence[MetricsRow], name: str) -> int:
    values = (row.get(name) for row in rows)
    return sum(value for value in values if isinstance(value, int))
