"""Weights <-> bytes: safetensors with a version, a spec and a checksum, bounded, without pickle.

The checksum is a CRC-32: it is there for damage (a cut transfer, a power cut), costs an eighth of
a sha256, and is checked by the link process and again by the actor. It proves no sender.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import safetensors.numpy
from isal.isal_zlib import crc32
from safetensors import SafetensorError

from serl.errors import BadInput, CorruptData, SpecMismatch
from serl.system.json_fields import check_fields, dump_object, parse_object, short
from serl.transport import MAX_VERSION, Snapshot, Weights

FORMAT = "2"
MAX_SNAPSHOT_BYTES = 512 << 20
MAX_TENSORS = 4096

_SNAPSHOT_FIELDS = dict.fromkeys(("format", "version", "trained", "spec", "crc32"), str)
_TENSOR_TYPES = {"F16", "F32", "F64", "I32", "I64", "U8", "BOOL"}


def encode_snapshot(snapshot: Snapshot, spec_digest: str) -> bytes:
    """Weights as safetensors; the metadata holds format, version, trained, spec, crc32.

    Raises:
        BadInput: a type that is not allowed, or too many arrays or bytes.
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
    """The weights in `data`, checked against their checksum; all values are finite.

    Raises:
        CorruptData: not a snapshot, damaged, or out of bounds.
        SpecMismatch: sound, but made for another spec.
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
    """Check the bounds of a safetensors text and return its metadata."""
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
    """CRC-32, in hex digits, over the other metadata, names, types, shapes and values."""
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
