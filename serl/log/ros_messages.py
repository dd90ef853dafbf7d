"""The messages of an episode file, as ROS 2 serializes them (little-endian CDR), without rclpy.

A record is one message of a type of its own, which holds its numbers and its JSON text. Beside it
stand an image for each camera and, where the robot measures them, standard messages: a pose, the
joints and a wrench for each arm. ROS 2's and other readers of bags decode all of them by their
schemas.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import accumulate
from math import prod
from typing import Literal, NamedTuple

import msgspec

from serl.errors import CorruptData, SpecMismatch
from serl.log.wire import END, STEP
from serl.specs import Spec

Encoding = Literal["raw", "png", "jpeg"]
ENCODINGS: dict[str, Encoding] = {"raw": "raw", "png": "png", "jpeg": "jpeg"}

FRAME = "base"
"""Name of the base frame in headers, of both arms too."""

STAMP = struct.Struct("<4sII")  # CDR header, seconds, nanoseconds
CDR = b"\0\1\0\0"
U32 = struct.Struct("<I")

_PARTS = {
    "builtin_interfaces/Time": "int32 sec\nuint32 nanosec\n",
    "std_msgs/Header": "builtin_interfaces/Time stamp\nstring frame_id\n",
    "geometry_msgs/Vector3": "float64 x\nfloat64 y\nfloat64 z\n",
    "geometry_msgs/Point": "float64 x\nfloat64 y\nfloat64 z\n",
    "geometry_msgs/Quaternion": "float64 x\nfloat64 y\nfloat64 z\nfloat64 w\n",
    "geometry_msgs/Pose": "geometry_msgs/Point position\ngeometry_msgs/Quaternion orientation\n",
    "geometry_msgs/Wrench": "geometry_msgs/Vector3 force\ngeometry_msgs/Vector3 torque\n",
}


class Schema(NamedTuple):
    """The type of messages: its name, and its definition as in a `.msg` file."""

    name: str
    text: str


class _Numbers(msgspec.Struct):
    """The numbers of a record, in its JSON text."""

    state: dict[str, list[float]]
    requested: list[float] = []
    action: list[float] = []
    reward: float = 0.0


_decoder = msgspec.json.Decoder(_Numbers)
_REFUSALS = (
    *(msgspec.DecodeError, UnicodeDecodeError, RecursionError),  # msgspec raises all three
    *(KeyError, OverflowError, struct.error),
)


class _Standard(NamedTuple):
    """A standard message of numbers.

    Attributes:
        topic: name of its channel.
        pieces: constant bytes, the range of the record's numbers that follows them, and its format.
        end: constant bytes at the end.
    """

    topic: str
    schema: Schema
    pieces: Sequence[tuple[bytes, slice]]
    end: bytes


def _schema(name: str, fields: str) -> Schema:
    """Return a type with the definitions of all types that it contains."""
    text, needed = fields, [fields]
    used: set[str] = set()
    for part in needed:
        for other in re.findall(r"^[a-z_]+/[A-Z]\w+", part, re.MULTILINE):
            if other not in used:
                used.add(other)
                needed.append(_PARTS[other])
                text += f"{'=' * 80}\nMSG: {other}\n{_PARTS[other]}"
    return Schema(name, text)


_HEADER = "std_msgs/Header header\n"
_POSE = _schema("geometry_msgs/msg/PoseStamped", f"{_HEADER}geometry_msgs/Pose pose\n")
_WRENCH = _schema("geometry_msgs/msg/WrenchStamped", f"{_HEADER}geometry_msgs/Wrench wrench\n")
_JOINTS = _schema(
    "sensor_msgs/msg/JointState",
    f"{_HEADER}string[] name\nfloat64[] position\nfloat64[] velocity\nfloat64[] effort\n",
)
_RAW = _schema(
    "sensor_msgs/msg/Image",
    f"{_HEADER}uint32 height\nuint32 width\nstring encoding\n"
    "uint8 is_bigendian\nuint32 step\nuint8[] data\n",
)
_COMPRESSED = _schema("sensor_msgs/msg/CompressedImage", f"{_HEADER}string format\nuint8[] data\n")


class StepMessages:
    """The messages of the records of one spec, except images.

    Attributes:
        records: type of the message of a record, by kind.
        standard: topics and types of the standard messages, in order.
        numbers: count of float32 numbers in the message of a record, by kind.
    """

    def __init__(self, spec: Spec) -> None:
        sizes = {name: prod(array.shape) for name, array in spec.observation.state.items()}
        ends = list(accumulate(sizes.values()))
        places = {
            name: slice(end - size, end)
            for (name, size), end in zip(sizes.items(), ends, strict=True)
        }
        state = "".join(f"float32[{size}] {_field(name)}\n" for name, size in sizes.items())
        (actions,), count = spec.action.shape, sum(sizes.values())
        action = f"float32[{actions}] requested\nfloat32[{actions}] action\nfloat32 reward\n"
        start, end = "builtin_interfaces/Time stamp\n", "string record\n"
        self.records = {
            STEP: _schema("serl/msg/Step", start + state + action + end),
            END: _schema("serl/msg/End", start + state + end),
        }
        self.numbers = {STEP: count + 2 * actions + 1, END: count}
        self._heads = {kind: struct.Struct(f"<4sII{n}fI") for kind, n in self.numbers.items()}
        self._names = list(sizes)
        self._standard = [
            message for name in sizes if (message := _standard(name, places, sizes)) is not None
        ]
        self.standard = [(message.topic, message.schema) for message in self._standard]

    def encode(self, kind: int, text: bytes, time_ns: int) -> tuple[bytes, list[bytes]]:
        """Return the message of a record, and the standard messages.

        Args:
            kind: kind of the record.
            text: JSON text of the record.
            time_ns: time of the record since 1970.

        Raises:
            CorruptData: the text is not that of a record of this spec.
        """
        time = divmod(time_ns, 10**9)
        try:
            fields = _decoder.decode(text)
            numbers = [value for name in self._names for value in fields.state[name]]
            if kind == STEP:
                numbers += [*fields.requested, *fields.action, fields.reward]
            head = self._heads[kind].pack(CDR, *time, *numbers, len(text) + 1)
        except _REFUSALS as error:
            raise CorruptData(f"record: not of this spec: {error}") from error
        stamp = STAMP.pack(CDR, *time)
        return head + text + b"\0", [
            b"".join((stamp, *_pack(message.pieces, numbers), message.end))
            for message in self._standard
        ]

    def text(self, kind: int, message: memoryview) -> memoryview:
        """Return the JSON text in the message of a record; raise `CorruptData` if it has none."""
        size = self._heads[kind].size
        if len(message) <= size or U32.unpack_from(message, size - 4)[0] != len(message) - size:
            raise CorruptData("record: a message of a wrong length")
        return message[size:-1]


def _pack(pieces: Sequence[tuple[bytes, slice]], numbers: Sequence[float]) -> list[bytes]:
    return [
        constant + struct.pack(f"<{place.stop - place.start}d", *numbers[place])
        for constant, place in pieces
    ]


def _standard(name: str, places: Mapping[str, slice], sizes: Mapping[str, int]) -> _Standard | None:
    """Return the standard message of a state array, such as `tcp_pose` or `left_q`, if any."""
    match = re.fullmatch(r"(?P<arm>(\w+_)?)(?P<what>tcp_pose|wrench|q)", name)
    if match is None:
        return None
    arm, what, header = match["arm"], match["what"], _text(FRAME)
    if what == "tcp_pose" and sizes[name] == 7:
        return _Standard(f"/{name}", _POSE, [(_align(header), places[name])], b"")
    if what == "wrench" and sizes[name] == 6:
        return _Standard(f"/{name}", _WRENCH, [(_align(header), places[name])], b"")
    if what != "q":
        return None
    count = U32.pack(sizes[name])
    names = count + b"".join(_text(f"joint{joint}") for joint in range(1, sizes[name] + 1))
    pieces, end = [(_align(header + names + count), places[name])], bytes(8)
    if sizes.get(f"{arm}dq") == sizes[name]:
        pieces, end = [*pieces, (_align(count), places[f"{arm}dq"])], bytes(4)
    return _Standard(f"/{arm}joint_states", _JOINTS, pieces, end)


def image_schema(encoding: Encoding) -> Schema:
    """Return the type of messages of images in this encoding."""
    return _RAW if encoding == "raw" else _COMPRESSED


def image_head(
    encoding: Encoding, camera: str, shape: tuple[int, ...], size: int, time_ns: int
) -> bytes:
    """Return the bytes of an image's message that precede its `size` bytes of data.

    Raises:
        SpecMismatch: the shape is not that of an RGB image, (H, W, 3).
    """
    stamp = STAMP.pack(CDR, *divmod(time_ns, 10**9))
    return stamp + _image_fields(encoding, camera, shape) + U32.pack(size)


def image_data(
    message: memoryview, encoding: Encoding, camera: str, shape: tuple[int, ...]
) -> memoryview:
    """Return the data in an image's message; raise `CorruptData` unless it is one of this shape."""
    fields = _image_fields(encoding, camera, shape)
    start = STAMP.size + len(fields) + U32.size
    data = message[start:]
    if message[:4] != CDR or message[STAMP.size : start] != fields + U32.pack(len(data)):
        raise CorruptData(f"image {camera}: not a {encoding} image of {list(shape)}")
    return data


@lru_cache
def _image_fields(encoding: Encoding, camera: str, shape: tuple[int, ...]) -> bytes:
    """Return the CDR fields between the stamp and the data's size, each aligned to four bytes."""
    if len(shape) != 3 or shape[2] != 3:
        raise SpecMismatch(f"image {camera}: expected the shape [height, width, 3], got {shape}")
    if encoding != "raw":
        return _text(camera) + _text(encoding)
    height, width, channels = shape
    fields = _text(camera) + struct.pack("<II", height, width) + U32.pack(5) + b"rgb8\0"
    return fields + b"\0" + bytes(-(len(fields) + 1) % 4) + U32.pack(width * channels)


def _text(value: str) -> bytes:
    data = value.encode() + b"\0"
    return U32.pack(len(data)) + data + bytes(-len(data) % 4)


def _align(data: bytes) -> bytes:
    """Return data, which begin at a multiple of eight bytes, up to the next multiple."""
    return data + bytes(-len(data) % 8)


def _field(name: str) -> str:
    """Return the name of a state array as ROS 2 allows one: letters, digits and underscores."""
    plain = re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")
    return plain if plain[:1].isalpha() else f"state_{plain}"
