"""The writer of one episode file: record by record, then the seal, which makes the file final."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from mcap.writer import CompressionType, Writer

from serl.log.episode_reader import FIRST_IMAGE, FORMAT, SEALED, EpisodeName, Message, metadata_crc
from serl.log.manifest import Entry, append_entry
from serl.log.ros_messages import ENCODINGS, StepMessages, image_head, image_schema
from serl.log.wire import END, STEP, Parts
from serl.specs import Spec
from serl.system.files import Buffer, sha256_of, sync, write_all
from serl.types import Key

_UNLIMITED = 1 << 62


def metadata_of(key: Key, spec: Spec) -> dict[str, str]:
    """Return the metadata of an episode's file as its actor writes it: with raw images."""
    return {
        "run": key.run,
        "actor": key.actor,
        "epoch": str(key.epoch),
        "episode": str(key.episode),
        "images": "raw",
        "spec": spec.model_dump_json(),
    }


class EpisodeWriter:
    """A writer of one file, which has a temporary name until `seal` gives it the final one.

    After the first error nothing else is done with the file, and nothing is retried: after a failed
    fsync the system marks pages as clean that never reached the disk.

    Args:
        folder: folder of the actor's episodes.
        suffix: suffix of the name until the file is sealed; an existing file is replaced.
        metadata: metadata as in `EpisodeFile`; the format is always the newest.
        spec: spec that the records fit.

    Attributes:
        records: number of records in the file.

    Raises:
        OSError: the disk refused; all methods raise it as well.
    """

    def __init__(self, folder: Path, suffix: str, metadata: Mapping[str, str], spec: Spec) -> None:
        self._messages = StepMessages(spec)
        name = EpisodeName(int(metadata["epoch"]), int(metadata["episode"]))
        self.path = name.path(folder, suffix)
        self._final = name.path(folder, SEALED)
        self._cameras = [(n, image.shape) for n, image in sorted(spec.observation.images.items())]
        self._error: BaseException | None = None
        self._findable = False  # whether the file's name survives a power cut
        self.records = 0
        self._kind = 0
        self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        self._output = _Output(self._descriptor)
        self._writer = Writer(
            self._output,
            chunk_size=_UNLIMITED,  # a chunk ends with its record, by `flush`
            compression=CompressionType.NONE,
            enable_data_crcs=True,
        )
        try:
            self._declare({**metadata, "format": FORMAT})
        except BaseException:
            self.close()
            raise

    def write(self, parts: Parts, time_ns: int) -> None:
        """Append a record with raw images: one chunk, one write."""
        images = []
        for (camera, shape), pixels in zip(self._cameras, parts.images, strict=True):
            head = image_head("raw", camera, shape, len(pixels), time_ns)
            images.append(b"".join((head, pixels)))
        self._append(parts.kind, parts.text, images, time_ns)

    def copy(self, message: Message) -> None:
        """Append a record of another file, with the images as they are stored there.

        Raises:
            CorruptData: the record does not fit the spec; nothing was written.
        """
        self._append(message.kind, message.text, message.images, message.time_ns)

    def sync(self) -> None:
        """Wait until every record is on disk."""
        with self._unless_failed():
            os.fdatasync(self._descriptor)
            if not self._findable:
                sync(self.path.parent)
                self._findable = True

    def seal(self, recovered: bool = False) -> Path:
        """Finish the file: index, sync, manifest, final name, sync; close it in any case."""
        try:
            with self._unless_failed():
                self._writer.finish()
                self._output.flush()
                os.fsync(self._descriptor)
                if os.fstat(self._descriptor).st_size != self._output.tell():
                    raise OSError("the file is not as long as what was written to it")
                digest = sha256_of(self.path)
        finally:
            self.close()
        entry = Entry(
            name=self._final.name,
            bytes=self._output.tell(),
            sha256=digest,
            records=self.records,
            ended=self._kind == END,
            recovered=recovered,
        )
        append_entry(self.path.parent, entry)
        self.path.rename(self._final)
        sync(self.path.parent)
        return self._final

    def close(self) -> None:
        """Close the file without sealing it."""
        os.close(self._descriptor)

    def discard(self) -> None:
        """Close the file and remove it."""
        self.close()
        self.path.unlink()

    def _declare(self, metadata: Mapping[str, str]) -> None:
        """Write everything before the first record: `STEP`, `END`, images, then standard messages.

        The numbers of the channels follow from this order.
        """
        self._writer.start(profile="ros2", library="serl")
        self._writer.add_metadata("serl", {**metadata, "crc32": metadata_crc(metadata)})
        images = image_schema(ENCODINGS[metadata["images"]])
        records = self._messages.records
        channels = [
            ("/step", records[STEP]),
            ("/end", records[END]),
            *((f"/image/{camera}", images) for camera, _ in self._cameras),
            *self._messages.standard,
        ]
        numbers = {
            schema: self._writer.register_schema(schema.name, "ros2msg", schema.text.encode())
            for schema in dict.fromkeys(schema for _, schema in channels)
        }
        for topic, schema in channels:
            self._writer.register_channel(topic, "cdr", numbers[schema])
        self._writer.flush()

    def _append(self, kind: int, text: bytes, images: Sequence[Buffer], time_ns: int) -> None:
        record, standard = self._messages.encode(kind, text, time_ns)
        messages = [(kind, record), *enumerate([*images, *standard], start=FIRST_IMAGE)]
        with self._unless_failed():
            for channel, data in messages:
                self._writer.add_message(channel, time_ns, data, time_ns, self.records)
            self._writer.flush()
        self.records += 1
        self._kind = kind

    @contextmanager
    def _unless_failed(self) -> Iterator[None]:
        if self._error is not None:
            raise OSError(f"an earlier error: {self._error}")
        try:
            yield
        except BaseException as error:  # an interrupt may leave a part of a record behind, too
            self._error = error
            raise


class _Output:
    """The file of a `Writer`: one system call for each flush.

    Args:
        descriptor: descriptor of an empty file.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._pieces: list[Buffer] = []
        self._size = 0

    def write(self, data: Buffer) -> None:
        """Note bytes for the next flush."""
        self._pieces.append(data)
        self._size += len(data)

    def tell(self) -> int:
        """Return the number of bytes written so far."""
        return self._size

    def flush(self) -> None:
        """Write all bytes noted."""
        pieces, self._pieces = self._pieces, []
        write_all(self._descriptor, *pieces)
