"""An actor's end of the link: records go to its log, weights come from a file.

The link process (`serl.ros.nodes.link`) tails the log and replaces the file, so that no network
activity ever reaches the control loop.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4
from zlib import crc32

import numpy as np
import safetensors.numpy
from safetensors import SafetensorError

from serl.errors import BadInput, CorruptData, SpecMismatch
from serl.log.wire import Hello, encode_hello
from serl.specs import Spec
from serl.system.files import read_bounded, write_atomic
from serl.system.json_fields import check_fields, dump_object, parse_object, read_fields, short
from serl.transport import MAX_VERSION, Snapshot, Weights, is_newer

_FRESH_S = 4.0


class ControlStatus(NamedTuple):
    """Control periods of an actor in real time, since its start.

    Attributes:
        late: periods that began late by more than a tenth of a period.
        delayed: actions that were late by more than 1.5 periods, see `serl.ros.nodes.actor`.
    """

    periods: int
    late: int
    delayed: int = 0

    @property
    def share(self) -> float:
        """The share of late periods."""
        return self.late / self.periods if self.periods else 0.0


PERIOD_S = 1.0
"""Interval at which the link process writes its status."""


class LinkStatus(NamedTuple):
    """Delivery status of an actor's records, since its start.

    Attributes:
        acknowledged: records that the learner holds.
        waiting: records sent, or about to be sent, and not yet acknowledged.
        connected: True while a learner responds.
    """

    acknowledged: int
    waiting: int
    connected: bool


_FILES = {ControlStatus: "control.json", LinkStatus: "status.json"}


def write_status(folder: Path, status: ControlStatus | LinkStatus) -> None:
    """Write a status to the folder shared by actor and link; a full disk keeps the old one.

    Nothing depends on a status, so it need not survive a power cut either.
    """
    path = folder / _FILES[type(status)]
    scratch = folder / f".{path.name}"
    with suppress(OSError):
        scratch.write_bytes(dump_object(status._asdict()))
        scratch.replace(path)


def read_control_status(folder: Path) -> ControlStatus | None:
    """Read the status of the control loop; return None when it is absent or damaged."""
    fields = {"periods": int, "late": int, "delayed": int}
    values = read_fields(folder / _FILES[ControlStatus], fields)
    return None if values is None else ControlStatus(**values)


def read_link_status(folder: Path, wall_s: Callable[[], float] = time.time) -> LinkStatus | None:
    """Read the status of the link; return None when it is absent, out of date or damaged."""
    path = folder / _FILES[LinkStatus]
    fields = {"acknowledged": int, "waiting": int, "connected": bool}
    values = read_fields(path, fields)
    with suppress(OSError):
        if values is not None and wall_s() - path.stat().st_mtime <= _FRESH_S:
            return LinkStatus(**values)
    return None


FORMAT = "2"
MAX_SNAPSHOT_BYTES = 512 << 20
MAX_TENSORS = 4096

_SNAPSHOT_FIELDS = dict.fromkeys(("format", "version", "trained", "spec", "crc32"), str)
_TENSOR_TYPES = {"F16", "F32", "F64", "I32", "I64", "U8", "BOOL"}


def encode_snapshot(snapshot: Snapshot, spec_digest: str) -> bytes:
    """Encode weights as safetensors; the metadata holds format, version, trained, spec, crc32.

    Raises:
        BadInput: an array type is not allowed, or there are too many arrays or bytes.
    """
    weights = {name: np.asarray(array, order="C") for name, array in snapshot.weights.items()}
    metadata = {
        "format": FORMAT,
        "version": str(snapshot.version),
        "trained": dump_object(snapshot.trained).decode(),
        "spec": spec_digest,
    }
    metadata["crc32"] = _checksum(metadata, weights)
    try:
        data: bytes = safetensors.numpy.save(weights, metadata)
        _read_header(data)
    except (SafetensorError, KeyError, CorruptData) as error:
        raise BadInput(f"weights cannot be sent: {error}") from error
    return data


def decode_snapshot(data: bytes, spec_digest: str) -> Snapshot:
    """Decode weights, checked against their checksum; all values are finite.

    Raises:
        CorruptData: the data are not a snapshot, damaged, or out of bounds.
        SpecMismatch: the snapshot is sound, but made for another spec.
    """
    metadata = _read_header(data)
    trained = parse_object(metadata["trained"].encode(), "weights metadata trained")
    check_fields(trained, dict.fromkeys(trained, int), "weights metadata trained")
    if metadata["spec"] != spec_digest:
        found = short(metadata["spec"])
        raise SpecMismatch(f"weights: made for the spec {found}, expected {spec_digest!r}")
    try:
        weights: dict[str, np.ndarray[Any, Any]] = safetensors.numpy.load(data)
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise CorruptData(f"weights: {short(str(error))}") from error
    if _checksum(metadata, weights) != metadata["crc32"]:
        raise CorruptData("weights: the checksum does not match")
    for name, array in weights.items():
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise CorruptData(f"weights {short(name)}: not finite")
    return Snapshot(_version(metadata["version"]), trained, weights)


def _read_header(data: bytes) -> dict[str, str]:
    """Check the bounds of a safetensors file's bytes and return its metadata."""
    if not 8 <= len(data) <= MAX_SNAPSHOT_BYTES:
        raise CorruptData(f"weights: {len(data)} bytes, allowed 8-{MAX_SNAPSHOT_BYTES}")
    length = int.from_bytes(data[:8], "little")
    if length > len(data) - 8:
        raise CorruptData(f"weights: cut at {len(data)} bytes, expected at least {8 + length}")
    header = parse_object(memoryview(data)[8 : 8 + length], "weights")
    metadata = header.pop("__metadata__", None)
    if not isinstance(metadata, dict) or metadata.get("format") != FORMAT:
        found = short(metadata.get("format") if isinstance(metadata, dict) else metadata)
        raise CorruptData(f"weights: format {found}, this version reads {FORMAT!r}")
    check_fields(metadata, _SNAPSHOT_FIELDS, "weights metadata")
    if len(header) > MAX_TENSORS:
        raise CorruptData(f"weights: {len(header)} arrays, allowed {MAX_TENSORS}")
    for name, entry in header.items():
        kind = entry.get("dtype") if isinstance(entry, dict) else None
        if not isinstance(kind, str) or kind not in _TENSOR_TYPES:
            raise CorruptData(
                f"weights {short(name)}: type {short(kind)}, allowed {sorted(_TENSOR_TYPES)}"
            )
    return metadata


def _checksum(metadata: Mapping[str, str], weights: Weights) -> str:
    """Return the CRC-32, in hex, over the other metadata, names, types, shapes and values."""
    text = {name: metadata[name] for name in sorted(metadata) if name != "crc32"}
    crc = crc32(dump_object(text))
    for name in sorted(weights):
        array = weights[name]
        crc = crc32(f"{name}\0{array.dtype.str}\0{array.shape}\0".encode(), crc)
        crc = crc32(array.data, crc)
    return f"{crc:08x}"


def _version(text: str) -> int:
    known = text.isascii() and text.isdigit() and len(text) <= len(str(MAX_VERSION))
    if not known or int(text) > MAX_VERSION:
        raise CorruptData(f"weights version: expected 0-{MAX_VERSION}, got {short(text)}")
    return int(text)


HELLO = "hello.json"
HOME = "home"
_MAX_HOME_BYTES = 64


def announce(folder: Path, run: str, actor: str, epoch: int, spec: Spec) -> None:
    """Announce a start of an actor to the link process beside it.

    Args:
        folder: directory shared by actor and link process; created if absent. Its file `home`,
            created once, identifies it, so that two actors of the same name are detected.
        run: name of the run.
        actor: name of the actor.
        epoch: identity of this start.
        spec: spec of its records.
    """
    folder.mkdir(parents=True, exist_ok=True)
    home = folder / HOME
    if not home.exists():
        write_atomic(home, uuid4().hex.encode())
    place = f"{socket.gethostname()}:{folder.resolve()}"
    hello = Hello(run, actor, epoch, spec, read_home(folder), place)
    write_atomic(folder / HELLO, encode_hello(hello))


def read_home(folder: Path) -> str:
    """Return the folder's unique identifier; empty when no start was announced in it.

    Raises:
        CorruptData: the identifier's file is too large.
    """
    try:
        return read_bounded(folder / HOME, _MAX_HOME_BYTES).decode(errors="replace")
    except FileNotFoundError:
        return ""


class WeightsFile:
    """Weights in a file that another process replaces atomically.

    Args:
        path: the file; may not exist yet.
        spec_digest: digest of the expected spec; other weights are refused.
    """

    def __init__(self, path: Path, spec_digest: str) -> None:
        self._path = path
        self._spec_digest = spec_digest
        self._seen: tuple[int, int] | None = None

    def latest(self, newer_than: int) -> Snapshot | None:
        """Return the weights if the file was replaced since the last call and they are newer.

        Raises:
            CorruptData: the file is damaged; raised once per file.
            SpecMismatch: the weights belong to another spec; raised once per file.
        """
        try:
            status = self._path.stat()
            seen = (status.st_mtime_ns, status.st_ino)
            if seen == self._seen:
                return None
            data = read_bounded(self._path, MAX_SNAPSHOT_BYTES)
        except FileNotFoundError:
            return None
        self._seen = seen
        snapshot = decode_snapshot(data, self._spec_digest)
        return snapshot if is_newer(snapshot.version, newer_than) else None
