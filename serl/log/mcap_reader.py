"""A reader of MCAP files made by `serl.log.mcap_writer`, also while they are being written."""

from __future__ import annotations

import os
from pathlib import Path
from struct import Struct, error
from typing import NamedTuple
from zlib import crc32

from serl.errors import CorruptData
from serl.log.mcap_writer import BLOCK, CHUNK, FOOTER, INDEX_BYTES, MAGIC, MESSAGE, U32, Opcode
from serl.system.files import Buffer, open_regular
from serl.system.json_fields import short

_STATISTICS = Struct("<QHIIIIQQI")  # eight numbers about the file, length of the counts
_COUNT = Struct("<HQ")  # channel, number of messages
_AHEAD_BYTES = 1 << 20
_DECLARATIONS = {Opcode.HEADER, Opcode.METADATA, Opcode.SCHEMA, Opcode.CHANNEL}


class Block(NamedTuple):
    """A block of an MCAP file: its kind, its content, and the byte at which it starts."""

    opcode: int
    body: memoryview
    start: int


class Chunk(NamedTuple):
    """The messages of one chunk: their channels, their data, and their common sequence and time."""

    channels: list[int]
    data: list[memoryview]
    sequence: int
    time_ns: int


class McapReader:
    """A reader of the blocks of one file in order.

    Args:
        path: MCAP file.
        max_block_bytes: largest length of a block; a longer one is refused before it is read.
        checksum: whether to check the checksum of all data, besides that of each chunk.

    Attributes:
        offset: position of the next unread byte.
        ended: whether all data were read, up to the block that ends them.
    """

    def __init__(self, path: Path, max_block_bytes: int, checksum: bool) -> None:
        self.path = path
        self.offset = 0
        self.ended = False
        self._max_block_bytes = max_block_bytes
        self._checksum = checksum
        self._crc = 0
        self._chunks = 0
        self._ahead = memoryview(b"")  # bytes of the file from `_ahead_start` on
        self._ahead_start = 0
        self._file = open_regular(path, buffering=0)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def next_block(self) -> Block | None:
        """Return the next metadata or chunk block; None when no further one is complete.

        Raises:
            CorruptData: the file is damaged or foreign; the line names the file and the byte.
        """
        if self.offset == 0 and not self._read_magic():
            return None
        while not self.ended and (block := self._read_block()) is not None:
            if block.opcode in (Opcode.METADATA, Opcode.CHUNK):
                return block
            if block.opcode == Opcode.DATA_END:
                if self._checksum and block.body != U32.pack(self._crc):
                    raise self.corrupt(block.start, "the checksum of the data does not match")
                self.ended = True
        return None

    def summary_counts(self) -> dict[int, int]:
        """Return the number of messages by channel, from the summary at the end of the file.

        Raises:
            CorruptData: the file is truncated, or damaged after the data.
        """
        descriptor = self._file.fileno()
        size = os.fstat(descriptor).st_size
        closing = FOOTER.size + len(MAGIC)
        tail = os.pread(descriptor, closing, max(0, size - closing))
        if len(tail) < closing or not tail.endswith(MAGIC):
            raise self.corrupt(size, "does not end as it was sealed: cut, or added to")
        start, _, crc = FOOTER.unpack_from(tail)
        length = size - len(MAGIC) - U32.size - start
        if not 0 <= length <= self._max_block_bytes or (self.ended and start != self.offset):
            raise self.corrupt(size, "the footer does not fit the file")
        summary = os.pread(descriptor, length, start)
        if crc32(summary) != crc:
            raise self.corrupt(start, "the checksum of the summary does not match")
        try:
            return _counts(summary)
        except (error, CorruptData) as cause:
            raise self.corrupt(start, f"summary: {cause}") from cause

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

    def _read_block(self) -> Block | None:
        """Return the block at the offset, or None while it is incomplete."""
        start = self.offset
        head = self._bytes(start, BLOCK.size)
        if head is None:
            return None
        opcode, length = BLOCK.unpack(head)
        if not self._may_follow(opcode, length):
            raise self.corrupt(start, f"unexpected block {opcode} of {length} bytes")
        body = self._bytes(start + BLOCK.size, length)
        if body is None:
            return None
        if self._checksum and opcode != Opcode.DATA_END:
            self._crc = crc32(body, crc32(head, self._crc))
        self._chunks += opcode == Opcode.CHUNK
        self.offset = start + BLOCK.size + length
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
        """Return whether a block may occur here, so that a damaged opcode cannot hide a chunk.

        Declarations come first, indexes are short.
        """
        if opcode in _DECLARATIONS:
            return not self._chunks and length <= self._max_block_bytes
        if opcode == Opcode.MESSAGE_INDEX:
            return self._chunks > 0 and length == INDEX_BYTES
        if opcode == Opcode.DATA_END:
            return length == U32.size
        return opcode == Opcode.CHUNK and length <= self._max_block_bytes


def read_metadata(body: Buffer) -> tuple[str, dict[str, str]]:
    """Return name and content of a metadata block; raise `CorruptData` if it is damaged."""
    try:
        name, rest = _read_text(memoryview(body))
        (length,) = U32.unpack_from(rest)
        rest = rest[U32.size :]
        if len(rest) != length:
            raise CorruptData("metadata: wrong length")
        metadata = {}
        while rest:
            key, rest = _read_text(rest)
            metadata[key], rest = _read_text(rest)
    except (error, UnicodeDecodeError) as cause:
        raise CorruptData(f"metadata: {cause}") from cause
    return name, metadata


def read_chunk(body: Buffer) -> Chunk:
    """Return the messages of a chunk, by channel, as views of `body`.

    Raises:
        CorruptData: the chunk is damaged or foreign.
    """
    try:
        _, _, size, crc, compression, stored = CHUNK.unpack_from(body)
        rest = memoryview(body)[CHUNK.size :]
        if compression != 0 or not size == stored == len(rest):
            raise CorruptData("a chunk that serl did not write")
        if crc32(rest) != crc:
            raise CorruptData("the checksum of the chunk does not match")
        channels: list[int] = []
        data: list[memoryview] = []
        sequence = time_ns = 0
        while rest:
            opcode, length = BLOCK.unpack_from(rest)
            message, rest = rest[BLOCK.size : BLOCK.size + length], rest[BLOCK.size + length :]
            channel, sequence, time_ns, _ = MESSAGE.unpack_from(message)
            if opcode != Opcode.MESSAGE:
                raise CorruptData(f"unexpected block {opcode} in a chunk")
            if channels and channel <= channels[-1]:  # also bounds the memory for a chunk
                raise CorruptData(f"a chunk with channel {channel} after {channels[-1]}")
            channels.append(channel)
            data.append(message[MESSAGE.size :])
    except error as cause:
        raise CorruptData(f"chunk: {cause}") from cause
    return Chunk(channels, data, sequence, time_ns)


def _counts(summary: bytes) -> dict[int, int]:
    """Return the message counts in the statistics block of a summary."""
    rest = memoryview(summary)
    while len(rest) >= BLOCK.size:
        opcode, length = BLOCK.unpack_from(rest)
        body, rest = rest[BLOCK.size : BLOCK.size + length], rest[BLOCK.size + length :]
        if opcode == Opcode.STATISTICS:
            *_, size = _STATISTICS.unpack_from(body)
            if len(body) != _STATISTICS.size + size:
                raise CorruptData("statistics of a wrong length")
            return dict(_COUNT.iter_unpack(body[_STATISTICS.size :]))
    raise CorruptData("it has no statistics")


def _read_text(data: memoryview) -> tuple[str, memoryview]:
    (length,) = U32.unpack_from(data)
    text = bytes(data[U32.size : U32.size + length])
    if len(text) != length:
        raise CorruptData(f"metadata: a text is cut: {short(text)}")
    return text.decode(), data[U32.size + length :]
