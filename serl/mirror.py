"""The learner's copy of the logs of actors on other hosts, on its disk before it acknowledges.

A copy looks like the log that it is made of: the same records in the same files, under
`episodes/<actor>`. A learner that starts again goes on inside an episode.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from serl.episode_writer import EpisodeWriter, metadata_of
from serl.episodes import PART, EpisodeFile, episode_name, episode_paths
from serl.errors import BadInput, SerlError
from serl.files import sync_folder
from serl.link import HOME
from serl.recording import lock_log
from serl.run_folder import RunFolder
from serl.specs import Spec
from serl.types import Record, Step
from serl.wire import END, record_parts

_SCRATCH = ".reopened"


class Mirror:
    """Copies of the logs that are not in the learner's own folder of the run.

    Args:
        folder: the run.
        spec: what the records fit.
    """

    def __init__(self, folder: RunFolder, spec: Spec) -> None:
        self._folder = folder
        self._spec = spec
        self._far: set[str] = set()
        self._copies: dict[str, _Copy] = {}

    def meet(self, actor: str, home: str) -> None:
        """Called before an actor's first record.

        Args:
            actor: its name.
            home: what its host wrote beside its log.
        """
        file = self._folder.link(actor) / HOME
        if not file.exists() or file.read_text() != home:
            self._far.add(actor)

    def append(self, records: Sequence[Record]) -> None:
        """Copy what came from another host; on the disk when this returns. Knows what it has.

        Raises:
            BadInput: a record that is not the next one of its stream.
            SerlError: the disk refused.
        """
        touched = set()
        try:
            for record in records:
                if (actor := record.key.actor) in self._far:
                    if actor not in self._copies:
                        self._copies[actor] = _Copy(self._folder.episodes(actor), self._spec)
                    self._copies[actor].append(record)
                    touched.add(actor)
            for actor in touched:
                self._copies[actor].sync()
        except OSError as error:
            raise SerlError(f"{self._folder.path}: no copy of an actor's log: {error}") from error

    def close(self) -> None:
        """Let go of the files as they are."""
        for copy in self._copies.values():
            copy.close()


class _Copy:
    """The log of one actor; all methods raise `OSError` when the disk refuses."""

    def __init__(self, folder: Path, spec: Spec) -> None:
        self._lock = lock_log(folder)
        self._folder = folder
        self._spec = spec
        self._epoch = -1
        self._next = (0, 0)  # episode, index
        self._file: EpisodeWriter | None = None

    def append(self, record: Record) -> None:
        """Write the record unless it is there; an `End` seals the file."""
        key = record.key
        if key.epoch != self._epoch:
            self._turn_to(key.epoch)
        place = (key.episode, key.index)
        if place < self._next:
            return
        if place != self._next or (key.index > 0) != (self._file is not None):
            expected = (key.run, key.actor, self._epoch, *self._next)
            raise BadInput(f"copy of a log: expected the record {expected}, got {key}")
        if self._file is None:
            metadata = metadata_of(key, self._spec)
            self._file = EpisodeWriter(self._folder, PART, metadata, self._spec)
        self._file.write(record_parts(record), round(record.wall_s * 1e9))
        self._next = (key.episode, key.index + 1)
        if not isinstance(record, Step):
            self._seal(recovered=False)

    def sync(self) -> None:
        """Wait until the disk has every record."""
        if self._file is not None:
            self._file.sync()

    def close(self) -> None:
        """Let go of the open file, whose episode may go on some day."""
        if self._file is not None:
            self._file.close()
        self._lock.close()

    def _turn_to(self, epoch: int) -> None:
        """Go on where the copy of an epoch ends; an episode that another left open is over."""
        if self._file is not None:
            self._seal(recovered=True)
        last: Path | None = None
        for path in episode_paths(self._folder):
            if episode_name(path).epoch == epoch:
                last = path
            elif path.name.endswith(PART):
                self._reopen(path)
                if self._file is not None:
                    self._seal(recovered=True)
        self._epoch, self._next = epoch, (0, 0)
        if last is not None and last.name.endswith(PART):
            self._reopen(last)
        elif last is not None:
            self._next = _place_after(last)

    def _reopen(self, part: Path) -> None:
        """Continue the undamaged beginning of a file; a crash on the way leaves the file."""
        self._next = _place_after(part)
        with closing(EpisodeFile(part)) as source:
            for message in source.prefix():
                assert source.spec is not None  # it comes before the first message
                if self._file is None:
                    metadata = source.metadata
                    self._file = EpisodeWriter(self._folder, _SCRATCH, metadata, source.spec)
                self._file.copy(message)
        if self._file is None:
            part.unlink()
            return
        self._file.sync()
        self._file.path = self._file.path.rename(part)
        sync_folder(self._folder)
        if self._next[1] == 0:
            self._seal(recovered=False)

    def _seal(self, recovered: bool) -> None:
        assert self._file is not None
        file, self._file = self._file, None
        file.seal(recovered)
        self._next = (episode_name(file.path).episode + 1, 0)


def _place_after(path: Path) -> tuple[int, int]:
    """Episode and index of the record that follows those of a file."""
    episode = episode_name(path).episode
    with closing(EpisodeFile(path)) as file:
        kinds = [message.kind for message in file.prefix()]
    return (episode + 1, 0) if kinds[-1:] == [END] else (episode, len(kinds))
