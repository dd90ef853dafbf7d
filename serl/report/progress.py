"""The progress of a running run, read from its learner's metrics, and advice to its operator."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from serl.log.metrics import FILE, EventRow, RequestRow, ResumeRow, read_rows, without_superseded
from serl.report.curves import judged
from serl.report.display import ActorProgress, ProcessProgress, RunProgress
from serl.runs.folder import RunFolder
from serl.teleop.stop import PAUSE_FILE, STOP_FILE, read_stop
from serl.training.link import read_control_status, read_link_status

WINDOW = 20


class ProgressReader:
    """A reader that follows `metrics.jsonl` while a learner appends to it.

    Args:
        folder: folder of the run; need not hold metrics yet.
        total_steps: online steps at which the run ends.
        link: prefix of the names of link processes.
        first_update_at: online steps before the learner's first update.

    Attributes:
        final: the row of the final trials; None before them.
    """

    def __init__(
        self,
        task: str,
        folder: Path,
        total_steps: int,
        link: str = "link-",
        first_update_at: int = 0,
    ) -> None:
        self._link = link
        self._path = folder / FILE
        self._links = folder / "link"
        self._offset = 0
        self._episodes = 0
        self._collected = 0  # steps of the episodes before the first update
        self._recent: deque[dict[str, Any]] = deque(maxlen=200)
        self._started_s = time.monotonic()
        self._first: tuple[float, int] | None = None
        self._ages: dict[str, int] = {}
        self._news: list[str] = []
        self._progress = RunProgress(
            task=task, total_steps=total_steps, first_update_at=first_update_at or None
        )
        self.final: dict[str, Any] | None = None
        self._follow()
        self._news.clear()  # an earlier session reported it

    @classmethod
    def of_run(cls, run: RunFolder, title: str = "", link: str = "link-") -> Self:
        """Return a reader of a run, whose title is the name of its task unless it is given."""
        config = run.config
        title = title or config.task
        return cls(title, run.path, config.steps, link, config.first_update_at)

    @property
    def recent(self) -> list[dict[str, Any]]:
        """The rows of the last 200 episodes at the last `read`, oldest first."""
        return list(self._recent)

    def news(self) -> list[str]:
        """Return the notices for the user (a resume, a warning) since the last call."""
        news, self._news = self._news, []
        return news

    def read(self, states: Mapping[str, str]) -> RunProgress:
        """Read new rows and return the newest state; `states` are the processes' states by name."""
        self._follow()
        return replace(
            self._progress,
            elapsed_s=time.monotonic() - self._started_s,
            episodes=self._episodes or None,
            unassisted_success=_rate([r for r in self._recent if not r["assisted"]]),
            assisted_success=_rate([r for r in self._recent if r["assisted"]]),
            human_share=human_share(self._recent),
            actors=tuple(
                self._actor(name, states) for name in sorted(states) if name.startswith(self._link)
            ),
            processes=tuple(ProcessProgress(name, state) for name, state in states.items()),
        )

    def _follow(self) -> None:
        """Process the rows appended since the last call."""
        rows = self._rows()
        if rows:  # the run may have begun long before this reader
            self._started_s = min(self._started_s, time.monotonic() - rows[-1]["time_s"])
        self._news += [
            row["text"] for row in rows if row["kind"] in (EventRow.kind, RequestRow.kind)
        ]
        if any(row["kind"] == ResumeRow.kind for row in rows):  # start over without superseded rows
            self._offset, self._episodes, self._collected, self._first = 0, 0, 0, None
            self._recent.clear()
            rows = without_superseded(self._rows())
        for row in rows:
            self._take(row)

    def _actor(self, link: str, states: Mapping[str, str]) -> ActorProgress:
        name = link.removeprefix(self._link)
        status = read_link_status(self._links / name)
        control = read_control_status(self._links / name)
        running = states[link] == "running"
        stop = read_stop(self._links / name / STOP_FILE)
        pause = read_stop(self._links / name / PAUSE_FILE)
        waits = f"{pause}: resume at the console, or by the service resume" if pause else ""
        if stop:
            waits = f"{stop}: release it at the console or with serl order"
        return ActorProgress(name, running, status, self._ages.get(name), control, waits)

    def _take(self, row: dict[str, Any]) -> None:
        if row["kind"] == "episode":
            self._episodes += 1
            self._recent.append(row)
            self._ages[row["actor"]] = row["weight_age"]
            if self._first is None:
                self._collected += row["length"]
                self._progress = replace(self._progress, steps=self._collected)
        if row["kind"] == "evaluation" and row.get("purpose") == "final":
            self.final = row
        if row["kind"] == "update":
            self._first = self._first or (row["time_s"], row["steps"])
            self._progress = replace(
                self._progress,
                steps=max(row["steps"], self._collected),  # it trains on the collected steps first
                first_update_at=None,
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

    def _rows(self) -> list[dict[str, Any]]:
        rows, self._offset = read_rows(self._path, self._offset)
        return rows


def with_waiting(progress: RunProgress, waiting: Mapping[str, str]) -> RunProgress:
    """Return the progress with the actions that actors need from a person, by the actors' names.

    The time left becomes unknown when all actors wait.
    """
    actors = tuple(
        replace(actor, waits=waiting.get(actor.name) or actor.waits) for actor in progress.actors
    )
    all_wait = bool(actors) and all(actor.waits for actor in actors)
    return replace(progress, actors=actors, left_s=None if all_wait else progress.left_s)


def _rate(rows: list[dict[str, Any]]) -> float | None:
    last = judged(rows)[-WINDOW:]
    return sum(row["success"] for row in last) / len(last) if last else None


ALONE = 10
"""Number of last episodes in which unassisted successes are counted."""
ENOUGH = 8  # unassisted successes among them from which on no takeovers are needed
PATIENCE = 15
"""Episodes without a success after which a demonstration helps more than waiting."""
_MUCH = 0.5
_LONG_S = 2.0
"""Mean duration of a long takeover: in bench_habits.py brief ones take 1.2 s, long ones 2.5 s."""
_THIRD = 3


def advise(episodes: Sequence[dict[str, Any]]) -> str:
    """Return advice to the operator, with its reason, from rows of episodes, oldest first."""
    if not episodes:
        return "watch: the first episode is in progress"
    last = list(episodes)[-PATIENCE:]
    alone = [row["success"] and not row["assisted"] for row in episodes[-ALONE:]]
    won = sum(row["success"] for row in last)
    if len(alone) == ALONE and sum(alone) >= ENOUGH:
        return f"stop correcting: {sum(alone)} of the last {ALONE} episodes succeeded without help"
    if len(last) == PATIENCE and not won:
        return f"demonstrate: no success in {PATIENCE} episodes"
    if len(last) == PATIENCE and won * _THIRD < PATIENCE:
        return f"help it succeed: {won} of the last {PATIENCE} episodes were successes"
    if (share := human_share(episodes) or 0.0) > _MUCH:
        return f"correct more briefly: {share:.0%} of the last steps were human"
    if len(last) == PATIENCE and (takeover_s := _mean_takeover_s(episodes)) > _LONG_S:
        return f"correct briefly: takeovers of {takeover_s:.1f} s raise over-estimation"
    outcomes = [row["success"] for row in episodes if not row["assisted"]][-ALONE:]
    if not outcomes:
        return "let it try: no unassisted episode yet"
    counts = f"{sum(outcomes)} of the last {len(outcomes)}"
    return f"correct briefly: {counts} unassisted episodes succeeded"


def human_share(episodes: Iterable[dict[str, Any]]) -> float | None:
    """Return the share of human steps in the last 20 episodes; None without any step."""
    last = list(episodes)[-WINDOW:]
    steps = sum(row["length"] for row in last)
    return sum(row["human_steps"] for row in last) / steps if steps else None


def _mean_takeover_s(episodes: Sequence[dict[str, Any]]) -> float:
    """Return the mean duration of a takeover in the last 20 episodes, s; 0 without any.

    A long takeover that ends in a success teaches the value of that success for the state in which
    it began, from which the policy alone cannot succeed.
    """
    last = [row for row in list(episodes)[-WINDOW:] if row["interventions"]]
    hands_s = sum(row["human_steps"] * row["duration_s"] / row["length"] for row in last)
    return hands_s / sum(row["interventions"] for row in last) if last else 0.0
