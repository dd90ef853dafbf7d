"""Sound checksums around content that no writer of ours makes."""

from __future__ import annotations

import struct
import tracemalloc
from pathlib import Path
from zlib import crc32

import pytest
from mcap.opcode import Opcode

from serl.errors import CorruptData
from serl.log.episode_reader import count_records, read_episode
from serl.log.mcap_reader import HEAD, MAGIC, read_messages
from serl.log.ros_messages import U32
from serl.testing.samples import SPEC, random_records, write_log

from ..support.mutations import CHUNK

FOOTER = struct.Struct("<QQI")  # start of the summary, start of its offsets, CRC
MESSAGE = struct.Struct("<HIQQ")


def with_statistics(path: Path, body: bytes | None) -> None:
    """Replace what the summary says of the number of messages; its checksum is right again."""
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
def test_a_summary_with_other_statistics_is_refused(tmp_path: Path, body: bytes | None) -> None:
    path, *_ = write_log(tmp_path, random_records(3))
    with_statistics(path, body)
    for read in (count_records, lambda path: read_episode(path, SPEC)):
        with pytest.raises(CorruptData, match=str(path)):
            read(path)


def test_a_chunk_of_tiny_messages_costs_no_more_than_it_holds() -> None:
    body = (HEAD.pack(Opcode.MESSAGE, MESSAGE.size) + MESSAGE.pack(1, 0, 0, 0)) * 100_000
    chunk = CHUNK.pack(0, 0, len(body), crc32(body), 0, len(body)) + body
    tracemalloc.start()
    with pytest.raises(CorruptData, match="channel 1 after 1"):
        read_messages(chunk)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak_bytes < 2 * len(chunk)
