"""The topics of a run, with types and quality of service, and how bulk bytes become messages."""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Any, NamedTuple

from diagnostic_msgs.msg import DiagnosticArray
from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy
from std_msgs.msg import String, UInt8MultiArray, UInt64MultiArray

from serl.errors import CorruptData


class Answer(IntEnum):
    """Why a learner answers; all but the first say that frames arrive."""

    STANDING = 0
    """It repeats, or moved on."""
    RESEND = 1
    """Frames are missing."""
    HELD = 2
    """It has the frame, or no room for it yet."""


class Topic(NamedTuple):
    """A topic, relative to the run's namespace.

    Attributes:
        name: relative name.
        kind: message type.
        qos: history, reliability, durability.
        authentic: messages bear a tag under the run's key on one host, too; between several
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
    """For beats: what is late is not wanted any more."""
    return QoSProfile(depth=1, reliability=ReliabilityPolicy.BEST_EFFORT)


TRANSITIONS = Topic("transitions", UInt8MultiArray, _reliable(512), authentic=True)
"""Frames of `serl.log.wire`, actors to learner."""

ACKS = Topic("transitions/ack", UInt64MultiArray, _reliable(64, latched=True), authentic=True)
"""Five numbers, learner to actors: actor, epoch, first sequence number not yet held, the
learner's epoch, and an `Answer`. Its hello has 0 for the actor, and for the sequence number the
version of the newest weights."""

ACTORS = Topic("actors", String, _reliable(64, latched=True), authentic=True)
"""Hellos of `serl.log.wire`, actors to learner; all share the depth of the reader's queue."""

REFUSED = Topic("refused", String, _reliable(64, latched=True), authentic=True)
"""JSON, learner to actors: actor, epoch, reason."""

WEIGHTS = Topic("policy/weights", UInt8MultiArray, _reliable(1, latched=True), authentic=True)
"""Snapshots of `serl.training.link`, learner to actors."""

STATS = Topic("stats", DiagnosticArray, _reliable(10))
"""Numbers by source, everybody to whoever looks."""


_CDR_HEAD = b"\x00\x01\x00\x00" + bytes(8)  # little endian; no dimensions; offset 0
_LENGTH = struct.Struct("<I")
_PAYLOAD_AT = len(_CDR_HEAD) + _LENGTH.size


def to_cdr(payload: bytes) -> bytes:
    """A serialised UInt8MultiArray, which `publish` takes as it is (a message costs copies).

    It is padded to a multiple of four bytes, as CDR may, so that signing it copies it once.
    """
    padding = bytes(-len(payload) % 4)
    return b"".join((_CDR_HEAD, _LENGTH.pack(len(payload)), payload, padding))


def from_cdr(message: bytes | memoryview) -> memoryview:
    """The payload of a serialised UInt8MultiArray, as a view.

    Raises:
        CorruptData: the message is something else, or cut.
    """
    if len(message) < _PAYLOAD_AT or message[: len(_CDR_HEAD)] != _CDR_HEAD:
        raise CorruptData(f"message of {len(message)} bytes: not a plain UInt8MultiArray")
    (length,) = _LENGTH.unpack_from(message, len(_CDR_HEAD))
    if not 0 <= len(message) - _PAYLOAD_AT - length < 4:  # CDR may pad to a multiple of four
        raise CorruptData(f"message of {len(message)} bytes announces {length} of payload")
    return memoryview(message)[_PAYLOAD_AT : _PAYLOAD_AT + length]
