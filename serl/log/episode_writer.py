"""The writer of one episode file: record by record, then the seal, which makes the file final."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from serl.log.episode_reader import FIRST_IMAGE, FORMAT, SEALED, EpisodeName, Message, metadata_crc
from serl.log.images import ENCODINGS, Encoding, head, schema
from serl.log.manifest import Entry, append_entry
from serl.log.mcap_writer import McapChannel, McapWriter, Schema
from serl.log.wire import END, STEP, Parts
from serl.specs import Spec
from serl.system.files import Buffer, sync_folder
from serl.system.json_fields import dump_object
from serl.types import Key


def metadata_of(key: Key, spec: Spec) -> dict[str, str]:
    """Return the metadata of an episode's file as its actor writes it: with raw images."""
    return {
        "format": FORMAT,
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
        metadata: metadata as in `EpisodeFile`.
        spec: spec that the records fit.

    Raises:
        OSError: the disk refused; all methods raise it as well.
    """

    def __init__(self, folder: Path, suffix: str, metadata: Mapping[str, str], spec: Spec) -> None:
        name = EpisodeName(int(metadata["epoch"]), int(metadata["episode"]))
        self.path = name.path(folder, suffix)
        self._final = name.path(folder, SEALED)
        self._cameras = [(n, image.shape) for n, image in sorted(spec.observation.images.items())]
        self._error: BaseException | None = None
        self._findable = False  # whether the file's name survives a power cut
        self._records = 0
        self._kind = 0
        self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            channels = _channels(spec, ENCODINGS[metadata["images"]])
            checked = {**metadata, "crc32": metadata_crc(metadata)}
            self._writer = McapWriter(self._descriptor, channels, "serl", checked)
        except BaseException:
            self.close()
            raise

    def write(self, parts: Parts, time_ns: int) -> None:
        """Append a record with raw images: one chunk, one write."""
        images = []
        for (camera, shape), pixels in zip(self._cameras, parts.images, strict=True):
            images.append((head("raw", camera, shape, len(pixels), time_ns), pixels))
        self._append(parts.kind, parts.text, images, time_ns)

    def copy(self, message: Message) -> None:
        """Append a record in the form in which another file stores it."""
        images = [(image,) for image in message.images]
        self._append(message.kind, message.text, images, message.time_ns)

    def sync(self) -> None:
        """Wait until every record is on disk."""
        with self._trusted():
            os.fdatasync(self._descriptor)
            if not self._findable:
                sync_folder(self.path.parent)
                self._findable = True

    def seal(self, recovered: bool = False) -> Path:
        """Finish the file: index, sync, manifest, final name, sync; close it in any case."""
        try:
            with self._trusted():
                digest = self._writer.finish()
                os.fsync(self._descriptor)
        finally:
            self.close()
        entry = Entry(
            name=self._final.name,
            bytes=self._writer.size,
            sha256=digest,
            records=self._records,
            ended=self._kind == END,
            recovered=recovered,
        )
        append_entry(self.path.parent, entry)
        self.path.rename(self._final)
        sync_folder(self.path.parent)
        return self._final

    def close(self) -> None:
        """Close the file without sealing it."""
        os.close(self._descriptor)

    def discard(self) -> None:
        """Close the file and remove it."""
        self.close()
        self.path.unlink()

    def _append(
        self, kind: int, text: bytes, images: Sequence[Sequence[Buffer]], time_ns: int
    ) -> None:
        messages: list[tuple[int, Sequence[Buffer]]] = [(kind, (text,))]
        messages += enumerate(images, start=FIRST_IMAGE)
        with self._trusted():
            self._writer.write(messages, time_ns, self._records)
        self._records += 1
        self._kind = kind

    @contextmanager
    def _trusted(self) -> Iterator[None]:
        if self._error is not None:
            raise OSError(f"an earlier error: {self._error}")
        try:
            yield
        except BaseException as error:  # an interrupt may leave a part of a record behind, too
            self._error = error
            raise


def _channels(spec: Spec, encoding: Encoding) -> list[McapChannel]:
    """Return the channels: `STEP` for steps, `END` for ends, then images by name as in `Parts`."""
    return [
        McapChannel("/step", "json", _json_schema(spec, STEP)),
        McapChannel("/end", "json", _json_schema(spec, END)),
        *(
            McapChannel(f"/image/{name}", "cdr", schema(encoding))
            for name in sorted(spec.observation.images)
        ),
    ]


def _json_schema(spec: Spec, kind: int) -> Schema:
    """Return the JSON schema of a record, which Foxglove needs to offer the values for plots."""
    number, word, flag = {"type": "number"}, {"type": "string"}, {"type": "boolean"}
    numbers = {"type": "array", "items": number}
    key = dict.fromkeys(("run", "actor"), word)
    key |= dict.fromkeys(("epoch", "episode", "index"), number)
    properties: dict[str, Any] = {
        "key": {"type": "object", "properties": key},
        "state": {"type": "object", "properties": dict.fromkeys(spec.observation.state, numbers)},
        "images": {"type": "object"},
        "stamps": {"type": "object"},
        "monotonic_s": number,
        "wall_s": number,
    }
    if kind == END:
        properties |= {"success": flag, "reason": word}
    else:
        properties |= dict.fromkeys(("requested", "action"), numbers)
        properties |= dict.fromkeys(("terminated", "truncated"), flag)
        properties |= dict.fromkeys(("source", "reward_provenance"), word)
        properties |= dict.fromkeys(("reward", "policy_version"), number)
    name = "serl.end" if kind == END else "serl.step"
    text = dump_object({"type": "object", "properties": properties}).decode()
    return Schema(name, "jsonschema", text)
