"""The learner's end of the link: records of admitted actors in, weights out."""

from __future__ import annotations

import json
import logging
import threading
import time
from array import array
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from std_msgs.msg import String, UInt64MultiArray

from serl.errors import BadInput, CorruptData
from serl.ros.node import RosNode
from serl.ros.topics import ACKS, ACTORS, REFUSED, TRANSITIONS, WEIGHTS, from_cdr, to_cdr
from serl.specs import Spec
from serl.transport import Snapshot
from serl.types import Record
from serl.wire import (
    Frame,
    Hello,
    actor_number,
    decode_frame,
    decode_hello,
    decode_record,
    encode_snapshot,
)

logger = logging.getLogger(__name__)

Cursors = Mapping[tuple[str, int], int]
"""By actor and epoch: the sequence number of the first record that the learner does not hold."""

_MAX_STREAMS = 1024
_ACK_RECORDS = 16
_ACK_PERIOD_S = 0.02
_NACK_PERIOD_S = 0.1


@dataclass
class _Stream:
    """One epoch of one actor; `acknowledged` <= `received` <= `expected`.

    Attributes:
        hello: its introduction.
        number: the actor in frames.
        expected: sequence number of the next frame that is let in.
        received: sequence number after the last record that `receive` returned.
        acknowledged: what the sender was told.
        frames: let in, not yet returned.
        refused: why nothing more is let in; empty while it is.
        answered_s: when the sender was told last.
    """

    hello: Hello
    number: int
    expected: int
    received: int
    acknowledged: int
    frames: deque[Frame] = field(default_factory=deque)
    refused: str = ""
    answered_s: float = float("-inf")

    def due(self, now_s: float) -> bool:
        """There is something to acknowledge: enough, or for long enough (each costs every link)."""
        waiting = self.received - self.acknowledged
        late = now_s - self.answered_s >= _ACK_PERIOD_S
        return waiting >= _ACK_RECORDS or (waiting > 0 and late)


class LearnerTransport:
    """The two calls that a learner uses of `serl.transport.Transport`, over ROS 2.

    What `receive` returned is not acknowledged before `receive` is called again: a learner that
    makes its records and `cursors` durable in between loses and repeats nothing, whenever it dies.
    Callbacks check frames and keep them; records are decoded in the thread that calls `receive`.

    Args:
        node: the process's node.
        spec: what actors must fit.
        run: name of the run that actors must belong to.
        cursors: where a predecessor stopped.

    Attributes:
        counts: frames and hellos by fate: accepted, duplicate, gap, corrupt, stranger, lost,
            refused.
    """

    def __init__(self, node: RosNode, spec: Spec, run: str, cursors: Cursors | None = None) -> None:
        self.counts: Counter[str] = Counter()
        self._spec = spec
        self._run = run
        self._epoch = time.time_ns()
        self._cursors = dict(cursors or {})
        self._streams: dict[tuple[int, int], _Stream] = {}
        self._lock = threading.Lock()
        self._acks = node.publisher(ACKS)
        self._refusals = node.publisher(REFUSED)
        self._weights = node.publisher(WEIGHTS)
        node.subscribe(ACTORS, self._on_hello)
        node.subscribe(TRANSITIONS, self._on_frame, raw=True)
        node.every(1.0, self._say_hello)
        self._say_hello()

    def receive(self) -> Sequence[Record]:
        """Acknowledge what earlier calls returned; return what arrived since, in order per actor.

        A stream whose records cannot be decoded is refused from there on, with the reason.
        """
        with self._lock:
            streams = list(self._streams.values())
            for stream in streams:
                if stream.due(time.monotonic()):
                    stream.acknowledged = stream.received
                    self._answer(stream)
        return [record for stream in streams for record in self._records(stream)]

    @property
    def cursors(self) -> dict[tuple[str, int], int]:
        """How far `receive` has returned each stream; a successor's argument."""
        with self._lock:
            return self._cursors | {
                (stream.hello.actor, stream.hello.epoch): stream.received
                for stream in self._streams.values()
            }

    @property
    def actors(self) -> set[str]:
        """Names of the actors that were let in."""
        with self._lock:
            return {stream.hello.actor for stream in self._streams.values() if not stream.refused}

    def publish(self, snapshot: Snapshot) -> None:
        """Offer new weights to all actors, also to those that come later."""
        self._weights.publish(to_cdr(encode_snapshot(snapshot, self._spec.digest)))

    def _records(self, stream: _Stream) -> list[Record]:
        """Decode what was let in; stops at the first payload that is not this stream's record."""
        records: list[Record] = []
        with self._lock:
            frames, stream.frames = stream.frames, deque()
        for frame in frames:
            try:
                record = decode_record(frame.payload, self._spec)
                _check_sender(record, stream.hello)
            except BadInput as error:
                self._refuse_stream(stream, f"record {frame.sequence}: {error}")
                break
            records.append(record)
            stream.received = frame.sequence + 1
        return records

    def _on_hello(self, message: Any) -> None:
        try:
            hello = decode_hello(message.data.encode())
        except BadInput:
            self.counts["corrupt"] += 1
            return
        number = actor_number(hello.run, hello.actor)
        with self._lock:
            stream = self._streams.get((number, hello.epoch))
            reason = stream.refused if stream else self._objection(hello)
            if reason:
                self._refuse(hello, reason)
                return
            if stream is None:
                cursor = self._cursors.get((hello.actor, hello.epoch), 0)
                stream = _Stream(hello, number, cursor, cursor, cursor)
                self._streams[number, hello.epoch] = stream
            self._answer(stream)

    def _objection(self, hello: Hello) -> str:
        """Why an actor cannot be let in; empty when it can."""
        if hello.run != self._run:
            return f"run {hello.run!r}, the learner's is {self._run!r}"
        if difference := hello.spec.difference(self._spec):
            return f"spec differs, actor's != learner's: {difference}"
        if len(self._streams) >= _MAX_STREAMS:
            return f"{_MAX_STREAMS} streams were let in already"
        return ""

    def _on_frame(self, message: bytes) -> None:
        try:
            frame = decode_frame(from_cdr(message))
        except CorruptData:
            self.counts["corrupt"] += 1
            return
        with self._lock:
            stream = self._streams.get((frame.actor, frame.epoch))
            if stream is None or stream.refused:
                self.counts["stranger"] += 1
            else:
                self._let_in(stream, frame)

    def _let_in(self, stream: _Stream, frame: Frame) -> None:
        if (lost := frame.base - stream.expected) > 0:
            self.counts["lost"] += lost
            logger.error("actor %s lost %d records for good", stream.hello.actor, lost)
            stream.expected = frame.base
        if frame.sequence == stream.expected:
            stream.frames.append(frame)
            stream.expected += 1
            self.counts["accepted"] += 1
            return
        gap = frame.sequence > stream.expected
        self.counts["gap" if gap else "duplicate"] += 1
        if time.monotonic() - stream.answered_s >= _NACK_PERIOD_S:
            self._answer(stream, resend=gap)

    def _answer(self, stream: _Stream, resend: bool = False) -> None:
        stream.answered_s = time.monotonic()
        self._send_ack(stream.number, stream.hello.epoch, stream.acknowledged, resend)

    def _say_hello(self) -> None:
        """Tell actors that a learner is here, and repeat where each stream stands."""
        self._send_ack(0, 0, 0)
        with self._lock:
            for stream in self._streams.values():
                if not stream.refused:
                    self._answer(stream)

    def _send_ack(self, actor: int, epoch: int, held: int, resend: bool = False) -> None:
        numbers = array("Q", (actor, epoch, held, self._epoch, resend))
        self._acks.publish(UInt64MultiArray(data=numbers))

    def _refuse_stream(self, stream: _Stream, reason: str) -> None:
        with self._lock:
            stream.refused = reason
            self._refuse(stream.hello, reason)

    def _refuse(self, hello: Hello, reason: str) -> None:
        self.counts["refused"] += 1
        text = json.dumps({"actor": hello.actor, "epoch": hello.epoch, "reason": reason})
        self._refusals.publish(String(data=text))


def _check_sender(record: Record, hello: Hello) -> None:
    key = record.key
    if (key.run, key.actor, key.epoch) != (hello.run, hello.actor, hello.epoch):
        raise CorruptData(f"says to be of {key.run}/{key.actor}/{key.epoch}")
