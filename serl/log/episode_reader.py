"""Readers of episode files: one file, or all of a folder. `serl.log.tail` follows a growing one.

The format is MCAP as `serl.log.episode_writer` writes it: one uncompressed chunk for each record,
holding one message with the record (channel 1 for a step, 2 for an end), one for each image, and
copies of some values as standard ROS 2 messages. In format 2, without the copies, the first message
is the JSON text of the record alone.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, suppress
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

from mcap.opcode import Opcode
from mcap.records import Metadata
from pydantic import ValidationError

from serl.errors import BadInput, CorruptData, SpecMismatch
from serl.log.images import decode
from serl.log.mcap_reader import MAX_DECLARATIONS, Block, McapReader, parse, read_messages
from serl.log.ros_messages import ENCODINGS, StepMessages
from serl.log.wire import END, MAX_RECORD_BYTES, STEP, Parts, decode_record, join_parts
from serl.specs import Spec
from serl.system.json_fields import dump_object, short
from serl.types import End, Episode, Key, Record, Step, with_images

FORMAT, TEXT_FORMAT = "3", "2"
FIRST_IMAGE = 3
"""Number of the first MCAP channel with images."""
PART, SEALED = ".part.mcap", ".mcap"

_NAME = re.compile(r"(\d{1,20})-(\d{6,9})(\.part)?\.mcap")
_MAX_BLOCK_BYTES = MAX_RECORD_BYTES + (1 << 20)
_MAX_NUMBERS = MAX_RECORD_BYTES // 64  # a number is text, float32, float64 and a joint's name
_METADATA_FIELDS = {"format", "run", "actor", "epoch", "episode", "images", "spec", "crc32"}


class EpisodeName(NamedTuple):
    """The position of an episode in an actor's stream, which names its file."""

    epoch: int
    episode: int

    def path(self, folder: Path, suffix: str) -> Path:
        """Return the path of the episode's file in `folder`."""
        return folder / f"{self.epoch}-{self.episode:06d}{suffix}"


class Message(NamedTuple):
    """A stored record: its kind, its JSON text, its images in their encoding.

    `time_ns` counts from 1970; `offset` is the byte of the file at which the record starts.
    """

    kind: int
    text: bytes
    images: tuple[memoryview, ...]
    time_ns: int
    offset: int


def metadata_crc(metadata: Mapping[str, str]) -> str:
    """Return the checksum of the metadata, which have no other one until the file is sealed."""
    return f"{crc32(dump_object(metadata)):08x}"


class EpisodeFile:
    """A reader of the records of one file in order, also while it is being written.

    Args:
        path: episode file.
        checksum: whether to check every byte, not only those of the records.

    Attributes:
        metadata: run, actor, epoch, episode, images, spec, format; empty until they are written.
        spec: spec that the records fit; None until it is written.
        messages: messages of its records; None until the spec is known, and in format 2.
    """

    def __init__(self, path: Path, checksum: bool = False) -> None:
        self.path = path
        self.metadata: dict[str, str] = {}
        self.spec: Spec | None = None
        self.messages: StepMessages | None = None
        self._reader = McapReader(path, _MAX_BLOCK_BYTES, checksum)
        self._count = 0
        self._declarations = 0

    def close(self) -> None:
        """Close the file."""
        self._reader.close()

    @property
    def sealed(self) -> bool:
        """Whether all records were read and the file is closed with an end marker."""
        return self._reader.ended

    @property
    def offset(self) -> int:
        """The position of the next unread byte."""
        return self._reader.offset

    def key(self, index: int) -> Key:
        """Return the key of the record `index` of this file, once its metadata were read."""
        name, metadata = episode_name(self.path), self.metadata
        return Key(metadata["run"], metadata["actor"], name.epoch, name.episode, index)

    def next_message(self) -> Message | None:
        """Return the next record, or None when no further one is complete.

        Raises:
            CorruptData: the file is damaged or foreign; the line names the file and the byte.
        """
        while (block := self._reader.next_block()) is not None:
            try:
                if block.opcode == Opcode.CHUNK:
                    return self._message(block)
                self._take_metadata(block.body)
            except CorruptData as error:
                raise self._reader.corrupt(block.start, str(error)) from error
        return None

    def parts(self, message: Message) -> Parts:
        """Return the record of a message of this file, with its images decoded.

        Raises:
            CorruptData: an image is damaged, or not of the declared shape.
        """
        assert self.spec is not None  # there was a message
        images = sorted(self.spec.observation.images.items())
        try:
            if len(message.images) != len(images):
                raise CorruptData(f"{len(message.images)} images, expected {len(images)}")
            pixels = tuple(
                decode(stored, self._encoding, name, image.shape)
                for (name, image), stored in zip(images, message.images, strict=True)
            )
        except CorruptData as error:
            raise self._reader.corrupt(message.offset, str(error)) from error
        return Parts(message.kind, message.text, pixels)

    def record(self, message: Message) -> Record:
        """Decode the record of a message of this file; raise `CorruptData` or `SpecMismatch`."""
        data = join_parts(self.parts(message))
        assert self.spec is not None
        try:
            return decode_record(data, self.spec)
        except (CorruptData, SpecMismatch) as error:
            raise type(error)(f"{self.path}: byte {message.offset}: {error}") from error

    def prefix(self) -> Iterator[Message]:
        """Yield the records up to the first damage or the end."""
        with suppress(CorruptData):
            while (message := self.next_message()) is not None:
                yield message

    def whole(self) -> Iterator[Message]:
        """Yield the records of a sealed file.

        Raises:
            CorruptData: the file is damaged, foreign or truncated, detected at the latest after the
                last record.
        """
        while (message := self.next_message()) is not None:
            yield message
        if not self.sealed:
            raise self._reader.corrupt(self.offset, "cut")
        if (counted := self.count()) != self._count:
            raise self._reader.corrupt(self.offset, f"{self._count} records, expected {counted}")

    def count(self) -> int:
        """Return the number of records of a sealed file, from its summary alone.

        Raises:
            CorruptData: the file is truncated, or its summary is damaged.
        """
        counts = self._reader.summary_counts()
        return counts.get(STEP, 0) + counts.get(END, 0)

    def checked_data(self, max_bytes: int) -> bytes | None:
        """Return all bytes of a sealed file before its summary, as `McapReader.checked_data`."""
        return self._reader.checked_data(max_bytes)

    def _message(self, block: Block) -> Message:
        """Return the record in a chunk; raise `CorruptData` if one before it is missing."""
        if self.spec is None:
            raise CorruptData("records before the metadata")
        chunk = read_messages(block.body)
        self._declarations += chunk.declarations
        if self._declarations > MAX_DECLARATIONS:
            raise CorruptData(f"more than {MAX_DECLARATIONS} schemas and channels")
        others = list(range(FIRST_IMAGE, FIRST_IMAGE + len(chunk.channels) - 1))
        if chunk.channels[:1] not in ([STEP], [END]) or chunk.channels[1:] != others:
            raise CorruptData(f"a chunk with the channels {short(chunk.channels)}")
        if chunk.sequence != self._count:
            raise CorruptData(f"expected record {self._count}, found {chunk.sequence}")
        self._count += 1
        kind, (first, *stored) = chunk.channels[0], chunk.data
        if self.messages is not None:
            first = self.messages.text(kind, first)
            stored = stored[: len(self.spec.observation.images)]
        return Message(kind, bytes(first), tuple(stored), chunk.time_ns, block.start)

    def _take_metadata(self, body: memoryview) -> None:
        """Keep the metadata once they are known to belong to this file."""
        block = parse(Metadata, body)
        metadata = block.metadata
        if block.name != "serl" or metadata.keys() != _METADATA_FIELDS:
            raise CorruptData(f"expected metadata 'serl' with {sorted(_METADATA_FIELDS)}")
        if metadata["format"] not in (FORMAT, TEXT_FORMAT):
            found = short(metadata["format"])
            raise CorruptData(f"format {found}, this version reads {FORMAT!r}")
        if metadata.pop("crc32") != metadata_crc(metadata):
            raise CorruptData("the checksum of the metadata does not match")
        place = episode_name(self.path)
        if (metadata["epoch"], metadata["episode"]) != (str(place.epoch), str(place.episode)):
            found = short(metadata["episode"])
            raise CorruptData(f"holds episode {found}, named as another")
        if metadata["images"] not in ENCODINGS:
            raise CorruptData(f"images in an unknown encoding: {short(metadata['images'])}")
        self.spec, messages = _spec(metadata["spec"])
        self.messages = messages if metadata["format"] == FORMAT else None
        self.metadata = metadata
        self._encoding = ENCODINGS[metadata["images"]]


@lru_cache(maxsize=8)
def _spec(text: str) -> tuple[Spec, StepMessages]:
    """Return the spec in a file, and the messages of its records; episodes of a run share both.

    Raises:
        CorruptData: it cannot be read, or its records do not fit their bounds.
    """
    try:
        spec = Spec.model_validate_json(text)
    except ValidationError as error:
        raise CorruptData("the spec cannot be read") from error
    if len(spec.action.shape) != 1:
        raise CorruptData(f"an action of shape {list(spec.action.shape)}, expected one axis")
    shapes = [array.shape for array in (*spec.observation.state.values(), spec.action, spec.action)]
    if (numbers := sum(map(prod, shapes))) > _MAX_NUMBERS:
        raise CorruptData(f"a spec of {numbers} numbers, allowed {_MAX_NUMBERS}")
    size = sum(prod(image.shape) for image in spec.observation.images.values())
    if size > MAX_RECORD_BYTES:
        raise CorruptData(f"a spec with images of {size} bytes, allowed {MAX_RECORD_BYTES}")
    return spec, StepMessages(spec)


def episode_name(path: Path) -> EpisodeName:
    """Return epoch and episode of a file; raise `BadInput` if its name is not an episode's."""
    match = _NAME.fullmatch(path.name)
    if match is None:
        raise BadInput(f"{path}: expected an episode file, <epoch>-<episode>.mcap")
    return EpisodeName(int(match[1]), int(match[2]))


def episode_exists(folder: Path, name: EpisodeName) -> bool:
    """Return whether an episode has a file; the open one is looked for first, it may be sealed."""
    return any(name.path(folder, suffix).exists() for suffix in (PART, SEALED))


def episode_paths(folder: Path) -> list[Path]:
    """Return the episode files of one actor, sealed and open ones, by epoch and episode."""
    paths = [path for path in folder.glob("*.mcap") if _NAME.fullmatch(path.name)]
    # A crash inside `recover` can leave both forms of one episode: the sealed one is valid.
    paths.sort(key=lambda path: path.name.endswith(PART), reverse=True)
    return [path for _, path in sorted({episode_name(path): path for path in paths}.items())]


def next_epoch(folder: Path, now_ns: Callable[[], int] = time.time_ns) -> int:
    """Return an epoch above all epochs in the folder, even if the clock was set back."""
    newest = max((episode_name(path).epoch for path in episode_paths(folder)), default=0)
    return max(now_ns(), newest + 1)


def read_episode(path: Path, spec: Spec) -> Episode:
    """Read all steps of one file; for an open file (`.part.mcap`), its undamaged beginning.

    Images that are not in the spec, such as those for a reward model alone, are left out.

    Raises:
        CorruptData: a sealed file is damaged; the line names the file and the byte.
        SpecMismatch: the file was recorded with another spec; the line names the difference.
    """
    with closing(open_episode(path)) as file:
        stored = list(file.prefix() if file.path.name.endswith(PART) else file.whole())
        if file.spec is None:
            return Episode((), None)
        images = [name for name in file.spec.observation.images if name in spec.observation.images]
        if difference := file.spec.with_images(images).difference(spec):
            raise SpecMismatch(f"{path}: recorded != expected: {difference}")
        records = [with_images(file.record(message), images) for message in stored]
        return _assemble(records, file)


def read_spec(path: Path) -> Spec | None:
    """Read the spec of a file's records; None when an open file does not contain it yet.

    Raises:
        CorruptData: a sealed file is damaged; the line names the file and the byte.
    """
    with closing(open_episode(path)) as file:
        messages = file.prefix() if file.path.name.endswith(PART) else file.whole()
        next(messages, None)
        return file.spec


def run_name(*folders: Path) -> str:
    """Return the run's name in the episodes of folders; without any, the name of the first folder.

    A folder that was renamed keeps the name of its run, which is a part of each record's key.

    Raises:
        CorruptData: a sealed file is damaged; the line names the file and the byte.
    """
    for path in (path for folder in folders for path in episode_paths(folder)):
        with closing(open_episode(path)) as file:
            if not path.name.endswith(PART) and file.next_message() is not None:
                return file.metadata["run"]
    return folders[0].resolve().name


def count_records(path: Path) -> int:
    """Return the number of records in a file; for a sealed file, from its summary alone.

    Raises:
        CorruptData: the summary of a sealed file is damaged; the line names the file.
    """
    with closing(open_episode(path)) as file:
        if file.path.name.endswith(PART):
            return sum(1 for _ in file.prefix())
        return file.count()


def read_records(paths: Path | Iterable[Path], spec: Spec) -> Iterator[Record]:
    """Yield the records of several files, or of a folder; one episode at a time is in memory.

    Raises:
        CorruptData: a sealed file is damaged; none of its records is yielded.
        SpecMismatch: a file was recorded with another spec; the line names the difference.
    """
    for path in episode_paths(paths) if isinstance(paths, Path) else paths:
        episode = read_episode(path, spec)
        yield from episode.steps
        if episode.end is not None:
            yield episode.end


def open_episode(path: Path) -> EpisodeFile:
    """Open an episode file, under its final name if it was sealed since it was listed."""
    try:
        with suppress(FileNotFoundError):
            return EpisodeFile(path, checksum=not path.name.endswith(PART))
        return EpisodeFile(episode_name(path).path(path.parent, SEALED), checksum=True)
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}") from error


def _assemble(records: list[Record], file: EpisodeFile) -> Episode:
    """Return the episode of these records, after a check of their keys and order."""
    for index, record in enumerate(records):
        if record.key != (expected := file.key(index)):
            raise CorruptData(f"{file.path}: expected {expected}, got {record.key}")
    end = records[-1] if records and isinstance(records[-1], End) else None
    steps = tuple(record for record in records if isinstance(record, Step))
    if len(steps) + (end is not None) < len(records):
        raise CorruptData(f"{file.path}: an end before the last record")
    return Episode(steps, end)
