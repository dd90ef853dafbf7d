"""A reader of MCAP files (https://mcap.dev/spec), also while they are being written.

It finds the records of a file one by one, so that a file that grows or was cut gives all that is
whole, and checks sizes before it reads. The `mcap` package parses the records.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from zlib import crc32

from mcap.data_stream import ReadDataStream
from mcap.exceptions import McapError
from mcap.opcode import Opcode
from mcap.records import Footer, Metadata, Statistics
from mcap.writer import MCAP0_MAGIC

from serl.errors import CorruptData
from serl.system.files import Buffer, open_regular

MAGIC: bytes = MCAP0_MAGIC
HEAD = struct.Struct("<BQ")  # opcode and length of a record
_MESSAGE = struct.Struct("<HIQQ")  # channel, sequence, log time, publish time
_CHUNK = struct.Struct("<QQQIIQ")  # two times, size, checksum, length of a codec's name, length
_CRC = struct.Struct("<I")
CHUNK_HEAD_BYTES = HEAD.size + _CHUNK.size
_INDEX_HEAD = HEAD.pack(Opcode.MESSAGE_INDEX, 22)  # of one entry, as all in episode files
INDEX_BYTES = len(_INDEX_HEAD) + 22
_DATA_END = HEAD.pack(Opcode.DATA_END, _CRC.size)
_FOOTER_BYTES = 20
_AHEAD_BYTES = 1 << 20
MAX_DECLARATIONS = 256
"""Largest number of declarations of a file before its chunks, and of those in its chunks."""
_DECLARATIONS = {Opcode.HEADER, Opcode.METADATA, Opcode.SCHEMA, Opcode.CHANNEL}

Parsed = TypeVar("Parsed", Footer, Metadata, Statistics)


class Block(NamedTuple):
    """A record of an MCAP file: its kind, its content, and the byte at which it starts."""

    opcode: int
    body: memoryview
    start: int


class Messages(NamedTuple):
    """The messages of one chunk.

    Attributes:
        channels: their channels, in order.
        sequence: their common sequence number.
        time_ns: their common time.
        declarations: number of schemas and channels that the chunk declares.
    """

    channels: list[int]
    data: list[memoryview]
    sequence: int
    time_ns: int
    declarations: int


class McapReader:
    """A reader of the records of one file in order.

    Args:
        path: MCAP file.
        max_block_bytes: largest length of a record; a longer one is refused before it is read.
        checksum: whether to check the checksum of all data, besides that of each chunk.

    Attributes:
        offset: position of the next unread byte.
        ended: whether all data were read, up to the record that ends them.
    """

    def __init__(self, path: Path, max_block_bytes: int, checksum: bool) -> None:
        self.path = path
        self.offset = 0
        self.ended = False
        self._max_block_bytes = max_block_bytes
        self._checksum = checksum
        self._crc = 0
        self._chunks = 0
        self._declarations = 0
        self._ahead = memoryview(b"")  # bytes of the file from `_ahead_start` on
        self._ahead_start = 0
        self._file = open_regular(path, buffering=0)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def next_block(self) -> Block | None:
        """Return the next metadata or chunk; None when no further one is complete.

        Raises:
            CorruptData: the file is damaged or foreign; the line names the file and the byte.
        """
        if self.offset == 0 and not self._read_magic():
            return None
        self._skip_indexes()
        while not self.ended and (block := self._read_block()) is not None:
            if block.opcode in (Opcode.METADATA, Opcode.CHUNK):
                return block
            if block.opcode == Opcode.DATA_END:
                if self._checksum and block.body != _CRC.pack(self._crc):
                    raise self.corrupt(block.start, "the checksum of the data does not match")
                self.ended = True
        return None

    def summary_counts(self) -> dict[int, int]:
        """Return the number of messages by channel, from the summary at the end of the file.

        Raises:
            CorruptData: the file is truncated, or damaged after the data.
        """
        start, summary = self._summary()
        try:
            for opcode, body in _split(summary[: -(HEAD.size + _FOOTER_BYTES - _CRC.size)]):
                if opcode == Opcode.STATISTICS:
                    return dict(parse(Statistics, body).channel_message_counts)
        except CorruptData as cause:
            raise self.corrupt(start, f"summary: {cause}") from cause
        raise self.corrupt(start, "summary: it has no statistics")

    def checked_data(self, max_bytes: int) -> bytes | None:
        """Return all bytes of a sealed file before its summary; the offset stays where it is.

        Returns:
            None if they are more than `max_bytes`, or do not fit their checksum.

        Raises:
            CorruptData: the file is truncated, or damaged after the data.
        """
        size = self._summary()[0] - len(_DATA_END) - _CRC.size
        if not 0 < size <= max_bytes:
            return None
        data = os.pread(self._file.fileno(), size, 0)
        end = os.pread(self._file.fileno(), len(_DATA_END) + _CRC.size, size)
        return data if end == _DATA_END + _CRC.pack(crc32(data)) else None

    def _summary(self) -> tuple[int, bytes]:
        """Return the position and the bytes of the checked summary, with a part of the footer."""
        descriptor = self._file.fileno()
        size = os.fstat(descriptor).st_size
        tail = os.pread(descriptor, _FOOTER_BYTES + len(MAGIC), max(0, size - _FOOTER_BYTES - 8))
        if len(tail) < _FOOTER_BYTES + len(MAGIC) or not tail.endswith(MAGIC):
            raise self.corrupt(size, "does not end as it was sealed: cut, or added to")
        footer = parse(Footer, tail[:_FOOTER_BYTES])
        start, end = footer.summary_start, size - len(MAGIC) - _CRC.size
        if not 0 <= end - start <= self._max_block_bytes or (self.ended and start != self.offset):
            raise self.corrupt(size, "the footer does not fit the file")
        summary = os.pread(descriptor, end - start, start)
        if crc32(summary) != footer.summary_crc:
            raise self.corrupt(start, "the checksum of the summary does not match")
        return start, summary

    def corrupt(self, offset: int, cause: str) -> CorruptData:
        """Return the error that names the file, the byte and the cause."""
        return CorruptData(f"{self.path}: byte {offset}: {cause}")

    def _read_magic(self) -> bool:
        magic = os.pread(self._file.fileno(), len(MAGIC), 0)
        if not MAGIC.startswith(magic):
            raise self.corrupt(0, "not an MCAP file")
        if magic == MAGIC:
            self.offset = len(magic)
            self._crc = crc32(magic)
        return magic == MAGIC

    def _skip_indexes(self) -> None:
        """Go on after the complete indexes at the offset, of which a step has several."""
        while self._chunks and (index := self._bytes(self.offset, INDEX_BYTES)) is not None:
            if index[: len(_INDEX_HEAD)] != _INDEX_HEAD:
                return
            if self._checksum:
                self._crc = crc32(index, self._crc)
            self.offset += INDEX_BYTES

    def _read_block(self) -> Block | None:
        """Return the record at the offset, or None while it is incomplete."""
        start = self.offset
        head = self._bytes(start, HEAD.size)
        if head is None:
            return None
        opcode, length = HEAD.unpack(head)
        if not self._may_follow(opcode, length):
            raise self.corrupt(start, f"unexpected record {opcode} of {length} bytes")
        body = self._bytes(start + HEAD.size, length)
        if body is None:
            return None
        if self._checksum and opcode != Opcode.DATA_END:
            self._crc = crc32(body, crc32(head, self._crc))
        self._chunks += opcode == Opcode.CHUNK
        self._declarations += opcode in _DECLARATIONS
        self.offset = start + HEAD.size + length
        return Block(opcode, body, start)

    def _bytes(self, start: int, length: int) -> memoryview | None:
        """Return bytes of the file, or None while it is shorter; read ahead beyond them."""
        place = start - self._ahead_start
        if not 0 <= place <= len(self._ahead) - length:
            descriptor = self._file.fileno()
            there = os.fstat(descriptor).st_size - start
            if there < length:
                return None
            data = os.pread(descriptor, min(there, max(length, _AHEAD_BYTES)), start)
            self._ahead, self._ahead_start, place = memoryview(data), start, 0
            if len(data) < length:
                return None
        return self._ahead[place : place + length]

    def _may_follow(self, opcode: int, length: int) -> bool:
        """Return whether a record may occur here, so that a damaged opcode cannot hide a chunk.

        Declarations are few and come first, indexes are short.
        """
        if opcode in _DECLARATIONS:
            few = self._declarations < MAX_DECLARATIONS
            return few and not self._chunks and length <= self._max_block_bytes
        if opcode == Opcode.MESSAGE_INDEX:
            return self._chunks > 0 and length == INDEX_BYTES - len(_INDEX_HEAD)
        if opcode == Opcode.DATA_END:
            return length == _CRC.size
        return opcode == Opcode.CHUNK and length <= self._max_block_bytes


def parse(kind: type[Parsed], body: Buffer) -> Parsed:
    """Return the content of a record; raise `CorruptData` unless it is exactly one of its kind."""
    stream = ReadDataStream(BytesIO(body))
    try:
        record: Any = kind.read(stream)
    except (McapError, struct.error, ValueError, OverflowError) as cause:
        raise CorruptData(f"{kind.__name__}: {type(cause).__name__}: {cause}") from cause
    if stream.count != len(body):
        raise CorruptData(f"{kind.__name__}: a wrong length")
    return record


def read_messages(body: Buffer) -> Messages:
    """Return the messages of a chunk, at most one for each channel, in the order of channels.

    Raises:
        CorruptData: the chunk is damaged or foreign.
    """
    if len(body) < _CHUNK.size:
        raise CorruptData("Chunk: a wrong length")
    _, _, size, checksum, codec, length = _CHUNK.unpack_from(body)
    if codec or size != length:
        raise CorruptData("a chunk that serl did not write")
    records = memoryview(body)[_CHUNK.size :]
    if length != len(records):
        raise CorruptData("Chunk: a wrong length")
    if crc32(records) != checksum:
        raise CorruptData("the checksum of the chunk does not match")
    channels, data = list[int](), list[memoryview]()
    sequence = time_ns = declarations = 0
    for opcode, content in _split(records):
        if opcode in (Opcode.SCHEMA, Opcode.CHANNEL) and not channels:
            declarations += 1
            if declarations > MAX_DECLARATIONS:
                raise CorruptData(f"more than {MAX_DECLARATIONS} schemas and channels")
            continue
        if opcode != Opcode.MESSAGE or len(content) < _MESSAGE.size:
            raise CorruptData(f"unexpected record {opcode} in a chunk")
        channel, sequence, time_ns, _ = _MESSAGE.unpack_from(content)
        if channels and channel <= channels[-1]:  # also bounds the memory for a chunk
            raise CorruptData(f"a chunk with channel {channel} after {channels[-1]}")
        channels.append(channel)
        data.append(content[_MESSAGE.size :])
    return Messages(channels, data, sequence, time_ns, declarations)


def _split(data: Buffer) -> Iterator[tuple[int, memoryview]]:
    """Yield opcode and content of consecutive records; raise `CorruptData` if one is cut."""
    place, view, end = 0, memoryview(data), len(data)
    while place < end:
        if end - place < HEAD.size:
            raise CorruptData("a record is cut")
        opcode, length = HEAD.unpack_from(view, place)
        place += HEAD.size
        if length > end - place:
            raise CorruptData(f"a record of {length} bytes is cut")
        yield opcode, view[place : place + length]
        place += length
