"""How a training goes, as the console shows it: from the run's files and what processes say."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from typing import Any

from serl.report.advice import advise
from serl.report.display import Progress
from serl.report.progress import ProgressReader
from serl.runs.folder import RunFolder

WINDOW = 20
SILENT = "silent"

Health = tuple[bool, str]
"""Whether it is well, and a few words."""


class Overview:
    """Follows one run.

    Args:
        run: the run.
        actor: the actor that the console is beside.
    """

    def __init__(self, run: RunFolder, actor: str) -> None:
        self._run, self._actor = run, actor
        self._reader = ProgressReader(run.config.task, run.path, run.config.steps)

    def read(self, states: Mapping[str, str]) -> dict[str, Any]:
        """The newest numbers; `states` says of each process how it fares."""
        progress = self._reader.read(_Said(states))
        recent = self._reader.recent
        won = [row["duration_s"] for row in recent if row["success"]][-WINDOW:]
        return {
            "task": self._run.config.task,
            "run": self._run.name,
            "steps": progress.steps,
            "total_steps": progress.total_steps,
            "elapsed_s": progress.elapsed_s,
            "left_s": progress.left_s,
            "alone": _wins([row for row in recent if not row["assisted"]]),
            "assisted": _wins([row for row in recent if row["assisted"]]),
            "human_share": progress.human_share,
            "cycle_time_s": sum(won) / len(won) if won else None,
            "recent": [_kind(row) for row in recent[-WINDOW:]],
            "advice": self._advice(recent),
            "learner": _learner(progress, states.get("learner", "")),
            "weights": self._weights(progress),
            "link": self._link(progress),
            "disk": self._disk(),
        }

    @property
    def over(self) -> bool:
        """The final trials were made."""
        return self._reader.final is not None

    def _advice(self, recent: Sequence[dict[str, Any]]) -> str:
        final = self._reader.final
        if final is not None:
            return f"done: {final['successes']} of {final['trials']} trials succeeded alone"
        return advise(recent)

    def _weights(self, progress: Progress) -> Health:
        age = next((a.weights_age for a in progress.actors if a.name == self._actor), None)
        if progress.weights_version is None:
            return True, "none yet"
        behind = "" if age is None else ", newest" if not age else f", {age} behind"
        return True, f"version {progress.weights_version}{behind}"

    def _link(self, progress: Progress) -> Health:
        link = next((a.link for a in progress.actors if a.name == self._actor), None)
        if self.over:
            return True, "closed"
        if link is None:
            return False, "silent"
        if not link.connected:
            return False, f"no learner answers, {link.waiting:,} steps wait"
        return True, f"{link.acknowledged:,} acknowledged, {link.waiting:,} wait"

    def _disk(self) -> Health:
        disk = shutil.disk_usage(self._run.path)
        least = self._run.config.log.min_free_bytes
        return disk.free >= 2 * least, f"{disk.free / 1e9:.0f} GB free"


class _Said:
    """What processes say of themselves, in the place of a supervisor."""

    def __init__(self, states: Mapping[str, str]) -> None:
        self._states = states

    def states(self) -> Mapping[str, str]:
        """As they were told."""
        return self._states


def _learner(progress: Progress, state: str) -> Health:
    if state != "running":
        return state != SILENT, state or "not started"
    if progress.updates_per_s is None:
        return True, "waits for steps"
    return True, f"{progress.updates_per_s:.0f} updates/s, {progress.utd or 0.0:.1f} per step"


def _wins(rows: Sequence[dict[str, Any]]) -> tuple[int, int]:
    last = rows[-WINDOW:]
    return sum(row["success"] for row in last), len(last)


def _kind(row: dict[str, Any]) -> str:
    if not row["success"]:
        return "failed"
    return "assisted" if row["assisted"] else "alone"
