"""Progress of a run for the console, from the run's files and the states of its processes."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from threading import Lock
from typing import Any

from serl.console.films import EpisodeFilms
from serl.console.messages import KeepOrder
from serl.datasets.person import ACTOR
from serl.datasets.recording_session import (
    KEPT,
    UNDONE,
    RecordedEpisode,
    Recording,
    RecordingSession,
    read_session,
)
from serl.log.annotations import read_labels
from serl.log.episode_reader import episode_paths
from serl.report.curves import judged
from serl.report.display import ActorProgress, RunProgress, versions_behind
from serl.report.progress import ProgressReader, advise
from serl.runs.folder import RunFolder
from serl.system.files import size_text
from serl.teleop.scripted import Budget, ScriptedHumanConfig

WINDOW = 20
SILENT = "silent"

_BUDGET = ScriptedHumanConfig()
"""Shares of human steps over a training that were measured to suffice: see `Budget`."""

Health = tuple[bool, str]
"""Whether a part of the run is healthy, and its state in words."""


class TrainingStatus:
    """Progress of a training.

    Args:
        actor: the actor that is driven.

    Attributes:
        actor: the actor whose link and weights are shown.
    """

    def __init__(self, run: RunFolder, actor: str) -> None:
        self._run, self.actor = run, actor
        self._reader = ProgressReader.of_run(run)

    def read(self, states: Mapping[str, str]) -> dict[str, Any]:
        """Return the newest numbers; `states` contains the state of each process."""
        progress = self._reader.read(states)
        recent = judged(self._reader.recent)
        actor = next((a for a in progress.actors if a.name == self.actor), None)
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
            "takeovers": sum(row["interventions"] for row in recent[-WINDOW:]),
            "budget_share": Budget(_BUDGET, progress.total_steps or 1, progress.steps or 0).share(),
            "cycle_time_s": sum(won) / len(won) if won else None,
            "recent": [_kind(row) for row in recent[-WINDOW:]],
            "advice": self._advice(recent),
            "learner": _learner(progress, states.get("learner", "")),
            "weights": _weights(progress, actor),
            "link": (True, "closed") if self.over else _link(actor),
            "disk": _disk(self._run),
        }

    @property
    def over(self) -> bool:
        """Whether the final trials are complete."""
        return self._reader.final is not None

    def _advice(self, recent: Sequence[dict[str, Any]]) -> str:
        final = self._reader.final
        if final is not None:
            won = f"{final['successes']} of {final['trials']} unassisted trials succeeded"
            if ended := final.get("early_end"):
                return f"partial: the trials {ended}" + (f"; {won}" if final["trials"] else "")
            return f"done: {won}"
        return advise(recent)


def _weights(progress: RunProgress, actor: ActorProgress | None) -> Health:
    if progress.weights_version is None:
        return True, "none yet"
    age = actor.weights_age if actor else None
    behind = "" if age is None else f", {versions_behind(age) or 'newest'}"
    return True, f"version {progress.weights_version}{behind}"


def _link(actor: ActorProgress | None) -> Health:
    link = actor.link if actor else None
    if link is None:
        return False, "no report"
    if not link.connected:
        return False, f"learner not connected, {link.waiting:,} steps waiting"
    return True, f"{link.acknowledged:,} steps acknowledged, {link.waiting:,} waiting"


def _disk(run: RunFolder) -> Health:
    free = shutil.disk_usage(run.path).free
    return free >= 2 * run.config.log.min_free_bytes, f"{size_text(free)} free"


def _learner(progress: RunProgress, state: str) -> Health:
    if state != "running":
        return state != SILENT, state or "not started"
    if progress.updates_per_s is None:
        at = progress.first_update_at
        return True, f"starts at {at:,} steps" if at else "waiting for steps"
    return True, f"{progress.updates_per_s:.0f} updates/s, {progress.utd or 0.0:.1f} per step"


def _wins(rows: Sequence[dict[str, Any]]) -> tuple[int, int]:
    last = rows[-WINDOW:]
    return sum(row["success"] for row in last), len(last)


def _kind(row: dict[str, Any]) -> str:
    if not row["success"]:
        return "failed"
    return "assisted" if row["assisted"] else "alone"


_PATIENCE = 5


def make_status(run: RunFolder, actor: str) -> TrainingStatus | RecordingStatus:
    """Return the overview of a training or of a person's recording."""
    session = read_session(run.path)
    return TrainingStatus(run, actor) if session is None else RecordingStatus(run, session)


class RecordingStatus:
    """Progress of a person's recording.

    Args:
        run: folder of the recording.
        session: purpose and requested amounts.
    """

    def __init__(self, run: RunFolder, session: RecordingSession) -> None:
        self._run, self._session = run, session
        self._have: dict[str, int] = {}
        self.films = EpisodeFilms(run.path)
        self._judging = Lock()

    def read(self, states: Mapping[str, str]) -> dict[str, Any]:
        """Return the newest numbers."""
        recent: list[bool] = []
        episodes: list[RecordedEpisode] = []
        if self._session.purpose == "demonstrations":
            recorded = Recording(self._run.path, self._run.episodes(ACTOR))
            counts, episodes = recorded.counts, recorded.episodes
            recent = [each.place == KEPT for each in episodes if each.place != UNDONE]
            self.films.assign(episodes)
            self._have = {"demonstrations": counts.kept}
            others = {"failures": counts.failures, "undone": counts.undone}
        else:
            labels = list(read_labels(self._run.path).values())
            positives = sum(label > 0 for label in labels)
            self._have = {"positives": positives, "negatives": len(labels) - positives}
            others = {"episodes": len(episode_paths(self._run.path))}
        return {
            "task": self._run.config.task,
            "run": self._run.name,
            "session": self._session.purpose,
            "counts": [[n, have, self._session.wanted.get(n)] for n, have in self._have.items()]
            + [[name, count, None] for name, count in others.items()],
            "recent": ["alone" if kept else "failed" for kept in recent[-WINDOW:]],
            "episodes": self.films.listed(episodes[-WINDOW:]),
            "advice": advise_session(self._have, self._session.wanted, recent),
            "disk": _disk(self._run),
        }

    def judge(self, judgement: KeepOrder) -> str:
        """Keep or discard a demonstration.

        Raises:
            SerlError: there is no such demonstration, or the decision changes nothing.
        """
        recorded = Recording(self._run.path, self._run.episodes(ACTOR))
        with self._judging:
            return recorded.judge(judgement.episode, judgement.keep)

    @property
    def over(self) -> bool:
        """Whether the requested amounts were complete at the last `read`."""
        target = self._session.wanted
        return bool(self._have) and all(self._have.get(n, 0) >= most for n, most in target.items())


def advise_session(have: Mapping[str, int], target: Mapping[str, int], recent: list[bool]) -> str:
    """Return the next instruction for the operator, in one line."""
    missing = {name: most - have.get(name, 0) for name, most in target.items()}
    remaining = [
        f"{count} {name if count > 1 else name.removesuffix('s')}"
        for name, count in missing.items()
        if count > 0
    ]
    if not remaining:
        return "done: all requested samples are recorded"
    if len(recent) >= _PATIENCE and not any(recent[-_PATIENCE:]):
        return f"slow down: the last {_PATIENCE} failed; {remaining[0]} to go"
    return f"to go: {' and '.join(remaining)}"
