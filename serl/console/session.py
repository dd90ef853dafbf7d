"""How the recording of a person goes, as the console shows it: from the recording's files alone."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from typing import Any

from serl.console.status import WINDOW, Overview
from serl.log.episode_reader import episode_paths
from serl.log.annotations import read_labels
from serl.datasets.person import ACTOR
from serl.datasets.recording_session import Recorded, Session, read_session
from serl.runs.folder import RunFolder

_PATIENCE = 5


def overview_of(run: RunFolder, actor: str) -> Overview | SessionOverview:
    """Of a training, or of a person's recording."""
    session = read_session(run.path)
    return Overview(run, actor) if session is None else SessionOverview(run, session)


class SessionOverview:
    """Follows a recording.

    Args:
        run: its folder.
        session: what is asked for.
    """

    def __init__(self, run: RunFolder, session: Session) -> None:
        self._run, self._session = run, session
        self._have: dict[str, int] = {}

    def read(self, states: Mapping[str, str]) -> dict[str, Any]:
        """The newest numbers."""
        recent: list[bool] = []
        if self._session.purpose == "demonstrations":
            recorded = Recorded(self._run.path, self._run.episodes(ACTOR))
            counts, recent = recorded.counts, recorded.recent
            self._have = {"demonstrations": counts.kept}
            beside = {"failures": counts.failures, "undone": counts.undone}
        else:
            labels = list(read_labels(self._run.path).values())
            positives = sum(label > 0 for label in labels)
            self._have = {"positives": positives, "negatives": len(labels) - positives}
            beside = {"episodes": len(episode_paths(self._run.path))}
        disk = shutil.disk_usage(self._run.path)
        return {
            "task": self._run.config.task,
            "run": self._run.name,
            "session": self._session.purpose,
            "counts": [[n, have, self._session.wanted.get(n)] for n, have in self._have.items()]
            + [[name, count, None] for name, count in beside.items()],
            "recent": ["alone" if kept else "failed" for kept in recent[-WINDOW:]],
            "advice": advise_session(self._have, self._session.wanted, recent),
            "disk": [
                disk.free >= 2 * self._run.config.log.min_free_bytes,
                f"{disk.free / 1e9:.0f} GB free",
            ],
        }

    @property
    def over(self) -> bool:
        """All that was wanted is there, as of the last `read`."""
        wanted = self._session.wanted
        return bool(self._have) and all(self._have.get(n, 0) >= most for n, most in wanted.items())


def advise_session(have: Mapping[str, int], wanted: Mapping[str, int], recent: list[bool]) -> str:
    """What to do now, in one line."""
    left = {name: most - have.get(name, 0) for name, most in wanted.items()}
    asked = [f"{count} {name}" for name, count in left.items() if count > 0]
    if not asked:
        return "done: everything is recorded"
    if len(recent) >= _PATIENCE and not any(recent[-_PATIENCE:]):
        return f"slow down: the last {_PATIENCE} were no success; {asked[0]} to go"
    return f"to go: {' and '.join(asked)}"
