"""Test files with valid checksums but content that the writer never produces."""

from __future__ import annotations

import struct
import tracemalloc
from contextlib import closing
from pathlib import Path
from zlib import crc32

import pytest
from mcap.opcode import Opcode

from serl.errors import CorruptData
from serl.log.episode_reader import EpisodeFile, count_records, read_episode
from serl.log.mcap_reader import HEAD, MAGIC, MAX_DECLARATIONS, McapReader, read_messages
from serl.log.ros_messages import U32
from serl.testing.samples import BLIND, SPEC, leave_open, random_records, write_log

from ..support.mutations import CHUNK

FOOTER = struct.Struct("<QQI")  # start of the summary, start of its offsets, CRC
MESSAGE = struct.Struct("<HIQQ")


def with_statistics(path: Path, body: bytes | None) -> None:
    """Replace the statistics record of the summary and correct the checksum."""
    data = path.read_bytes()
    (start, *_) = FOOTER.unpack_from(data, len(data) - len(MAGIC) - FOOTER.size)
    pieces, place = [], start
    while place < len(data) - len(MAGIC) - FOOTER.size - HEAD.size:
        opcode, length = HEAD.unpack_from(data, place)
        if opcode != Opcode.STATISTICS:
            pieces.append(data[place : place + HEAD.size + length])
        elif body is not None:
            pieces.append(HEAD.pack(opcode, len(body)) + body)
        place += HEAD.size + length
    footer = HEAD.pack(Opcode.FOOTER, FOOTER.size) + FOOTER.pack(start, 0, 0)
    summary = b"".join(pieces) + footer[: -U32.size]
    path.write_bytes(data[:start] + summary + U32.pack(crc32(summary)) + MAGIC)


@pytest.mark.parametrize("body", [None, b"", bytes(51), bytes(57)])
def test_summary_with_wrong_statistics_is_refused(tmp_path: Path, body: bytes | None) -> None:
    path, *_ = write_log(tmp_path, random_records(3))
    with_statistics(path, body)
    for read in (count_records, lambda path: read_episode(path, SPEC)):
        with pytest.raises(CorruptData, match=str(path)):
            read(path)


def test_chunk_of_tiny_messages_uses_bounded_memory() -> None:
    body = (HEAD.pack(Opcode.MESSAGE, MESSAGE.size) + MESSAGE.pack(1, 0, 0, 0)) * 100_000
    chunk = CHUNK.pack(0, 0, len(body), crc32(body), 0, len(body)) + body
    tracemalloc.start()
    with pytest.raises(CorruptData, match="channel 1 after 1"):
        read_messages(chunk)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak_bytes < 2 * len(chunk)


@pytest.mark.parametrize("opcode", [Opcode.SCHEMA, Opcode.CHANNEL])
def test_too_many_declarations_are_refused(tmp_path: Path, opcode: Opcode) -> None:
    declaration = HEAD.pack(opcode, 0)
    for number, allowed in ((MAX_DECLARATIONS, True), (MAX_DECLARATIONS + 1, False)):
        body = declaration * number
        chunk = CHUNK.pack(0, 0, len(body), crc32(body), 0, len(body)) + body
        if allowed:
            assert read_messages(chunk).declarations == number
        else:
            with pytest.raises(CorruptData, match="more than 256 schemas and channels"):
                read_messages(chunk)
    path = tmp_path / "1-000000.mcap"
    path.write_bytes(MAGIC + declaration * (MAX_DECLARATIONS + 1))
    reader = McapReader(path, 1 << 20, checksum=False)
    with closing(reader), pytest.raises(CorruptData, match="unexpected record"):
        reader.next_block()


def test_declaration_limit_covers_all_chunks(tmp_path: Path) -> None:
    part = leave_open(tmp_path, random_records(2, spec=BLIND, ended=False), BLIND)
    with closing(EpisodeFile(part)) as file:
        _, second = [message.offset for message in file.prefix()]
    data = part.read_bytes()
    start = second + HEAD.size
    (_, length) = HEAD.unpack_from(data, second)
    old = data[start : start + length]
    body = HEAD.pack(Opcode.SCHEMA, 0) * MAX_DECLARATIONS + old[CHUNK.size :]
    chunk = CHUNK.pack(*CHUNK.unpack_from(old)[:2], len(body), crc32(body), 0, len(body)) + body
    part.write_bytes(data[:second] + HEAD.pack(Opcode.CHUNK, len(chunk)) + chunk)
    with closing(EpisodeFile(part)) as file:
        assert file.next_message() is not None
        with pytest.raises(CorruptData, match="more than 256 schemas and channels"):
            file.next_message()
