"""A reader that follows an actor's log while it is written, for forwarding its records."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from serl.errors import CorruptData
from serl.log.episode_reader import (
    PART,
    SEALED,
    EpisodeFile,
    EpisodeName,
    Message,
    episode_exists,
    episode_name,
    episode_paths,
)
from serl.log.wire import encode_record, join_parts
from serl.specs import Spec
from serl.system.files import FolderWatch
from serl.types import with_images

Losses = Callable[[EpisodeName], Sequence[bytes]]
"""A function that returns stand-ins for a damaged or missing episode's records, none if unknown."""


class Tail:
    """A reader that follows the records of one epoch while they are written, file after file.

    The ordinal of a record in its epoch is its sequence number.

    Args:
        folder: folder of the actor's episodes; need not exist yet.
        epoch: epoch to follow, that is one start of the actor.
        start: sequence number of the first record to return.
        losses: called when a sealed episode is damaged or missing.
        spec: spec of the returned records: images that are not in it are left out; None for all.
    """

    def __init__(
        self,
        folder: Path,
        epoch: int,
        start: int = 0,
        losses: Losses = lambda name: (),
        spec: Spec | None = None,
    ) -> None:
        self._folder = folder
        self._name = EpisodeName(epoch, 0)
        self._file: EpisodeFile | None = None
        self._start = start
        self._spec = spec
        self._position = 0
        self._losses = losses
        self._lost: deque[bytes] = deque()  # stand-ins, returned before other records
        self._file_start = 0  # the position at the first record of the file
        self._damaged = False  # whether the current file, an open one, is damaged
        self._awaited: EpisodeName | None = None  # absent at the last check, as all later ones
        self._watch = FolderWatch(folder)

    @property
    def position(self) -> int:
        """The sequence number of the next record that `read` returns."""
        return max(self._position, self._start)

    def read(self, limit_bytes: int) -> list[bytes]:
        """Return the next complete records, encoded, until they reach `limit_bytes`; never block.

        Data after the undamaged beginning of an open file are not returned: its actor may have
        died, and recovers the file when it starts again.

        Raises:
            CorruptData: a sealed file is damaged or missing and its content unknown; the line names
                the file.
        """
        records: list[bytes] = []
        size = 0
        while size < limit_bytes and (record := self._next()) is not None:
            self._position += 1
            if self._position > self._start:
                records.append(record if isinstance(record, bytes) else self._encode(record))
                size += len(records[-1])
        return records

    def close(self) -> None:
        """Close the file that is being followed; a second call does nothing."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _encode(self, message: Message) -> bytes:
        file = self._file
        assert file is not None  # the source of the message
        assert file.spec is not None
        images = (self._spec or file.spec).observation.images
        if file.spec.observation.images.keys() <= images.keys():
            return join_parts(file.parts(message))
        return encode_record(with_images(file.record(message), images))

    def _next(self) -> Message | bytes | None:
        """Return the next record of the file, or the stand-in for a lost one."""
        while not self._lost and (file := self._current()) is not None:
            try:
                message = self._read_file(file)
            except CorruptData as error:
                self._stand_in(error)
                continue
            if message is not None:
                return message
            if self._file is file:
                return None
        return self._lost.popleft() if self._lost else None

    def _read_file(self, file: EpisodeFile) -> Message | None:
        """Return the next record of the file; None if there is none yet, or the file was closed."""
        if not self._damaged:
            try:
                return self._next_message(file)
            except CorruptData:
                if not file.path.name.endswith(PART):
                    raise
                self._damaged = True
        if not file.path.exists():  # recovered or sealed: earlier records come again
            self.close()
            self._damaged = False
            self._start, self._position = self.position, self._file_start
        return None

    def _next_message(self, file: EpisodeFile) -> Message | None:
        following = self._next_name()
        if (message := file.next_message()) is not None:
            return message
        if not (episode_exists(self._folder, following) or self._overtaken(following)):
            return None
        # A later file exists, so this one is complete; look again for records added since.
        if (message := file.next_message()) is not None:
            return message
        if not (file.sealed or file.path.name.endswith(PART)):
            raise CorruptData(f"{file.path}: byte {file.offset}: cut")
        self.close()
        self._name = following
        return None

    def _current(self) -> EpisodeFile | None:
        """Return the file that is being followed; skip files that end before the start."""
        while self._file is None:
            file = _open(self._folder, self._name)
            if file is None:
                if not self._overtaken(self._name):
                    return None
                file = _open(self._folder, self._name)  # it may have come before the later one
            if file is None:
                path = self._name.path(self._folder, SEALED)
                self._file_start = self._position
                self._stand_in(CorruptData(f"{path}: missing, though later episodes are there"))
                return None
            if self._ends_before_start(file):
                file.close()
                self._name = self._next_name()
            else:
                self._file, self._file_start = file, self._position
        return self._file

    def _next_name(self) -> EpisodeName:
        return self._name._replace(episode=self._name.episode + 1)

    def _stand_in(self, error: CorruptData) -> None:
        """Replace an unreadable episode by stand-ins; raise the error when there are none."""
        lost = self._losses(self._name)
        if not lost:
            raise error
        self._lost.extend(lost[self._position - self._file_start :])
        self.close()
        self._name = self._next_name()

    def _overtaken(self, name: EpisodeName) -> bool:
        """Return whether there are later episodes than an absent one."""
        changed = self._watch.changed()
        if name == self._awaited and not changed:
            return False
        names = map(episode_name, episode_paths(self._folder))
        later = any(other.epoch == name.epoch and other > name for other in names)
        if not later:
            self._awaited = name
        return later

    def _ends_before_start(self, file: EpisodeFile) -> bool:
        """Return whether a sealed file ends before the start, and skip its records if so.

        The number of records comes from the file's summary; nothing else is read.
        """
        if self._position >= self._start or file.path.name.endswith(PART):
            return False
        with suppress(CorruptData):
            end = self._position + file.count()
            if end <= self._start:
                self._position = end
                return True
        return False


def _open(folder: Path, name: EpisodeName) -> EpisodeFile | None:
    """Open an episode's file under its open or sealed name; sealing renames the open one."""
    for suffix in (PART, SEALED):
        with suppress(FileNotFoundError):
            return EpisodeFile(name.path(folder, suffix))
    return None
