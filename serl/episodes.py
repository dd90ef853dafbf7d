"""Reading episode files: one at a time, all of a folder, or along while they are written.

The format is MCAP as `serl.recording` writes it: one uncompressed chunk for each record, holding
one JSON message (channel 1 for a step, 2 for an end) and then one message for each image.
"""

from __future__ import annotations

import os
import re
import struct
import zlib
from collections.abc import Iterable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import NamedTuple

from pydantic import ValidationError

from serl.errors import BadInput, CorruptData, SpecMismatch
from serl.fields import short
from serl.mcap import BLOCK, CHUNK, FOOTER, MAGIC, MESSAGE, U32, Opcode
from serl.specs import Spec
from serl.types import End, Episode, Record, Step
from serl.wire import END, MAX_RECORD_BYTES, STEP, Parts, decode_record, join_parts

FORMAT = "1"
FIRST_IMAGE = 3  # channel
PART, SEALED = ".part.mcap", ".mcap"

_NAME = re.compile(r"(\d{1,20})-(\d{6,9})(\.part)?\.mcap")
_MAX_BLOCK_BYTES = MAX_RECORD_BYTES + (1 << 20)
_DATA_BLOCKS = {
    Opcode.HEADER,
    Opcode.METADATA,
    Opcode.SCHEMA,
    Opcode.CHANNEL,
    Opcode.CHUNK,
    Opcode.MESSAGE_INDEX,
    Opcode.DATA_END,
}
_METADATA_FIELDS = {"format", "run", "actor", "epoch", "episode", "spec"}


class EpisodeName(NamedTuple):
    """Where an episode lies in an actor's stream; the name of its file."""

    epoch: int
    episode: int

    def path(self, folder: Path, suffix: str) -> Path:
        """The file in `folder`."""
        return folder / f"{self.epoch}-{self.episode:06d}{suffix}"


class Message(NamedTuple):
    """A stored record and its time in nanoseconds since 1970."""

    parts: Parts
    time_ns: int


class EpisodeFile:
    """Reads the records of one file in order, also while it is being written.

    Attributes:
        metadata: run, actor, epoch, episode, spec, format; None until they are written.
        spec: what the records fit; None until it is written.
        sealed: all records were read, and the file says that no more will come.
        offset: where the next unread byte is.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.metadata: dict[str, str] | None = None
        self.spec: Spec | None = None
        self.sealed = False
        self.offset = 0
        self._crc = 0
        self._file = path.open("rb", buffering=0)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def next_message(self) -> Message | None:
        """The next record, or None when no further one is complete.

        Raises:
            CorruptData: damaged or foreign; the line names the file and the byte.
        """
        if self.offset == 0 and not self._read_magic():
            return None
        while not self.sealed:
            start = self.offset
            block = self._read_block()
            if block is None:
                return None
            opcode, body = block
            try:
                if opcode == Opcode.CHUNK:
                    if self.metadata is None:
                        raise CorruptData("records before the metadata")
                    return _read_chunk(body)
                if opcode == Opcode.METADATA:
                    self.spec = _spec_of(metadata := _read_metadata(body), self.path)
                    self.metadata = metadata
                elif opcode == Opcode.DATA_END:
                    if U32.unpack(body)[0] != self._crc:
                        raise CorruptData("the checksum of the data does not match")
                    self.sealed = True
            except (CorruptData, struct.error, UnicodeDecodeError) as error:
                raise self._corrupt(start, str(error)) from error
        return None

    def prefix(self) -> Iterator[Message]:
        """The records up to the first damage or the end."""
        with suppress(CorruptData):
            while (message := self.next_message()) is not None:
                yield message

    def whole(self) -> Iterator[Message]:
        """The records of a sealed file.

        Raises:
            CorruptData: damaged, foreign or cut, found at the latest after the last record.
        """
        while (message := self.next_message()) is not None:
            yield message
        if not self.sealed:
            raise self._corrupt(self.offset, "cut")
        self._check_summary()

    def _read_magic(self) -> bool:
        magic = os.pread(self._file.fileno(), len(MAGIC), 0)
        if not MAGIC.startswith(magic):
            raise self._corrupt(0, "not an MCAP file")
        if magic == MAGIC:
            self.offset = len(magic)
            self._crc = zlib.crc32(magic)
        return magic == MAGIC

    def _read_block(self) -> tuple[int, bytes] | None:
        """The MCAP record at the offset, or None while it is incomplete."""
        descriptor = self._file.fileno()
        head = os.pread(descriptor, BLOCK.size, self.offset)
        if len(head) < BLOCK.size:
            return None
        opcode, length = BLOCK.unpack(head)
        if opcode not in _DATA_BLOCKS or length > _MAX_BLOCK_BYTES:
            raise self._corrupt(self.offset, f"unexpected block {opcode} of {length} bytes")
        start = self.offset + BLOCK.size
        if os.fstat(descriptor).st_size < start + length:
            return None
        body = os.pread(descriptor, length, start)
        if len(body) < length:
            return None
        if opcode != Opcode.DATA_END:
            self._crc = zlib.crc32(body, zlib.crc32(head, self._crc))
        self.offset = start + length
        return opcode, body

    def _check_summary(self) -> None:
        descriptor = self._file.fileno()
        size = os.fstat(descriptor).st_size - self.offset
        if size > _MAX_BLOCK_BYTES:
            raise self._corrupt(self.offset, f"a summary of {size} bytes")
        tail = os.pread(descriptor, size, self.offset)
        footer = len(tail) - len(MAGIC) - FOOTER.size
        if footer < BLOCK.size or not tail.endswith(MAGIC):
            raise self._corrupt(self.offset + len(tail), "cut inside the summary")
        crc = FOOTER.unpack_from(tail, footer)[2]
        if zlib.crc32(tail[: footer + FOOTER.size - U32.size]) != crc:
            raise self._corrupt(self.offset, "the checksum of the summary does not match")

    def _corrupt(self, offset: int, cause: str) -> CorruptData:
        return CorruptData(f"{self.path}: byte {offset}: {cause}")


def _read_metadata(body: bytes) -> dict[str, str]:
    name, rest = _read_text(memoryview(body))
    (length,) = U32.unpack_from(rest)
    rest = rest[U32.size :]
    if len(rest) != length:
        raise CorruptData("metadata: wrong length")
    metadata = {}
    while rest:
        key, rest = _read_text(rest)
        metadata[key], rest = _read_text(rest)
    if name != "serl" or metadata.keys() != _METADATA_FIELDS:
        raise CorruptData(f"expected metadata 'serl' with {sorted(_METADATA_FIELDS)}")
    if metadata["format"] != FORMAT:
        raise CorruptData(f"format {short(metadata['format'])}, this version reads {FORMAT!r}")
    return metadata


def _spec_of(metadata: dict[str, str], path: Path) -> Spec:
    """The spec in the metadata, once they are known to belong to this file."""
    name = episode_name(path)
    if (metadata["epoch"], metadata["episode"]) != (str(name.epoch), str(name.episode)):
        raise CorruptData(f"holds episode {short(metadata['episode'])}, named as another")
    try:
        return Spec.model_validate_json(metadata["spec"])
    except ValidationError as error:
        raise CorruptData("the spec cannot be read") from error


def _read_text(data: memoryview) -> tuple[str, memoryview]:
    (length,) = U32.unpack_from(data)
    text = bytes(data[U32.size : U32.size + length])
    if len(text) != length:
        raise CorruptData("a text is cut")
    return text.decode(), data[U32.size + length :]


def _read_chunk(body: bytes) -> Message:
    """One record out of one chunk."""
    _, _, size, crc, compression, stored = CHUNK.unpack_from(body)
    data = memoryview(body)[CHUNK.size :]
    if compression != 0 or not size == stored == len(data):
        raise CorruptData("a chunk that serl did not write")
    if zlib.crc32(data) != crc:
        raise CorruptData("the checksum of the chunk does not match")
    channels, payloads, time_ns = [], [], 0
    while data:
        opcode, length = BLOCK.unpack_from(data)
        message, data = data[BLOCK.size : BLOCK.size + length], data[BLOCK.size + length :]
        channel, _, time_ns, _ = MESSAGE.unpack_from(message)
        if opcode != Opcode.MESSAGE:
            raise CorruptData(f"unexpected block {opcode} in a chunk")
        channels.append(channel)
        payloads.append(bytes(message[MESSAGE.size :]))
    images = list(range(FIRST_IMAGE, FIRST_IMAGE + len(channels) - 1))
    if channels[:1] not in ([STEP], [END]) or channels[1:] != images:
        raise CorruptData(f"a chunk with the channels {short(channels)}")
    return Message(Parts(channels[0], payloads[0], tuple(payloads[1:])), time_ns)


def episode_name(path: Path) -> EpisodeName:
    """Epoch and episode of a file; raises `BadInput` when it is not named like one."""
    match = _NAME.fullmatch(path.name)
    if match is None:
        raise BadInput(f"{path}: expected an episode file, <epoch>-<episode>.mcap")
    return EpisodeName(int(match[1]), int(match[2]))


def episode_paths(folder: Path) -> list[Path]:
    """Episode files of one actor, sealed and open ones, by epoch and episode."""
    paths = [path for path in folder.glob("*.mcap") if _NAME.fullmatch(path.name)]
    # A crash inside `recover` can leave both forms of one episode: the sealed one stands.
    paths.sort(key=lambda path: path.name.endswith(PART), reverse=True)
    return [path for _, path in sorted({episode_name(path): path for path in paths}.items())]


def read_episode(path: Path, spec: Spec) -> Episode:
    """All steps of one file. An open file (`.part.mcap`) gives its undamaged beginning.

    Raises:
        CorruptData: a sealed file is damaged; the line names the file and the byte.
        SpecMismatch: recorded with another spec; the line says what differs.
    """
    name = episode_name(path)
    with closing(_open(path)) as file:
        stored = list(file.prefix() if file.path.name.endswith(PART) else file.whole())
        if file.spec is None:
            return Episode((), None)
        if difference := file.spec.difference(spec):
            raise SpecMismatch(f"{path}: recorded with another spec: {difference}")
    try:
        records = [decode_record(join_parts(message.parts), spec) for message in stored]
    except (CorruptData, SpecMismatch) as error:
        raise type(error)(f"{path}: {error}") from error
    return _assemble(records, name, path)


def read_records(paths: Path | Iterable[Path], spec: Spec) -> Iterator[Record]:
    """The records of several files, or of a folder; one episode at a time is held in memory.

    Raises:
        CorruptData: a sealed file is damaged; none of its records is yielded.
        SpecMismatch: recorded with another spec; the line says what differs.
    """
    for path in episode_paths(paths) if isinstance(paths, Path) else paths:
        episode = read_episode(path, spec)
        yield from episode.steps
        if episode.end is not None:
            yield episode.end


class Tail:
    """Follows the records of one epoch while they are written, file after file.

    The ordinal of a record in its epoch is its sequence number.

    Args:
        folder: the actor's episodes; need not exist yet.
        epoch: the actor's start that is followed.
        start: the sequence number of the first record to give.
    """

    def __init__(self, folder: Path, epoch: int, start: int = 0) -> None:
        self._folder = folder
        self._name = EpisodeName(epoch, 0)
        self._file: EpisodeFile | None = None
        self._start = start
        self._position = 0

    @property
    def position(self) -> int:
        """The sequence number of the next record that `read` gives."""
        return max(self._position, self._start)

    def read(self, limit_bytes: int) -> list[bytes]:
        """The next complete records, encoded; stops once they reach `limit_bytes`.

        Raises:
            CorruptData: damaged; the line names the file and the byte.
        """
        records: list[bytes] = []
        size = 0
        while size < limit_bytes and (message := self._next_message()) is not None:
            self._position += 1
            if self._position > self._start:
                records.append(join_parts(message.parts))
                size += len(records[-1])
        return records

    def close(self) -> None:
        """Close the file that is being followed."""
        if self._file is not None:
            self._file.close()

    def _next_message(self) -> Message | None:
        if self._file is None:
            self._file = self._find(self._name)
        while self._file is not None:
            message = self._file.next_message()
            if message is not None:
                return message
            following_name = self._name._replace(episode=self._name.episode + 1)
            following = self._find(following_name)
            if following is None:
                return None
            # The next file exists, so this one is complete; look once more for what came since.
            message = self._file.next_message()
            if message is not None:
                following.close()
                return message
            self._file.close()
            self._file, self._name = following, following_name
        return None

    def _find(self, name: EpisodeName) -> EpisodeFile | None:
        """Open a file under whichever name it has now; sealing renames it from the first."""
        for suffix in (PART, SEALED):
            with suppress(FileNotFoundError):
                return EpisodeFile(name.path(self._folder, suffix))
        return None


def _open(path: Path) -> EpisodeFile:
    """Open a file, under its final name if it was sealed since it was listed."""
    try:
        with suppress(FileNotFoundError):
            return EpisodeFile(path)
        return EpisodeFile(episode_name(path).path(path.parent, SEALED))
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}") from error


def _assemble(records: list[Record], name: EpisodeName, path: Path) -> Episode:
    """Steps and the end, after a check that they are the ones that belong here."""
    end = records[-1] if records and isinstance(records[-1], End) else None
    steps = records[:-1] if end is not None else records
    for index, record in enumerate(records):
        found = record.key
        if (found.epoch, found.episode, found.index) != (*name, index):
            raise CorruptData(f"{path}: expected record {index} of the episode, got {found}")
    if not all(isinstance(step, Step) for step in steps):
        raise CorruptData(f"{path}: an end before the last record")
    return Episode(tuple(step for step in steps if isinstance(step, Step)), end)
