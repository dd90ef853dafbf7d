"""Checksums of the content of records, by which `serl verify` compares a log with learned records.

The checksums cover the decoded values: the learner decodes a record from the stream, `verify`
decodes it from the log, and both compute the same numbers. The checksums reveal damage and records
that differ from the log; they do not protect against a writer with access to the run's folder.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from struct import Struct
from typing import NamedTuple
from zlib import crc32

import numpy as np

from serl.types import Arrival, LostRecord, Step

CHECKSUM = Struct("<II")  # checksum of everything but images, checksum of images

BLOCK_RECORDS = 64
_MAX_REASON = 1000  # characters, as in `serl.log.wire`


class ChecksumBlock(NamedTuple):
    """Checksums of consecutive records of a stream.

    Attributes:
        first: sequence number of the first record.
        cameras: names of the images that the checksums cover, sorted.
        checksums: 8 bytes for each record.
    """

    first: int
    cameras: tuple[str, ...]
    checksums: bytes

    def contents(self) -> Iterator[tuple[int, bytes]]:
        """Yield the sequence number and the checksum of each record."""
        for number in range(len(self.checksums) // CHECKSUM.size):
            start = CHECKSUM.size * number
            yield self.first + number, self.checksums[start : start + CHECKSUM.size]


def add_checksum(blocks: list[ChecksumBlock], sequence: int, record: Arrival) -> None:
    """Add the checksum of a record to the last block, or append a new block.

    Args:
        blocks: blocks of the record's stream.
        sequence: sequence number of the record, which follows those of the last block.
        record: the decoded record.
    """
    last = blocks[-1] if blocks else None
    cameras = () if isinstance(record, LostRecord) else tuple(sorted(record.observation.images))
    if isinstance(record, LostRecord) and last is not None:
        cameras = last.cameras
    full = last is not None and len(last.checksums) >= BLOCK_RECORDS * CHECKSUM.size
    if last is None or full or last.cameras != cameras:
        blocks.append(ChecksumBlock(sequence, cameras, checksum(record, cameras)))
    else:
        checksums = last.checksums + checksum(record, cameras)
        blocks[-1] = last._replace(checksums=checksums)


def checksum(record: Arrival, cameras: Iterable[str]) -> bytes:
    """Return the checksum of a record as 8 bytes: 4 for everything but images, 4 for images.

    Args:
        record: the decoded record.
        cameras: names of the images to include, sorted.
    """
    key = record.key
    identity = (key.run, key.actor, int(key.epoch), int(key.episode), int(key.index))
    if isinstance(record, LostRecord):
        return CHECKSUM.pack(crc32(repr((identity, "lost")).encode()), 0)
    observation, arrays = record.observation, []
    fields: list[object] = [identity, float(record.monotonic_s), float(record.wall_s)]
    fields += sorted((name, float(stamp)) for name, stamp in observation.stamps.items())
    for name in sorted(observation.state):
        fields.append(name)
        arrays.append(observation.state[name])
    if isinstance(record, Step):
        arrays += [record.requested, record.action]
        fields += [float(record.reward), record.reward_provenance, bool(record.terminated)]
        fields += [bool(record.truncated), record.source.value, int(record.policy_version)]
    else:
        fields += [bool(record.success), record.text[:_MAX_REASON]]
    values = crc32(repr(fields).encode(errors="replace"))
    for array in arrays:
        values = crc32(np.ascontiguousarray(array, np.float32).data, values)
    images = 0
    for name in cameras:
        images = crc32(np.ascontiguousarray(observation.images[name]).data, images)
    return CHECKSUM.pack(values, images)
