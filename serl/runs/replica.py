"""The learner's copy of the logs of actors on other hosts, written to disk before it acknowledges.

A copy has the same records in the same files as the original log, under `episodes/<actor>`. A
restarted learner continues in the middle of an episode.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from serl.errors import BadInput, SerlError
from serl.log.compression import Compactor
from serl.log.episode_log import LogConfig, lock_log
from serl.log.episode_reader import (
    PART,
    SEALED,
    EpisodeFile,
    EpisodeName,
    episode_name,
    episode_paths,
)
from serl.log.episode_writer import EpisodeWriter, metadata_of
from serl.log.manifest import Entry, append_entry
from serl.log.recovery import lost_records, move_to_quarantine
from serl.log.wire import END, record_parts
from serl.runs.folder import RunFolder
from serl.specs import Spec
from serl.system.files import sync
from serl.training.link import read_home
from serl.types import Arrival, LostRecord, Step, place_after

_SCRATCH = ".reopened"


class Replica:
    """Copies of the logs that are not in the learner's own folder of the run."""

    def __init__(self, folder: RunFolder, spec: Spec) -> None:
        self._folder = folder
        self._spec = spec
        self._remote: set[str] = set()
        self._copies: dict[str, _Copy] = {}

    def register(self, actor: str, home: str) -> None:
        """Register an actor before its first record, and whether it logs on another host.

        Args:
            actor: name of the actor.
            home: identity that the actor's host wrote beside its log.
        """
        if read_home(self._folder.link(actor)) != home:
            self._remote.add(actor)

    def append(self, records: Sequence[Arrival]) -> None:
        """Copy records of actors on other hosts to the disk, blocking; skip those already copied.

        Raises:
            BadInput: a record that is not the next one of its stream.
            SerlError: writing failed.
        """
        touched = set()
        try:
            for record in records:
                if (actor := record.key.actor) in self._remote:
                    if actor not in self._copies:
                        self._copies[actor] = _Copy(
                            self._folder.episodes(actor), self._spec, self._folder.config.log
                        )
                    self._copies[actor].append(record)
                    touched.add(actor)
            for actor in touched:
                self._copies[actor].sync()
        except OSError as error:
            raise SerlError(f"{self._folder.path}: cannot copy an actor's log: {error}") from error

    def close(self) -> None:
        """Close the files as they are."""
        for copy in self._copies.values():
            copy.close()


class _Copy:
    """The copy of one actor's log; all methods raise `OSError` when writing fails."""

    def __init__(self, folder: Path, spec: Spec, config: LogConfig) -> None:
        self._lock = lock_log(folder)
        self._folder = folder
        self._spec = spec
        self._compactor = Compactor(folder, config)
        self._epoch = -1
        self._next = (0, 0)  # episode, index
        self._file: EpisodeWriter | None = None

    def append(self, record: Arrival) -> None:
        """Write a record unless it was written before; an `End` seals the file."""
        key = record.key
        if key.epoch != self._epoch:
            self._continue_epoch(key.epoch)
        place = (key.episode, key.index)
        if place < self._next:
            return
        lost = isinstance(record, LostRecord)
        if place != self._next or not (lost or (key.index > 0) == (self._file is not None)):
            expected = (key.run, key.actor, self._epoch, *self._next)
            raise BadInput(f"copy of a log: expected the record {expected}, got {key}")
        if isinstance(record, LostRecord):
            self._lose(record)
            return
        if self._file is None:
            metadata = metadata_of(key, self._spec)
            self._file = EpisodeWriter(self._folder, PART, metadata, self._spec)
        self._file.write(record_parts(record), round(record.wall_s * 1e9))
        self._next = (key.episode, key.index + 1)
        if not isinstance(record, Step):
            self._seal(recovered=False)

    def sync(self) -> None:
        """Block until every record is on disk; start the compression of sealed files."""
        if self._file is not None:
            self._file.sync()
        self._compactor.step()

    def close(self) -> None:
        """Close the open file without sealing it, as its episode may continue later."""
        if self._file is not None:
            self._file.close()
        self._compactor.close()
        self._lock.close()

    def _continue_epoch(self, epoch: int) -> None:
        """Continue at the end of an epoch's copy; seal the open episodes of other epochs."""
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
        if last is not None:
            self._next = _place_after(last)
            if last.name.endswith(PART) or self._next[1] > 0:
                self._reopen(last)
        lost = [name.episode for name in lost_records(self._folder) if name.epoch == epoch]
        if lost and max(lost) >= self._next[0]:
            if self._file is not None:
                self._seal(recovered=True)
            self._next = (max(lost) + 1, 0)

    def _reopen(self, path: Path) -> None:
        """Continue the undamaged beginning of a file; a crash meanwhile leaves the file unchanged.

        The file may be sealed: records of an older epoch can still arrive.
        """
        self._compactor.close()
        self._next = _place_after(path)
        with closing(EpisodeFile(path)) as source:
            for message in source.prefix():
                assert source.spec is not None  # it comes before the first message
                if self._file is None:
                    metadata = source.metadata | {"images": "raw"}
                    self._file = EpisodeWriter(self._folder, _SCRATCH, metadata, source.spec)
                self._file.write(source.parts(message), message.time_ns)
        if self._file is None:
            path.unlink()
            return
        self._file.sync()
        part = episode_name(path).path(self._folder, PART)
        self._file.path = self._file.path.rename(part)
        if path != part:
            path.unlink()
        sync(self._folder)
        if self._next[1] == 0:
            self._seal(recovered=False)

    def _lose(self, lost: LostRecord) -> None:
        """Discard the copy of an episode lost by the original log; list it in the manifest."""
        if self._file is not None:
            self._file.close()
            move_to_quarantine(self._file.path)
            self._file = None
        if lost.last:
            name = EpisodeName(lost.key.epoch, lost.key.episode).path(self._folder, SEALED).name
            append_entry(self._folder, Entry(name, 0, "", lost.key.index + 1, False, True))
        self._next = place_after(lost)

    def _seal(self, recovered: bool) -> None:
        assert self._file is not None
        file, self._file = self._file, None
        file.seal(recovered)
        self._next = (episode_name(file.path).episode + 1, 0)


def _place_after(path: Path) -> tuple[int, int]:
    """Return episode and index of the record that follows those of a file."""
    episode = episode_name(path).episode
    with closing(EpisodeFile(path)) as file:
        kinds = [message.kind for message in file.prefix()]
    return (episode + 1, 0) if kinds[-1:] == [END] else (episode, len(kinds))
