"""A recording that a person makes: successes are kept, all else lies apart, nothing is deleted."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from serl.errors import CorruptData, SerlError
from serl.log.episode_reader import (
    PART,
    episode_name,
    episode_paths,
    read_episode,
    read_spec,
)
from serl.log.recovery import recover
from serl.system.files import make_folder, read_bounded, sync_folder, write_atomic
from serl.types import Episode

SESSION = "session.json"
FAILURES, UNDONE = "failures", "undone"
_MAX_BYTES = 4096


class RecordingSession(BaseModel):
    """What a person is asked to record into a folder.

    Attributes:
        purpose: successes of the task, or steps that are marked one by one.
        wanted: how many, by what is counted.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    purpose: Literal["demonstrations", "reward"]
    wanted: dict[str, int] = Field(min_length=1)


def write_session(folder: Path, session: RecordingSession) -> None:
    """Say in the folder what it is for."""
    write_atomic(folder / SESSION, session.model_dump_json().encode())


def read_session(folder: Path) -> RecordingSession | None:
    """What the folder is for; None where no person records.

    Raises:
        CorruptData: the file is damaged.
    """
    path = folder / SESSION
    if not path.exists():
        return None
    try:
        return RecordingSession.model_validate_json(read_bounded(path, _MAX_BYTES))
    except ValidationError as error:
        raise CorruptData(f"{path}: {error.errors()[0]['msg']}") from error


class RecordingCounts(NamedTuple):
    """How many episodes there are."""

    kept: int
    failures: int
    undone: int

    @property
    def total(self) -> int:
        """All that were ever recorded."""
        return sum(self)


class Recording:
    """Sorts what a person records. What it knows is what lies where, so that a crash costs nothing.

    Args:
        folder: of the recording; successes lie in it, as whoever learns from it expects.
        incoming: where an episode is logged while it runs.
    """

    def __init__(self, folder: Path, incoming: Path) -> None:
        self.folder, self.incoming = folder, incoming
        for each in (folder, incoming, folder / FAILURES, folder / UNDONE):
            make_folder(each)

    @property
    def counts(self) -> RecordingCounts:
        """As of now; an episode that runs is in none."""
        return RecordingCounts(*(len(episode_paths(each)) for each in self._places))

    @property
    def recent(self) -> list[bool]:
        """Of all that was not undone, in its order: whether it was kept."""
        kept, failed, _ = (episode_paths(each) for each in self._places)
        named = [(episode_name(path), True) for path in kept]
        return [good for _, good in sorted(named + [(episode_name(p), False) for p in failed])]

    def next_epoch(self, now_ns: int) -> int:
        """Above all that there are episodes of."""
        folders = (*self._places, self.incoming)
        names = [episode_name(path) for folder in folders for path in episode_paths(folder)]
        return max(now_ns, max((name.epoch for name in names), default=0) + 1)

    def recover(self) -> None:
        """Sort what a crash left behind; raises as `serl.log.recovery.recover`."""
        recover(self.incoming)
        self.sort()

    def sort(self) -> list[Episode]:
        """Put sealed episodes where they belong; returns them."""
        sorted_ = []
        for path in episode_paths(self.incoming):
            spec = read_spec(path)
            if path.name.endswith(PART) or spec is None:
                continue
            episode = read_episode(path, spec)
            _move(path, self.folder if episode.success else self.folder / FAILURES)
            sorted_.append(episode)
        return sorted_

    def undo(self) -> str:
        """Put the newest success aside; says in words what is left.

        Raises:
            SerlError: there is none.
        """
        kept = episode_paths(self.folder)
        if not kept:
            raise SerlError("nothing to undo: no demonstration is kept")
        _move(kept[-1], self.folder / UNDONE)
        return f"demonstration {len(kept)} is undone, {len(kept) - 1} are left"

    @property
    def _places(self) -> tuple[Path, Path, Path]:
        return self.folder, self.folder / FAILURES, self.folder / UNDONE


def _move(path: Path, folder: Path) -> None:
    """Never onto another one: epochs grow over all places."""
    path.rename(folder / path.name)
    sync_folder(folder)
    sync_folder(path.parent)
