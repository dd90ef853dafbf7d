"""Where a running run stands, read from the metrics that its learner writes."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from serl.training.control_status import read_control_status
from serl.report.display import ActorProgress, ProcessProgress, Progress
from serl.teleop.stop import STOP_FILE, kept_stop
from serl.training.link_status import read_status
from serl.log.metrics import FILE, EventRow, RequestRow, ResumeRow, read_rows, standing

WINDOW = 20


class States(Protocol):
    """Knows how processes fare, as a `Supervisor` does."""

    def states(self) -> Mapping[str, str]:
        """A word on each process, by name."""
        ...


class ProgressReader:
    """Follows `metrics.jsonl` while a learner appends to it.

    Args:
        task: name of the task.
        folder: of the run; need not hold metrics yet.
        total_steps: online steps to go to.
        link: what the names of its links begin with.

    Attributes:
        final: the row of the final trials, once they were made.
    """

    def __init__(self, task: str, folder: Path, total_steps: int, link: str = "link-") -> None:
        self._link = link
        self._path = folder / FILE
        self._links = folder / "link"
        self._offset = 0
        self._episodes = 0
        self._recent: deque[dict[str, Any]] = deque(maxlen=200)
        self._started_s = time.monotonic()
        self._first: tuple[float, int] | None = None
        self._ages: dict[str, int] = {}
        self._news: list[str] = []
        self._progress = Progress(task=task, total_steps=total_steps)
        self.final: dict[str, Any] | None = None
        self._follow()
        self._news.clear()  # an earlier session told it

    @property
    def recent(self) -> list[dict[str, Any]]:
        """Rows of the last 200 episodes, oldest first, as of the last `read`."""
        return list(self._recent)

    def news(self) -> list[str]:
        """What a person should know of (a resume, a warning), since the last call."""
        news, self._news = self._news, []
        return news

    def read(self, supervisor: States) -> Progress:
        """The newest state."""
        self._follow()
        states = supervisor.states()
        return replace(
            self._progress,
            elapsed_s=time.monotonic() - self._started_s,
            episodes=self._episodes or None,
            unassisted_success=_rate([r for r in self._recent if not r["assisted"]]),
            assisted_success=_rate([r for r in self._recent if r["assisted"]]),
            human_share=self._human_share(),
            actors=tuple(
                self._actor(name, states) for name in sorted(states) if name.startswith(self._link)
            ),
            processes=tuple(ProcessProgress(name, state) for name, state in states.items()),
        )

    def _follow(self) -> None:
        """Take in the rows that were appended."""
        rows = self._rows()
        self._news += [
            row["text"] for row in rows if row["kind"] in (EventRow.kind, RequestRow.kind)
        ]
        if any(row["kind"] == ResumeRow.kind for row in rows):  # begin again, without superseded
            self._offset, self._episodes, self._first = 0, 0, None
            self._recent.clear()
            rows = standing(self._rows())
        for row in rows:
            self._take(row)

    def _actor(self, link: str, states: Mapping[str, str]) -> ActorProgress:
        name = link.removeprefix(self._link)
        status = read_status(self._links / name)
        control = read_control_status(self._links / name)
        running = states[link] == "running"
        stop = kept_stop(self._links / name / STOP_FILE)
        waits = f"{stop}: release it at the console or with serl order" if stop else ""
        return ActorProgress(name, running, status, self._ages.get(name), control, waits)

    def _take(self, row: dict[str, Any]) -> None:
        if row["kind"] == "episode":
            self._episodes += 1
            self._recent.append(row)
            self._ages[row["actor"]] = row["weight_age"]
        if row["kind"] == "evaluation" and row.get("purpose") == "final":
            self.final = row
        if row["kind"] == "update":
            self._first = self._first or (row["time_s"], row["steps"])
            self._progress = replace(
                self._progress,
                steps=row["steps"],
                updates_per_s=row["updates_per_s"] or None,
                utd=row["utd"],
                weights_version=row["weights_version"],
                left_s=self._left_s(row),
            )

    def _left_s(self, row: dict[str, Any]) -> float | None:
        assert self._first is not None
        since_s, done = row["time_s"] - self._first[0], row["steps"] - self._first[1]
        left = (self._progress.total_steps or 0) - row["steps"]
        return left * since_s / done if done else None

    def _human_share(self) -> float | None:
        last = list(self._recent)[-WINDOW:]
        steps = sum(row["length"] for row in last)
        return sum(row["human_steps"] for row in last) / steps if steps else None

    def _rows(self) -> list[dict[str, Any]]:
        rows, self._offset = read_rows(self._path, self._offset)
        return rows


def with_waiting(progress: Progress, waiting: Mapping[str, str]) -> Progress:
    """The same, with what actors wait for a person to do, by name; nobody knows for how long."""
    actors = tuple(
        replace(actor, waits=waiting.get(actor.name) or actor.waits) for actor in progress.actors
    )
    all_wait = bool(actors) and all(actor.waits for actor in actors)
    return replace(progress, actors=actors, left_s=None if all_wait else progress.left_s)


def _rate(rows: list[dict[str, Any]]) -> float | None:
    last = rows[-WINDOW:]
    return sum(row["success"] for row in last) / len(last) if last else None
