"""Checksums of the content of records, by which `serl verify` compares a log with what was learned.

They are of the decoded values: the learner decodes a record from the stream, `verify` decodes it
from the log, and both find the same numbers. They find damage and records that are not those of
the log; they are no proof against somebody who can write into the run's folder.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from struct import Struct
from typing import NamedTuple

import numpy as np
from isal.isal_zlib import crc32

from serl.types import Arrival, Lost, Step

CHECKSUM = Struct("<II")  # of everything but images; of images

BLOCK_RECORDS = 64
_MAX_REASON = 1000  # characters, as `serl.log.wire` cuts it


class ChecksumBlock(NamedTuple):
    """Checksums of some records of a stream that follow each other.

    Attributes:
        first: sequence number of the first record.
        cameras: names of the images that the checksums are of, sorted.
        checksums: 8 bytes for each record.
    """

    first: int
    cameras: tuple[str, ...]
    checksums: bytes

    def contents(self) -> Iterator[tuple[int, bytes]]:
        """Sequence number and checksum of each record."""
        for number in range(len(self.checksums) // CHECKSUM.size):
            start = CHECKSUM.size * number
            yield self.first + number, self.checksums[start : start + CHECKSUM.size]


def extend(blocks: list[ChecksumBlock], sequence: int, record: Arrival) -> None:
    """Add the checksum of a record to the last block, or to a new one behind it.

    Args:
        blocks: of the record's stream.
        sequence: number of the record, which follows those of the last block.
        record: decoded.
    """
    last = blocks[-1] if blocks else None
    cameras = () if isinstance(record, Lost) else tuple(sorted(record.observation.images))
    if isinstance(record, Lost) and last is not None:
        cameras = last.cameras
    full = last is not None and len(last.checksums) >= BLOCK_RECORDS * CHECKSUM.size
    if last is None or full or last.cameras != cameras:
        blocks.append(ChecksumBlock(sequence, cameras, checksum(record, cameras)))
    else:
        checksums = last.checksums + checksum(record, cameras)
        blocks[-1] = last._replace(checksums=checksums)


def checksum(record: Arrival, cameras: Iterable[str]) -> bytes:
    """The checksum of a record as 8 bytes: 4 of everything but images, 4 of images.

    Args:
        record: decoded.
        cameras: names of the images that count, sorted.
    """
    key = record.key
    identity = (key.run, key.actor, int(key.epoch), int(key.episode), int(key.index))
    if isinstance(record, Lost):
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
        fields += [bool(record.success), record.reason[:_MAX_REASON]]
    values = crc32(repr(fields).encode(errors="replace"))
    for array in arrays:
        values = crc32(np.ascontiguousarray(array, np.float32).data, values)
    images = 0
    for name in cameras:
        images = crc32(np.ascontiguousarray(observation.images[name]).data, images)
    return CHECKSUM.pack(values, images)
