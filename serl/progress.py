"""Where a running run stands, read from the metrics that its learner writes."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from serl.display import ActorProgress, ProcessProgress, Progress
from serl.supervisor import Supervisor

WINDOW = 20
_LINK = "link-"


class ProgressReader:
    """Follows `metrics.jsonl` while a learner appends to it.

    Args:
        task: name of the task.
        path: of the metrics; may not exist yet.
        total_steps: online steps to go to.
    """

    def __init__(self, task: str, path: Path, total_steps: int) -> None:
        self._path = path
        self._offset = 0
        self._rest = b""
        self._episodes = 0
        self._recent: deque[dict[str, Any]] = deque(maxlen=200)
        self._started_s = time.monotonic()
        self._first: tuple[float, int] | None = None
        self._ages: dict[str, int] = {}
        self._progress = Progress(task=task, total_steps=total_steps)

    def read(self, supervisor: Supervisor) -> Progress:
        """The newest state."""
        for row in self._rows():
            self._take(row)
        states = supervisor.states()
        return replace(
            self._progress,
            elapsed_s=time.monotonic() - self._started_s,
            episodes=self._episodes or None,
            unassisted_success=_rate([r for r in self._recent if not r["assisted"]]),
            assisted_success=_rate([r for r in self._recent if r["assisted"]]),
            human_share=self._human_share(),
            actors=tuple(self._actor(name, states) for name in sorted(states) if _LINK in name),
            processes=tuple(ProcessProgress(name, state) for name, state in states.items()),
        )

    def _actor(self, link: str, states: Mapping[str, str]) -> ActorProgress:
        """Up: its link process runs, and an episode of it arrived."""
        name = link.removeprefix(_LINK)
        age = self._ages.get(name)
        up = None if age is None else True
        return ActorProgress(name, up if states[link] == "running" else False, age)

    def _take(self, row: dict[str, Any]) -> None:
        if row["kind"] == "episode":
            self._episodes += 1
            self._recent.append(row)
            self._ages[row["actor"]] = row["weight_age"]
        if row["kind"] == "update":
            self._first = self._first or (row["time_s"], row["steps"])
            self._progress = replace(
                self._progress,
                steps=row["steps"],
                updates_per_s=row["updates_per_s"],
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
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return []
        self._offset += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [json.loads(line) for line in lines]


def _rate(rows: list[dict[str, Any]]) -> float | None:
    last = rows[-WINDOW:]
    return sum(row["success"] for row in last) / len(last) if last else None
