"""Recordings by a person: successes are kept, other episodes stored separately, none deleted."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, NamedTuple

from pydantic import Field, ValidationError

from serl.errors import CorruptData, SerlError, counted
from serl.log.episode_reader import (
    PART,
    SEALED,
    episode_name,
    episode_paths,
    read_episode,
    read_spec,
    run_name,
)
from serl.log.recovery import recover
from serl.system.files import make_folder, read_bounded, sync, write_atomic
from serl.types import Episode, FrozenModel

SESSION = "session.json"
FAILURES, UNDONE = "failures", "undone"
KEPT = "kept"
_MAX_BYTES = 4096


class RecordingSession(FrozenModel):
    """The purpose and the requested amounts of a recording folder.

    Attributes:
        purpose: "demonstrations" for successes of the task, "reward" for individually labelled
            steps.
        wanted: requested number by counted item.
    """

    purpose: Literal["demonstrations", "reward"]
    wanted: dict[str, int] = Field(min_length=1)


def write_session(folder: Path, session: RecordingSession) -> None:
    """Write the purpose of a recording into its folder."""
    write_atomic(folder / SESSION, session.model_dump_json().encode())


def read_session(folder: Path) -> RecordingSession | None:
    """Read the purpose of a recording from its folder; None if it has none.

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
    """Numbers of recorded episodes by outcome."""

    kept: int
    failures: int
    undone: int

    @property
    def total(self) -> int:
        """The number of all episodes ever recorded."""
        return sum(self)


class RecordedEpisode(NamedTuple):
    """An episode of a recording, and where it lies: `KEPT`, `FAILURES` or `UNDONE`."""

    name: str
    place: str


class Recording:
    """Sorter of a person's episodes. Its only state is the folder layout, so a crash loses nothing.

    Args:
        folder: folder of the recording; successes lie directly in it, as learners expect.
        incoming: folder in which an episode is logged while it runs.
    """

    def __init__(self, folder: Path, incoming: Path) -> None:
        self.folder, self.incoming = folder, incoming
        for each in (folder, incoming, folder / FAILURES, folder / UNDONE):
            make_folder(each)

    @property
    def counts(self) -> RecordingCounts:
        """The current numbers of episodes; a running episode is not counted."""
        return RecordingCounts(*(len(episode_paths(each)) for each in self._places))

    @property
    def recent(self) -> list[bool]:
        """Whether each episode was kept, in order of recording; undone ones are left out."""
        return [each.place == KEPT for each in self.episodes if each.place != UNDONE]

    @property
    def episodes(self) -> list[RecordedEpisode]:
        """All episodes in order of recording; a running one is none of them."""
        places = zip((KEPT, FAILURES, UNDONE), self._places, strict=True)
        found = [
            (episode_name(path), name, path)
            for name, folder in places
            for path in episode_paths(folder)
        ]
        return [RecordedEpisode(path.stem, place) for _, place, path in sorted(found)]

    @property
    def run(self) -> str:
        """The name of the run in the keys of its episodes; see `run_name`."""
        return run_name(*self._places, self.incoming)

    def next_epoch(self, now_ns: int) -> int:
        """Return an epoch above those of all existing episodes."""
        folders = (*self._places, self.incoming)
        names = [episode_name(path) for folder in folders for path in episode_paths(folder)]
        return max(now_ns, max((name.epoch for name in names), default=0) + 1)

    def recover(self) -> None:
        """Recover and sort episodes left by a crash; raises as `serl.log.recovery.recover`."""
        recover(self.incoming)
        self.sort()

    def sort(self) -> list[Episode]:
        """Move sealed episodes to the folder of their outcome and return them."""
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
        """Move the newest success to the undone episodes; return a message with the number left.

        Raises:
            SerlError: no success is kept.
        """
        kept = episode_paths(self.folder)
        if not kept:
            raise SerlError("nothing to undo: no demonstration is kept")
        _move(kept[-1], self.folder / UNDONE)
        return f"demonstration {len(kept)} is undone, {len(kept) - 1} are left"

    def judge(self, name: str, keep: bool) -> str:
        """Move a success to the undone episodes, or back; return a message with the new number.

        Raises:
            SerlError: there is no such success, or it lies there already.
        """
        place = next((each.place for each in self.episodes if each.name == name), None)
        if place not in (UNDONE, KEPT) or (place == KEPT) is keep:
            state = {KEPT: "is kept already", UNDONE: "is discarded already", None: "is not here"}
            raise SerlError(f"episode {name[:40]} {state.get(place, 'is a failure')}")
        source, target = (self.folder / UNDONE, self.folder)[:: 1 if keep else -1]
        _move(source / f"{name}{SEALED}", target)
        return f"{'kept' if keep else 'discarded'}: {counted(self.counts.kept, 'demonstration')}"

    @property
    def _places(self) -> tuple[Path, Path, Path]:
        return self.folder, self.folder / FAILURES, self.folder / UNDONE


def _move(path: Path, folder: Path) -> None:
    """Move an episode durably; names never collide, as epochs increase over all folders."""
    path.rename(folder / path.name)
    sync(folder)
    sync(path.parent)
