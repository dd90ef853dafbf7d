"""The topics of a run, with types and quality of service, and the encoding of bulk bytes."""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Any, NamedTuple

from diagnostic_msgs.msg import DiagnosticArray
from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy
from std_msgs.msg import String, UInt8MultiArray, UInt64MultiArray

from serl.errors import CorruptData


class Answer(IntEnum):
    """The reason for a learner's answer; all but the first imply that frames arrive."""

    STANDING = 0
    """The learner repeats its answer, or its cursor moved on."""
    RESEND = 1
    """Frames are missing."""
    HELD = 2
    """The learner has the frame, or no room for it yet."""


class Topic(NamedTuple):
    """A topic, relative to the run's namespace.

    Attributes:
        kind: message type.
        qos: history, reliability, durability.
        authentic: messages carry a tag under the run's key on one host, too; between several
            hosts all messages do.
    """

    name: str
    kind: Any
    qos: Any
    authentic: bool = False


def _reliable(depth: int, latched: bool = False) -> Any:
    durability = DurabilityPolicy.TRANSIENT_LOCAL if latched else DurabilityPolicy.VOLATILE
    return QoSProfile(depth=depth, reliability=ReliabilityPolicy.RELIABLE, durability=durability)


def latest_only() -> Any:
    """Return the quality of service of heartbeats: late messages are dropped."""
    return QoSProfile(depth=1, reliability=ReliabilityPolicy.BEST_EFFORT)


TRANSITIONS = Topic("transitions", UInt8MultiArray, _reliable(512), authentic=True)
"""Frames of `serl.log.wire`, from actors to the learner."""

ACKS = Topic("transitions/ack", UInt64MultiArray, _reliable(64, latched=True), authentic=True)
"""Five numbers, from the learner to actors: actor, epoch, first sequence number not received, the
learner's epoch, and an `Answer`. The learner's hello has 0 for the actor, and the version of the
newest weights for the sequence number."""

ACTORS = Topic("actors", String, _reliable(64, latched=True), authentic=True)
"""Hellos of `serl.log.wire`, from actors to the learner; all actors share its queue depth."""

REFUSED = Topic("refused", String, _reliable(64, latched=True), authentic=True)
"""Refusals as JSON, from the learner to actors: actor, epoch, reason."""

WEIGHTS = Topic("policy/weights", UInt8MultiArray, _reliable(1, latched=True), authentic=True)
"""Snapshots of `serl.training.link`, from the learner to actors."""

STATS = Topic("stats", DiagnosticArray, _reliable(10))
"""Numbers by source, from all nodes to monitors."""


_CDR_HEAD = b"\x00\x01\x00\x00" + bytes(8)  # little endian; no dimensions; offset 0
_LENGTH = struct.Struct("<I")
_PAYLOAD_AT = len(_CDR_HEAD) + _LENGTH.size


def to_cdr(*payload: bytes | memoryview) -> bytes:
    """Serialise a UInt8MultiArray for `publish`, which takes bytes without further copies.

    The bytes are padded to a multiple of four, as CDR may be, so that signing copies them once.

    Args:
        payload: parts of the payload, joined in one copy.
    """
    length = sum(map(len, payload))
    return b"".join((_CDR_HEAD, _LENGTH.pack(length), *payload, bytes(-length % 4)))


def from_cdr(message: bytes | memoryview) -> memoryview:
    """Return the payload of a serialised UInt8MultiArray, as a view.

    Raises:
        CorruptData: the message is something else, or truncated.
    """
    if len(message) < _PAYLOAD_AT or message[: len(_CDR_HEAD)] != _CDR_HEAD:
        raise CorruptData(f"message of {len(message)} bytes: not a plain UInt8MultiArray")
    (length,) = _LENGTH.unpack_from(message, len(_CDR_HEAD))
    if not 0 <= len(message) - _PAYLOAD_AT - length < 4:  # CDR may pad to a multiple of four
        raise CorruptData(f"message of {len(message)} bytes announces {length} of payload")
    return memoryview(message)[_PAYLOAD_AT : _PAYLOAD_AT + length]
