"""Random mutations of valid bytes, and corrected checksums for them."""

from __future__ import annotations

import re
import struct
from itertools import islice
from math import prod
from pathlib import Path
from random import Random
from zlib import crc32

import safetensors.numpy
from mcap.opcode import Opcode
from mcap.records import Metadata
from safetensors import SafetensorError

from serl.errors import BadInput
from serl.log.episode_reader import metadata_crc
from serl.log.mcap_reader import HEAD, parse
from serl.log.ros_messages import U32
from serl.testing.samples import IMAGES
from serl.training.link import _checksum, _read_header

CHUNK = struct.Struct("<QQQIIQ")  # times, size, CRC, length of the compression name, size
RECORD_HEAD = 12
NUMBERS = [0, 1, 2**7, 2**8 - 1, 2**15, 2**16 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1]
WORDS = [
    *(b"NaN", b"-Infinity", b"1e999", b"-1", b"-1.5", b"1e300", b"1e-400"),
    *(b"18446744073709551616", b"9" * 400),
    *(b"null", b"true", b'""', b"[]", b"{}", b"[" * 3000, b'{"a":' * 2000, b'"\\ud800"'),
    *(b"&a [*a]", b"!!python/object:os.system x", b"? ", b"<<: ", b"0x_", b"1:2:3", b"2001-99-99"),
]
TOKEN = re.compile(rb'-?\d+(\.\d+)?(e[+-]?\d+)?|true|false|null|"[^"]*"|\[[^\[\]]*\]')


def reseal_record(data: bytes) -> bytes:
    """Set the text length to the bytes between the header and the images."""
    text = len(data) - RECORD_HEAD - sum(prod(image.shape) for image in IMAGES.values())
    return data[: RECORD_HEAD - U32.size] + U32.pack(max(0, text)) + data[RECORD_HEAD:]


def reseal_frame(data: bytes) -> bytes:
    """Return the frame with the length of its payload."""
    payload = data[36:]
    return data[:32] + U32.pack(len(payload)) + payload


def reseal_snapshot(data: bytes) -> bytes:
    """Correct the checksum, where the snapshot can still be parsed."""
    try:
        found, weights = _read_header(data), safetensors.numpy.load(data)
    except (BadInput, SafetensorError, ValueError, KeyError, TypeError):
        return data
    return data.replace(found["crc32"].encode(), _checksum(found, weights).encode())


def reseal_chunk(data: bytes) -> bytes:
    if len(data) < CHUNK.size:
        return data
    first, last, *_ = CHUNK.unpack_from(data)
    rest = data[CHUNK.size :]
    return CHUNK.pack(first, last, len(rest), crc32(rest), 0, len(rest)) + rest


def reseal_episode(data: bytes) -> bytes:
    """Correct the checksums of chunks, metadata and data, as far as records can be parsed."""
    pieces, place = [data[:8]], 8
    while place + HEAD.size <= len(data):
        opcode, length = HEAD.unpack_from(data, place)
        body = data[place + HEAD.size : place + HEAD.size + length]
        if len(body) < length:
            break
        if opcode == Opcode.CHUNK:
            body = reseal_chunk(body)
        elif opcode == Opcode.METADATA:
            body = _reseal_metadata(body)
        elif opcode == Opcode.DATA_END:
            body = U32.pack(crc32(b"".join(pieces)))
        pieces.append(HEAD.pack(opcode, len(body)) + body)
        place += HEAD.size + length
    return b"".join(pieces) + data[place:]


def _reseal_metadata(body: bytes) -> bytes:
    try:
        metadata = parse(Metadata, body).metadata
    except BadInput:
        return body
    found = metadata.pop("crc32", "")
    return body.replace(found.encode(), metadata_crc(metadata).encode()) if found else body


def flip(path: Path, place: int | None = None) -> None:
    """Flip one bit of a file, by default of the byte in its middle."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2 if place is None else place] ^= 1
    path.write_bytes(data)


def mutated(data: bytes, rng: Random) -> bytes:
    """Apply one to four random changes."""
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        data = rng.choice((_flip, _number, _cut, _insert, _double, _token, _token))(data, rng)
    return data


def _flip(data: bytes, rng: Random) -> bytes:
    if not data:
        return data
    changed = bytearray(data)
    changed[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def _number(data: bytes, rng: Random) -> bytes:
    """Overwrite a place with a number at the limit of its type, such as a wrong length."""
    form = rng.choice(("<B", "<H", "<I", "<Q"))
    number = struct.pack(form, rng.choice(NUMBERS) % (1 << 8 * struct.calcsize(form)))
    place = rng.randrange(max(1, len(data) - len(number)))
    return data[:place] + number + data[place + len(number) :]


def _cut(data: bytes, rng: Random) -> bytes:
    first, last = sorted(rng.randrange(len(data) + 1) for _ in range(2))
    return rng.choice((data[:first], data[first:], data[:first] + data[last:]))


def _insert(data: bytes, rng: Random) -> bytes:
    place = rng.randrange(len(data) + 1)
    return data[:place] + rng.randbytes(rng.choice((1, 2, 8, 64))) + data[place:]


def _double(data: bytes, rng: Random) -> bytes:
    first, last = sorted(rng.randrange(len(data) + 1) for _ in range(2))
    return data[:last] + data[first:]


def _token(data: bytes, rng: Random) -> bytes:
    """Replace one token of a text by another one."""
    tokens = list(islice(TOKEN.finditer(data), 400))
    if not tokens:
        return data
    token = rng.choice(tokens)
    return data[: token.start()] + rng.choice(WORDS) + data[token.end() :]
