"""Encoding of records and introductions as bytes: versioned, bounded, validated, without pickle.

Every decoder checks sizes before it allocates, and raises `CorruptData` (damaged, foreign or
out of bounds) or `SpecMismatch` (sound, but of another spec), never anything else.
"""

from __future__ import annotations

import hashlib
import json
import re
import struct
from collections.abc import Mapping
from functools import lru_cache
from math import isfinite, prod
from typing import Any, NamedTuple

import msgspec
import numpy as np
from pydantic import ValidationError

from serl.errors import BadInput, CorruptData, SpecMismatch
from serl.specs import ArraySpec, Spec, check_reward
from serl.system.files import checked_name
from serl.system.json_fields import (
    MAX_JSON_BYTES,
    check_fields,
    dump_object,
    parse_object,
    printable,
    short,
)
from serl.transport import MAX_VERSION
from serl.types import (
    ActionSource,
    Array,
    Arrival,
    End,
    Image,
    Key,
    LostRecord,
    Observation,
    Record,
    Step,
    parse_reason,
)

Buffer = bytes | memoryview

VERSION = 1
MAX_RECORD_BYTES = 64 << 20
MAX_WALL_S = 1 << 32
"""Time after 1970 from which on ROS 2 has no stamp, s."""

STEP, END = 1, 2
"""Kinds of records."""

_LOST = 0  # kind of a stand-in for a lost record

_RECORD = struct.Struct("<4sHHI")  # magic, version, kind, length of the JSON text
_RECORD_MAGIC = b"SRLR"
_FRAME = struct.Struct("<4sIQQQI")  # magic, version, actor, epoch, sequence, length
_FRAME_MAGIC, _FRAME_VERSION = b"SRLF", 2

_KEY_FIELDS = {"run": str, "actor": str, "epoch": int, "episode": int, "index": int}
_COMMON_FIELDS = {
    "key": dict,
    "state": dict,
    "images": dict,
    "stamps": dict,
    "monotonic_s": float,
    "wall_s": float,
}
_STEP_FIELDS = _COMMON_FIELDS | {
    "requested": list,
    "action": list,
    "reward": float,
    "reward_provenance": str,
    "terminated": bool,
    "truncated": bool,
    "source": str,
    "policy_version": int,
}
_END_FIELDS = _COMMON_FIELDS | {"success": bool, "reason": str}
_LOST_FIELDS = {"key": dict, "last": bool}
_HELLO_FORMAT = 3
_HELLO_FIELDS = {
    "format": int,
    "run": str,
    "actor": str,
    "epoch": int,
    "spec": dict,
    "home": str,
    "place": str,
    "sent_ns": int,
}
_HOME = re.compile(r"[0-9a-f]{32}")

_MAX_TEXT = 1000  # characters
_MAX_PLACE = 200
_MAX_STAMPS = 64


class Parts(NamedTuple):
    """The parts of an encoded record: its kind, its JSON text, and its images by name."""

    kind: int
    text: bytes
    images: tuple[Buffer, ...]


class WireFrame(NamedTuple):
    """One message of the acknowledged stream.

    Attributes:
        actor: `actor_number` of the sender.
        epoch: number of the sender's start; a restarted actor has a new one.
        sequence: ordinal of the record in the epoch.
        payload: an encoded record.
    """

    actor: int
    epoch: int
    sequence: int
    payload: Buffer


class Hello(NamedTuple):
    """The introduction of an actor, sent before its first record.

    Attributes:
        run: name of the actor's run.
        epoch: number of this start of the actor.
        spec: spec that the actor's records fit.
        home: unique identifier of the actor's folder, 32 hex digits.
        place: location of that folder, for messages.
        sent_ns: wall time at which it was sent; larger in each introduction that an actor sends.
    """

    run: str
    actor: str
    epoch: int
    spec: Spec
    home: str
    place: str
    sent_ns: int = 0


def record_parts(record: Record) -> Parts:
    """Encode a record without joining the parts.

    The JSON text holds every field; float32 values survive the trip exactly.

    Raises:
        SpecMismatch: a number is not finite, or there are too many (some 60,000) to be read again.
    """
    observation, key = record.observation, record.key
    cameras = sorted(observation.images)
    text = f'{{"state":{{{_numbers(observation.state)}}},'
    fields: dict[str, Any] = {
        "key": {name: getattr(key, name) for name in _KEY_FIELDS},
        "images": {name: list(observation.images[name].shape) for name in cameras},
        "stamps": {name: float(stamp) for name, stamp in observation.stamps.items()},
        "monotonic_s": float(record.monotonic_s),
        "wall_s": float(record.wall_s),
    }
    if isinstance(record, Step):
        kind = STEP
        text += _numbers({"requested": record.requested, "action": record.action}) + ","
        fields |= {
            "reward": float(record.reward),
            "reward_provenance": record.reward_provenance,
            "terminated": bool(record.terminated),
            "truncated": bool(record.truncated),
            "source": record.source.value,
            "policy_version": int(record.policy_version),
        }
    else:
        kind = END
        reason = record.text[:_MAX_TEXT].encode(errors="replace").decode()
        fields |= {"success": bool(record.success), "reason": reason}
    scalars = [*fields["stamps"].values(), fields["monotonic_s"], fields["wall_s"]]
    if not all(map(isfinite, (*scalars, fields.get("reward", 0.0)))):  # null in JSON
        raise SpecMismatch(f"record {key.index} of episode {key.episode}: a number is not finite")
    try:
        rest = msgspec.json.encode(fields)
    except ValueError as error:  # a lone surrogate
        raise SpecMismatch(f"record {key.index} of episode {key.episode}: {error}") from error
    data = text.encode() + rest[1:]
    if len(data) > MAX_JSON_BYTES:  # it could not be read
        raise SpecMismatch(
            f"record {key.index} of episode {key.episode}: {len(data)} bytes of numbers and text, "
            f"allowed {MAX_JSON_BYTES}"
        )
    images = (np.ascontiguousarray(observation.images[name]) for name in cameras)
    pixels = tuple(image.data.cast("B") for image in images)
    return Parts(kind, data, pixels)


def _numbers(arrays: Mapping[str, Array]) -> str:
    """Return arrays as JSON members, with nine digits, which represent a float32 exactly.

    Formatting takes a third of the time of `repr`.
    """
    template = _template(tuple(arrays), tuple(array.size for array in arrays.values()))
    values = [value for array in arrays.values() for value in array.ravel().tolist()]
    if not isfinite(sum(values)):
        raise SpecMismatch(f"not finite: {[n for n, a in arrays.items() if not isfinite(a.sum())]}")
    return template % tuple(values)


@lru_cache
def _template(names: tuple[str, ...], sizes: tuple[int, ...]) -> str:
    quoted = (json.dumps(name).replace("%", "%%") for name in names)
    lists = (",".join(["%.8e"] * size) for size in sizes)
    return ",".join(f"{name}:[{numbers}]" for name, numbers in zip(quoted, lists, strict=True))


def join_parts(parts: Parts) -> bytes:
    """Return the parts joined to one encoded record."""
    head = _RECORD.pack(_RECORD_MAGIC, VERSION, parts.kind, len(parts.text))
    return b"".join((head, parts.text, *parts.images))


def encode_record(record: Record) -> bytes:
    """Encode a record as bytes: header, JSON text, raw images; raise as `record_parts` does."""
    return join_parts(record_parts(record))


def encode_lost(lost: LostRecord) -> bytes:
    """Encode the stand-in that is sent in place of a record that cannot be read."""
    key = {name: getattr(lost.key, name) for name in _KEY_FIELDS}
    return join_parts(Parts(_LOST, dump_object({"key": key, "last": lost.last}), ()))


def decode_arrival(data: Buffer, spec: Spec) -> Arrival:
    """Decode the record or the stand-in in `data`; raise as `decode_record` does."""
    view = memoryview(data)
    if bytes(view[: _RECORD.size - 4]) != _RECORD_MAGIC + struct.pack("<HH", VERSION, _LOST):
        return decode_record(data, spec)
    fields = parse_object(view[_RECORD.size :], "lost record")
    check_fields(fields, _LOST_FIELDS, "lost record")
    check_fields(fields["key"], _KEY_FIELDS, "lost record key")
    return LostRecord(Key(**fields["key"]), fields["last"])


@np.errstate(over="ignore")  # numbers beyond float32 become infinite, and are refused as infinite
def decode_record(data: Buffer, spec: Spec) -> Record:
    """Decode the record in `data`; its images are read-only views of `data`.

    Raises:
        CorruptData: the data are not a record, damaged, or out of bounds.
        SpecMismatch: names, shapes or values do not fit `spec`.
    """
    view = memoryview(data)
    if not _RECORD.size <= len(view) <= MAX_RECORD_BYTES:
        raise CorruptData(f"record: {len(view)} bytes, allowed {_RECORD.size}-{MAX_RECORD_BYTES}")
    magic, version, kind, length = _RECORD.unpack_from(view)
    if magic != _RECORD_MAGIC or version != VERSION or kind not in (STEP, END):
        raise CorruptData(f"record: unknown header {bytes(view[: _RECORD.size])!r}")
    start = _RECORD.size + length
    if start > len(view):
        raise CorruptData(f"record: cut at {len(view)} bytes, expected at least {start}")
    fields = parse_object(view[_RECORD.size : start], "record")
    check_fields(fields, _STEP_FIELDS if kind == STEP else _END_FIELDS, "record")
    check_fields(fields["key"], _KEY_FIELDS, "record key")
    _check_stamps(fields["stamps"])
    if not 0 <= fields["wall_s"] < MAX_WALL_S:
        raise CorruptData(f"record wall_s: expected a time since 1970, got {fields['wall_s']:g}")
    observation = Observation(
        state=_decode_arrays(fields.pop("state"), spec.observation.state, "state"),
        images=_decode_images(fields.pop("images"), view[start:], spec),
        stamps=fields.pop("stamps"),
    )
    key = Key(**fields.pop("key"))
    if kind == END:
        _check_length(fields["reason"], "reason")
        reason, fault = parse_reason(fields.pop("reason"))
        return End(key=key, observation=observation, reason=reason, fault=fault, **fields)
    actions = {name: fields[name] for name in ("requested", "action")}
    fields |= _decode_arrays(actions, dict.fromkeys(actions, spec.action), "record")
    _check_length(fields["reward_provenance"], "reward_provenance")
    check_reward(fields["reward"])
    if fields["policy_version"] > MAX_VERSION:
        raise CorruptData(f"record policy_version: {fields['policy_version']}, 0-{MAX_VERSION}")
    try:
        fields["source"] = ActionSource(fields["source"])
    except ValueError as error:
        raise CorruptData(f"record source: {error}, known are {[*ActionSource]}") from error
    return Step(key=key, observation=observation, **fields)


def _check_stamps(stamps: dict[str, Any]) -> None:
    if len(stamps) > _MAX_STAMPS:
        raise CorruptData(f"record stamps: {len(stamps)}, allowed {_MAX_STAMPS}")
    for name in stamps:
        _check_length(name, "name of a stamp")
    check_fields(stamps, dict.fromkeys(stamps, float), "record stamps")


def _check_length(text: str, subject: str) -> None:
    if len(text) > _MAX_TEXT:
        raise CorruptData(f"record {subject}: {len(text)} characters, allowed {_MAX_TEXT}")


def _decode_arrays(
    values: Mapping[str, Any], specs: Mapping[str, ArraySpec], subject: str
) -> dict[str, Array]:
    """Return flat JSON lists as arrays of the shapes in the spec; all are converted at once."""
    _same_names(subject, specs, values)
    numbers: list[float] = []
    for name, spec in specs.items():
        flat, size = values[name], prod(spec.shape)
        if not isinstance(flat, list) or len(flat) != size:
            raise SpecMismatch(f"{subject} {name}: expected {size} numbers, got {short(flat)}")
        if not set(map(type, flat)) <= {float}:
            raise CorruptData(f"{subject} {name}: expected numbers, got {short(flat)}")
        numbers += flat
    joined = np.array(numbers, np.float32)
    finite = isfinite(sum(joined.tolist()))
    arrays, start = {}, 0
    for name, spec in specs.items():
        end = start + prod(spec.shape)
        arrays[name] = joined[start:end].reshape(spec.shape)
        if not finite or (spec.low, spec.high, spec.dtype) != (None, None, "float32"):
            spec.validate_array(arrays[name], f"{subject} {name}")
        start = end
    return arrays


def _decode_images(shapes: dict[str, Any], data: memoryview, spec: Spec) -> dict[str, Image]:
    specs = spec.observation.images
    _same_names("images", specs, shapes)
    for name, shape in shapes.items():
        if shape != list(specs[name].shape):
            raise SpecMismatch(
                f"image {name}: expected {list(specs[name].shape)}, got {short(shape)}"
            )
    if len(data) != sum(prod(image.shape) for image in specs.values()):
        raise CorruptData(f"record: {len(data)} bytes of images do not fit their shapes")
    images, start = {}, 0
    for name in shapes:  # the order in which they were joined
        size = prod(specs[name].shape)
        flat = np.frombuffer(data[start : start + size], np.uint8)
        images[name] = flat.reshape(specs[name].shape)
        start += size
    return {name: images[name] for name in specs}


def actor_number(run: str, actor: str) -> int:
    """Return an actor's number in frames: 64 bits of a hash of the run's and the actor's name."""
    return int.from_bytes(hashlib.sha256(f"{run}\0{actor}".encode()).digest()[:8], "little")


def encode_frame(frame: WireFrame) -> tuple[bytes, Buffer]:
    """Encode a frame as two parts, to be joined once: header and payload."""
    ids = (frame.actor, frame.epoch, frame.sequence)
    return _FRAME.pack(_FRAME_MAGIC, _FRAME_VERSION, *ids, len(frame.payload)), frame.payload


def decode_frame(data: Buffer) -> WireFrame:
    """Decode the frame in `data`; the payload is a view of `data`.

    A frame has no checksum: the tag of its message (`serl.system.authentication`) covers it.

    Raises:
        CorruptData: the data are not a frame, or too large.
    """
    view, start = memoryview(data), _FRAME.size
    if not start <= len(view) <= start + MAX_RECORD_BYTES:
        raise CorruptData(f"frame: {len(view)} bytes, allowed {start}-{start + MAX_RECORD_BYTES}")
    magic, version, actor, epoch, sequence, length = _FRAME.unpack_from(view)
    if (magic, version, length) != (_FRAME_MAGIC, _FRAME_VERSION, len(view) - start):
        raise CorruptData(f"frame: unknown header {bytes(view[:8])!r} or length {length}")
    return WireFrame(actor, epoch, sequence, view[start:])


def encode_hello(hello: Hello) -> bytes:
    """Encode an introduction as JSON."""
    fields = hello._asdict() | {"spec": hello.spec.model_dump(mode="json")}
    return dump_object({"format": _HELLO_FORMAT} | fields)


def decode_hello(data: Buffer) -> Hello:
    """Decode the introduction in `data`.

    Raises:
        CorruptData: the data are not an introduction, or of another version of the format.
    """
    fields = parse_object(memoryview(data), "hello")
    if fields.get("format") != _HELLO_FORMAT:
        found = short(fields.get("format"))
        raise CorruptData(f"hello: format {found}, this version speaks {_HELLO_FORMAT}")
    check_fields(fields, _HELLO_FIELDS, "hello")
    if not _HOME.fullmatch(fields["home"]):
        raise CorruptData(f"hello home: expected 32 hex digits, got {short(fields['home'])}")
    try:
        spec = Spec.model_validate(fields["spec"])
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise CorruptData(f"hello spec: {short(where)}: {first['msg']}") from error
    try:
        run, actor = (checked_name(fields[name], name) for name in ("run", "actor"))
    except BadInput as error:
        raise CorruptData(f"hello {error}") from error
    place = printable(fields["place"], _MAX_PLACE)
    return Hello(run, actor, fields["epoch"], spec, fields["home"], place, fields["sent_ns"])


def _same_names(subject: str, expected: Mapping[str, Any], found: Mapping[str, Any]) -> None:
    if expected.keys() != found.keys():
        raise SpecMismatch(f"{subject}: expected {sorted(expected)}, got {short(sorted(found))}")
