"""Images as ROS 2 messages in a log: raw, or compressed; Foxglove shows both.

Raw images are `sensor_msgs/Image`, others `sensor_msgs/CompressedImage`, in little-endian CDR.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Literal, cast

import numpy as np

from serl.errors import CorruptData, SpecMismatch
from serl.log.mcap_writer import Schema
from serl.system.files import Buffer

Encoding = Literal["raw", "png", "jpeg"]
ENCODINGS: dict[str, Encoding] = {"raw": "raw", "png": "png", "jpeg": "jpeg"}

_STAMP = struct.Struct("<4sII")  # CDR header, seconds, nanoseconds
_CDR = b"\0\1\0\0"
_U32 = struct.Struct("<I")

_PNG_MAGIC = b"\x89PNG\r\n\x1a\n"
_PNG_CHUNK = struct.Struct(">I4s")  # length of the data, type
_PNG_HEADER = struct.Struct(">IIBBBBB")  # width, height, depth, colour, three methods
_PNG_CHUNKS = {b"IHDR", b"IDAT", b"IEND"}
_JPEG_SEGMENT = struct.Struct(">BBH")  # 255, marker, length
_JPEG_FRAME = struct.Struct(">BHHB")  # depth, height, width, components
_JPEG_START, _JPEG_END = b"\xff\xd8", b"\xff\xd9"
_JPEG_BASELINE, _JPEG_SCAN = 0xC0, 0xDA
_JPEG_TABLES = {*range(0xE0, 0xF0), 0xDB, 0xC4, 0xDD, 0xFE}

_HEADER = """std_msgs/Header header
{fields}
================================================================================
MSG: std_msgs/Header
builtin_interfaces/Time stamp
string frame_id
================================================================================
MSG: builtin_interfaces/Time
int32 sec
uint32 nanosec
"""
_RAW = Schema(
    "sensor_msgs/msg/Image",
    "ros2msg",
    _HEADER.format(
        fields="uint32 height\nuint32 width\nstring encoding\n"
        "uint8 is_bigendian\nuint32 step\nuint8[] data"
    ),
)
_COMPRESSED = Schema(
    "sensor_msgs/msg/CompressedImage",
    "ros2msg",
    _HEADER.format(fields="string format\nuint8[] data"),
)


def schema(encoding: Encoding) -> Schema:
    """Return the message type of images in this encoding."""
    return _RAW if encoding == "raw" else _COMPRESSED


def head(encoding: Encoding, camera: str, shape: tuple[int, ...], size: int, time_ns: int) -> bytes:
    """Return the bytes of a message that precede its `size` bytes of image data.

    Raises:
        SpecMismatch: the shape is not that of an RGB image, (H, W, 3).
    """
    stamp = _STAMP.pack(_CDR, *divmod(time_ns, 10**9))
    return stamp + _fields(encoding, camera, shape) + _U32.pack(size)


def compress(pixels: Buffer, shape: tuple[int, ...], encoding: Encoding, quality: int) -> bytes:
    """Compress an RGB image of the shape (H, W, 3) to PNG, lossless, or JPEG of this quality."""
    import cv2  # costs half a second and 50 MB, avoided in processes that never compress

    bgr = cv2.cvtColor(np.frombuffer(pixels, np.uint8).reshape(shape), cv2.COLOR_RGB2BGR)
    settings = (
        [cv2.IMWRITE_PNG_COMPRESSION, 1]
        if encoding == "png"
        else [cv2.IMWRITE_JPEG_QUALITY, quality]
    )
    return cv2.imencode(f".{encoding}", bgr, settings)[1].tobytes()


def decode(message: memoryview, encoding: Encoding, camera: str, shape: tuple[int, ...]) -> Buffer:
    """Return the pixels of a message, row by row, RGB; a raw message is not copied.

    A message without exactly one image of this shape is refused before anything is decoded.

    Raises:
        CorruptData: the message is damaged or foreign.
    """
    fields = _fields(encoding, camera, shape)
    start = _STAMP.size + len(fields) + _U32.size
    data = message[start:]
    if message[:4] != _CDR or message[_STAMP.size : start] != fields + _U32.pack(len(data)):
        raise CorruptData(f"image {camera}: not a {encoding} image of {list(shape)}")
    if encoding == "raw":
        if len(data) != shape[0] * shape[1] * shape[2]:
            raise CorruptData(f"image {camera}: {len(data)} bytes do not fit {list(shape)}")
        return data
    return _decompress(data, encoding, camera, shape)


@lru_cache
def _fields(encoding: Encoding, camera: str, shape: tuple[int, ...]) -> bytes:
    """Return the CDR fields between the stamp and the data's size, each aligned to four bytes."""
    if len(shape) != 3 or shape[2] != 3:
        raise SpecMismatch(f"image {camera}: expected the shape [height, width, 3], got {shape}")
    fields = _text(camera)
    if encoding == "raw":
        height, width, channels = shape
        fields += struct.pack("<II", height, width) + _U32.pack(5) + b"rgb8\0"
        fields += b"\0" + bytes(-(len(fields) + 1) % 4) + _U32.pack(width * channels)
    else:
        fields += _text(encoding)
    return fields


def _text(value: str) -> bytes:
    data = value.encode() + b"\0"
    return _U32.pack(len(data)) + data + bytes(-len(data) % 4)


def _decompress(data: memoryview, encoding: Encoding, camera: str, shape: tuple[int, ...]) -> bytes:
    import cv2

    try:
        found = _png_shape(data) if encoding == "png" else _jpeg_shape(data)
    except struct.error as error:
        raise CorruptData(f"image {camera}: the {encoding} is cut") from error
    if found != shape:
        raise CorruptData(f"image {camera}: expected {encoding} of {list(shape)}, got {found}")
    flags = cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION
    try:
        bgr = cv2.imdecode(np.frombuffer(data, np.uint8), flags)
    except cv2.error as error:
        raise CorruptData(f"image {camera}: {error}") from error
    if bgr is None or bgr.shape != shape:
        raise CorruptData(f"image {camera}: the {encoding} cannot be decoded")
    return cast(bytes, cv2.cvtColor(bgr, cv2.COLOR_BGR2RGB).tobytes())


def _png_shape(data: memoryview) -> tuple[int, ...] | None:
    """Return the shape that a PNG declares; None unless plain 8-bit RGB without extra chunks."""
    if data[: len(_PNG_MAGIC)] != _PNG_MAGIC:
        return None
    place, shape = len(_PNG_MAGIC), None
    while place < len(data):
        length, kind = _PNG_CHUNK.unpack_from(data, place)
        if kind not in _PNG_CHUNKS or (kind == b"IHDR") != (shape is None):
            return None
        if kind == b"IHDR":
            width, height, *rest = _PNG_HEADER.unpack_from(data, place + _PNG_CHUNK.size)
            if rest != [8, 2, 0, 0, 0]:
                return None
            shape = (height, width, 3)
        place += _PNG_CHUNK.size + length + 4
    return shape if place == len(data) else None


def _jpeg_shape(data: memoryview) -> tuple[int, ...] | None:
    """Return the shape that a JPEG declares; None unless baseline with three components."""
    if data[:2] != _JPEG_START or data[-2:] != _JPEG_END:
        return None
    place, shape = 2, None
    while True:
        marker_start, marker, length = _JPEG_SEGMENT.unpack_from(data, place)
        if marker_start != 0xFF or length < 2:
            return None
        if marker == _JPEG_SCAN:
            return shape
        if marker == _JPEG_BASELINE and shape is None:
            depth, height, width, components = _JPEG_FRAME.unpack_from(data, place + 4)
            if (depth, components) != (8, 3):
                return None
            shape = (height, width, 3)
        elif marker not in _JPEG_TABLES:
            return None
        place += 2 + length
