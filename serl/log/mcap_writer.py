"""The part of the MCAP file format (https://mcap.dev/spec) that episode files use.

One uncompressed chunk for each call of `McapWriter.write`, written in one system call. The `mcap`
package's own writer copies a camera image six times and checksums it twice; this one never copies
it, and leaves the checksum of the whole file to `finish`. `serl.log.mcap_reader` reads the format.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple
from zlib import crc32

from serl.system.files import Buffer, write_all

MAGIC = b"\x89MCAP0\r\n"

BLOCK = struct.Struct("<BQ")  # opcode, length
CHUNK = struct.Struct("<QQQIIQ")  # first and last time, size, CRC, length of compression, size
MESSAGE = struct.Struct("<HIQQ")  # channel, sequence, log time, publish time
FOOTER = struct.Struct("<QQI")  # start of the summary, start of its offsets, CRC
U32 = struct.Struct("<I")

_U16 = struct.Struct("<H")
INDEX_BYTES = 22
"""Length of a message index of one entry, the only length that `McapWriter` writes."""

_MESSAGE_HEAD = struct.Struct("<BQHIQQ")  # block and message in one
_MESSAGE_INDEX = struct.Struct("<BQHIQQ")  # block, channel, length of the only entry, time, offset
_ENTRY = struct.Struct("<HQ")  # channel, offset or count


class Opcode(IntEnum):
    """Kinds of blocks (the specification's "records")."""

    HEADER = 0x01
    FOOTER = 0x02
    SCHEMA = 0x03
    CHANNEL = 0x04
    MESSAGE = 0x05
    CHUNK = 0x06
    MESSAGE_INDEX = 0x07
    CHUNK_INDEX = 0x08
    STATISTICS = 0x0B
    METADATA = 0x0C
    METADATA_INDEX = 0x0D
    SUMMARY_OFFSET = 0x0E
    DATA_END = 0x0F


_MESSAGE, _INDEX = int(Opcode.MESSAGE), int(Opcode.MESSAGE_INDEX)  # an IntEnum packs slowly


class Schema(NamedTuple):
    """The schema of messages: its name, its language, and its text."""

    name: str
    encoding: str
    text: str


class McapChannel(NamedTuple):
    """A stream of messages; its number is its position in the file's list, from 1.

    Attributes:
        topic: name of the channel.
        encoding: encoding of the messages.
        schema: schema of the messages.
        metadata: further information about the channel.
    """

    topic: str
    encoding: str
    schema: Schema
    metadata: Mapping[str, str] = {}


class _Chunk(NamedTuple):
    """The data of a chunk for the summary."""

    time_ns: int
    start: int
    length: int
    size: int
    indexes: dict[int, int]  # channel -> start of its message index


class McapWriter:
    """A writer of one MCAP file; the caller opens, syncs and closes the file.

    Args:
        descriptor: descriptor of an empty file, open for reading and writing.
        channels: all channels that will be written to.
        name: name of the metadata.
        metadata: metadata of the whole file.
    """

    def __init__(
        self,
        descriptor: int,
        channels: Sequence[McapChannel],
        name: str,
        metadata: Mapping[str, str],
    ) -> None:
        self._descriptor = descriptor
        self._name = name
        self._counts = dict.fromkeys(range(1, len(channels) + 1), 0)
        self._chunks: list[_Chunk] = []
        self._schemas, self._channels = _declarations(channels)
        self._metadata = _block(Opcode.METADATA, _text(name), _map(metadata))
        header = MAGIC + _block(Opcode.HEADER, _text(""), _text("serl"))
        self._metadata_start = len(header)
        self._size = 0
        self._write(header, self._metadata, *self._schemas, *self._channels)

    @property
    def size(self) -> int:
        """The number of bytes written."""
        return self._size

    def write(
        self, messages: Iterable[tuple[int, Sequence[Buffer]]], time_ns: int, sequence: int
    ) -> None:
        """Write messages (channel, pieces of data) as one chunk; at most one for each channel.

        Raises:
            OSError: the file accepts no more data; bytes after the last complete chunk are garbage.
        """
        pieces: list[Buffer] = [b""]  # the chunk's head comes here, once its checksum is known
        size = crc = 0
        index, offsets = [], {}
        for channel, data in messages:
            length = MESSAGE.size + sum(map(len, data))
            head = _MESSAGE_HEAD.pack(_MESSAGE, length, channel, sequence, time_ns, time_ns)
            index.append(_MESSAGE_INDEX.pack(_INDEX, INDEX_BYTES, channel, 16, time_ns, size))
            offsets[channel] = size
            size += BLOCK.size + length
            for piece in (head, *data):
                crc = crc32(piece, crc)
                pieces.append(piece)
            self._counts[channel] += 1
        pieces[0] = BLOCK.pack(Opcode.CHUNK, CHUNK.size + size) + CHUNK.pack(
            time_ns, time_ns, size, crc, 0, size
        )
        start, length = self._size, len(pieces[0]) + size
        entries = {
            channel: start + length + number * _MESSAGE_INDEX.size
            for number, channel in enumerate(offsets)
        }
        self._write(*pieces, *index)
        self._chunks.append(_Chunk(time_ns, start, length, size, entries))

    def finish(self) -> str:
        """Write the checksum of all data, the summary and the end.

        Returns:
            The sha256 of the whole file.

        Raises:
            OSError: the file accepts no more data, or cannot be read back.
        """
        digest = hashlib.sha256()
        crc = self._read_back(digest)
        data_end = _block(Opcode.DATA_END, U32.pack(crc))
        summary = self._summary(self._size + len(data_end))
        self._write(data_end, summary, MAGIC)
        digest.update(data_end + summary + MAGIC)
        return digest.hexdigest()

    def _summary(self, start: int) -> bytes:
        """Return the summary section, from byte `start` up to the closing magic."""
        groups = {
            Opcode.SCHEMA: self._schemas,
            Opcode.CHANNEL: self._channels,
            Opcode.STATISTICS: [self._statistics()],
            Opcode.CHUNK_INDEX: [_chunk_index(chunk) for chunk in self._chunks],
            Opcode.METADATA_INDEX: [
                _block(
                    Opcode.METADATA_INDEX,
                    struct.pack("<QQ", self._metadata_start, len(self._metadata)),
                    _text(self._name),
                )
            ],
        }
        summary, offsets = b"", b""
        for opcode, blocks in groups.items():
            group = b"".join(blocks)
            place = struct.pack("<BQQ", opcode, start + len(summary), len(group))
            offsets += _block(Opcode.SUMMARY_OFFSET, place)
            summary += group
        footer = _block(Opcode.FOOTER, FOOTER.pack(start, start + len(summary), 0))
        summary += offsets + footer[: -U32.size]
        return summary + U32.pack(crc32(summary))

    def _write(self, *pieces: Buffer) -> None:
        write_all(self._descriptor, *pieces)
        self._size += sum(map(len, pieces))

    def _read_back(self, digest: hashlib._Hash) -> int:
        """Return the CRC of all data, read back from the file, and add the data to `digest`."""
        crc = offset = 0
        while offset < self._size:
            data = os.pread(self._descriptor, min(1 << 20, self._size - offset), offset)
            if not data:
                raise OSError("the file is shorter than what was written to it")
            crc = crc32(data, crc)
            digest.update(data)
            offset += len(data)
        return crc

    def _statistics(self) -> bytes:
        times = [chunk.time_ns for chunk in self._chunks] or [0]
        head = struct.pack(
            "<QHIIIIQQ",
            sum(self._counts.values()),
            len(self._schemas),
            len(self._channels),
            0,
            1,
            len(self._chunks),
            min(times),
            max(times),
        )
        return _block(Opcode.STATISTICS, head, _entries(self._counts))


def _declarations(channels: Sequence[McapChannel]) -> tuple[list[bytes], list[bytes]]:
    """Return the blocks of the schemas, each once, and of the channels."""
    schemas = list(dict.fromkeys(channel.schema for channel in channels))
    declared = [
        _block(
            Opcode.SCHEMA,
            _U16.pack(number),
            _text(schema.name),
            _text(schema.encoding),
            _text(schema.text),
        )
        for number, schema in enumerate(schemas, start=1)
    ]
    return declared, [
        _block(
            Opcode.CHANNEL,
            _U16.pack(number) + _U16.pack(schemas.index(channel.schema) + 1),
            _text(channel.topic),
            _text(channel.encoding),
            _map(channel.metadata),
        )
        for number, channel in enumerate(channels, start=1)
    ]


def _chunk_index(chunk: _Chunk) -> bytes:
    times_and_place = struct.pack("<QQQQ", chunk.time_ns, chunk.time_ns, chunk.start, chunk.length)
    sizes = struct.pack(
        "<QIQQ", len(chunk.indexes) * _MESSAGE_INDEX.size, 0, chunk.size, chunk.size
    )
    return _block(Opcode.CHUNK_INDEX, times_and_place, _entries(chunk.indexes), sizes)


def _block(opcode: int, *fields: bytes) -> bytes:
    return b"".join((BLOCK.pack(opcode, sum(map(len, fields))), *fields))


def _text(value: str) -> bytes:
    data = value.encode()
    return U32.pack(len(data)) + data


def _map(values: Mapping[str, str]) -> bytes:
    data = b"".join(_text(part) for item in values.items() for part in item)
    return U32.pack(len(data)) + data


def _entries(values: Mapping[int, int]) -> bytes:
    data = b"".join(_ENTRY.pack(channel, value) for channel, value in values.items())
    return U32.pack(len(data)) + data
