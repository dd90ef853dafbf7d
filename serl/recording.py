"""The actor's log: every step in an MCAP file, on its way to the disk before the next action.

One file for each episode, `<epoch>-<episode>.part.mcap` while it is open and `.mcap` once it is
sealed; one chunk for each record, so that a cut file loses nothing before the cut. The files open
in Foxglove and with the `mcap` command line.
"""

from __future__ import annotations

import os
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from serl.episodes import FIRST_IMAGE, FORMAT, PART, SEALED, EpisodeFile, EpisodeName, episode_name
from serl.errors import BadInput, SerlError
from serl.files import FileLock, sync_folder
from serl.mcap import Channel, McapWriter
from serl.specs import Spec
from serl.types import Key, Record, Step
from serl.wire import END, STEP, Parts, record_parts

_MAX_UNSEALED = 8


class EpisodeLog:
    """Appends an actor's records; each is with the operating system when `append` returns.

    Episodes are counted from 0 in each epoch, steps from 0 in each episode. An episode that has
    no `End` when the next one starts is sealed without one.

    Args:
        folder: the actor's episodes; locked against a second actor of the same name.
        spec: what every record has to fit.
        run: the run's name.
        actor: the actor's name.
        epoch: a number that grows with each start of the actor, such as `time.time_ns()`.

    Raises:
        BadInput: another process writes to the folder, or the epoch was used before.
    """

    def __init__(self, folder: Path, spec: Spec, run: str, actor: str, epoch: int) -> None:
        self._lock = _lock(folder)
        if any(folder.glob(f"{epoch}-*")):
            self._lock.close()
            raise BadInput(f"log: {folder} already has episodes of the epoch {epoch}")
        self._folder = folder
        self._spec = spec
        self._stream = (run, actor, epoch)
        self._next = (0, 0)  # episode, index
        self._file: _EpisodeWriter | None = None
        self._sealer = ThreadPoolExecutor(1, "seal")
        self._sealing: deque[Future[None]] = deque()

    def append(self, record: Record) -> None:
        """Write one record; an `End` seals the file on a helper thread.

        Raises:
            SpecMismatch: the record does not fit the spec; nothing was written.
            BadInput: not the next record of this actor; nothing was written.
            SerlError: the disk refused, now or at an earlier seal; the open file takes no more.
        """
        key = record.key
        self._check_order(key)
        self._spec.observation.validate_observation(record.observation)
        if isinstance(record, Step):
            self._spec.action.validate_array(record.requested, "requested action")
            self._spec.action.validate_array(record.action, "action")
        parts = record_parts(record)
        try:
            if key.index == 0:
                self._open(key)
            assert self._file is not None
            self._file.write(parts, key.index, round(record.wall_s * 1e9))
        except OSError as error:
            raise SerlError(f"log: cannot write to {self._folder}: {error}") from error
        if isinstance(record, Step):
            self._next = (key.episode, key.index + 1)
        else:
            self._seal()
            self._next = (key.episode + 1, 0)

    def close(self) -> None:
        """Wait for seals under way; an episode without `End` is sealed as it is.

        Raises:
            SerlError: the disk refused.
        """
        try:
            self._seal()
            self._collect(0)
        except OSError as error:
            raise SerlError(f"log: cannot seal in {self._folder}: {error}") from error
        finally:
            self._sealer.shutdown()
            self._lock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _check_order(self, key: Key) -> None:
        episode, index = self._next
        allowed = [self._next] if index == 0 else [self._next, (episode + 1, 0)]
        stream = (key.run, key.actor, key.epoch)
        if stream != self._stream or (key.episode, key.index) not in allowed:
            raise BadInput(f"log: expected the record {(*self._stream, *self._next)}, got {key}")

    def _open(self, key: Key) -> None:
        self._seal()
        self._collect(_MAX_UNSEALED)
        metadata = {
            "format": FORMAT,
            "run": key.run,
            "actor": key.actor,
            "epoch": str(key.epoch),
            "episode": str(key.episode),
            "spec": self._spec.model_dump_json(),
        }
        self._file = _EpisodeWriter(self._folder, metadata, self._spec)

    def _seal(self) -> None:
        if self._file is not None:
            self._sealing.append(self._sealer.submit(self._file.seal))
            self._file = None

    def _collect(self, leave: int) -> None:
        """Raise what went wrong in seals; wait while more than `leave` are under way."""
        while self._sealing and (len(self._sealing) > leave or self._sealing[0].done()):
            self._sealing.popleft().result()


def _lock(folder: Path) -> FileLock:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return FileLock(folder / "writer.lock", f"the log in {folder}")


def recover(folder: Path) -> list[Path]:
    """Seal what an actor left open when it died: the undamaged beginning, without an `End`.

    A file of which a part had to be left out is kept in `quarantine/`.

    Returns:
        The sealed files.

    Raises:
        BadInput: the actor is alive.
        SerlError: the disk refused.
    """
    with _lock(folder):
        sealed = []
        for part in sorted(folder.glob(f"*{PART}"), key=episode_name):
            try:
                sealed += _recover_file(part)
            except OSError as error:
                raise SerlError(f"log: cannot recover {part}: {error}") from error
        return sealed


def _recover_file(part: Path) -> list[Path]:
    """Rewrite one file under a hidden name, seal it, then take the old one away."""
    sealed: list[Path] = []
    source = EpisodeFile(part)
    try:
        messages = list(source.prefix())
        whole = source.sealed or source.offset == part.stat().st_size
        if messages and source.metadata and source.spec:
            writer = _EpisodeWriter(part.parent, source.metadata, source.spec, ".recovered")
            for index, message in enumerate(messages):
                writer.write(message.parts, index, message.time_ns)
            writer.seal()
            sealed.append(writer.sealed_path)
    finally:
        source.close()
    if whole:
        part.unlink()
    else:
        quarantine = part.parent / "quarantine"
        quarantine.mkdir(mode=0o700, exist_ok=True)
        part.rename(quarantine / part.name)
    sync_folder(part.parent)
    return sealed


class _EpisodeWriter:
    """One episode file; `metadata` are those of `EpisodeFile`."""

    def __init__(
        self, folder: Path, metadata: dict[str, str], spec: Spec, suffix: str = PART
    ) -> None:
        name = EpisodeName(int(metadata["epoch"]), int(metadata["episode"]))
        self.sealed_path = name.path(folder, SEALED)
        self._path = name.path(folder, suffix)
        self._broken = False
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        self._writer = McapWriter(self._descriptor, _channels(spec), "serl", metadata)

    def write(self, parts: Parts, index: int, time_ns: int) -> None:
        """One record, one chunk, one write."""
        if self._broken:
            raise OSError(f"an earlier write to {self._path} failed")
        self._broken = True
        images = enumerate(parts.images, start=FIRST_IMAGE)
        self._writer.write([(parts.kind, parts.text), *images], time_ns, index)
        self._broken = False

    def seal(self) -> None:
        """Write the index, wait for the disk, and give the file its final name."""
        try:
            if self._broken:
                raise OSError(f"an earlier write to {self._path} failed")
            self._writer.finish()
            os.fsync(self._descriptor)
        finally:
            os.close(self._descriptor)
        self._path.rename(self.sealed_path)
        sync_folder(self._path.parent)


def _channels(spec: Spec) -> list[Channel]:
    """Steps are channel `STEP`, ends channel `END`, images follow by name, as in `Parts`."""
    return [
        Channel("/step", "json", _json_schema(spec, STEP)),
        Channel("/end", "json", _json_schema(spec, END)),
        *(
            Channel(f"/image/{name}", "raw", None, {"shape": str(list(image.shape))})
            for name, image in sorted(spec.observation.images.items())
        ),
    ]


def _json_schema(spec: Spec, kind: int) -> dict[str, Any]:
    """What Foxglove needs in order to offer the values for plots."""
    number, text, flag = {"type": "number"}, {"type": "string"}, {"type": "boolean"}
    numbers = {"type": "array", "items": number}
    key = dict.fromkeys(("run", "actor"), text)
    key |= dict.fromkeys(("epoch", "episode", "index"), number)
    properties = {
        "key": {"type": "object", "properties": key},
        "state": {"type": "object", "properties": dict.fromkeys(spec.observation.state, numbers)},
        "images": {"type": "object"},
        "stamps": {"type": "object"},
        "monotonic_s": number,
        "wall_s": number,
    }
    if kind == END:
        properties |= {"success": flag, "reason": text}
    else:
        properties |= dict.fromkeys(("requested", "action"), numbers)
        properties |= dict.fromkeys(("terminated", "truncated"), flag)
        properties |= dict.fromkeys(("source", "reward_provenance"), text)
        properties |= dict.fromkeys(("reward", "policy_version"), number)
    return {"type": "object", "properties": properties}
