"""The learner's end of the link: it receives records of admitted actors, and sends weights."""

from __future__ import annotations

import json
import threading
import time
from array import array
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rclpy.duration import Duration
from std_msgs.msg import String, UInt64MultiArray

from serl.errors import BadInput, CorruptData
from serl.log.index import Cursors, Stream
from serl.log.wire import (
    Hello,
    WireFrame,
    actor_number,
    decode_arrival,
    decode_frame,
    decode_hello,
)
from serl.ros.node import RosNode
from serl.ros.topics import (
    ACKS,
    ACTORS,
    REFUSED,
    TRANSITIONS,
    WEIGHTS,
    Answer,
    from_cdr,
    to_cdr,
)
from serl.specs import Spec
from serl.training.link import encode_snapshot
from serl.transport import MAX_LEAD, Snapshot
from serl.types import Arrival, Step, place_after

Claim = Callable[[str, str, str], str]
"""Callback: returns why an actor of this name, home and place is refused, empty when it is not."""

_MAX_ACTORS = 1024
_MAX_WAITING = 1024  # frames of one stream
_MAX_WAITING_BYTES = 256 << 20  # of all streams
_ACK_RECORDS = 16
_ACK_PERIOD_S = 0.02
_NACK_PERIOD_S = 0.1
_FLUSH_S = 2


@dataclass
class _Stream:
    """The stream of one epoch of one actor; `acknowledged` <= `received` <= `expected`.

    Attributes:
        hello: the hello that introduced the epoch.
        number: the actor's number in frames.
        expected: sequence number of the next frame to accept.
        received: sequence number after the last record that `receive` took out.
        acknowledged: sequence number that was last sent to the sender.
        place: episode and index of the record to return next; None while unknown.
        frames: accepted frames, not yet returned; bounded, the others are sent again.
        waiting_bytes: size of their payloads.
        refused: the reason why no more frames are accepted; empty while they are.
        answered_s: time of the last answer to the sender.
    """

    hello: Hello
    number: int
    expected: int
    received: int
    acknowledged: int
    place: tuple[int, int] | None
    frames: deque[WireFrame] = field(default_factory=deque)
    waiting_bytes: int = 0
    refused: str = ""
    answered_s: float = float("-inf")

    def due(self, now_s: float) -> bool:
        """Check whether an acknowledgement is due, by number or by age: each costs every link."""
        waiting = self.received - self.acknowledged
        late = now_s - self.answered_s >= _ACK_PERIOD_S
        return waiting >= _ACK_RECORDS or (waiting > 0 and late)

    @property
    def key(self) -> Stream:
        """Actor and epoch."""
        return self.hello.actor, self.hello.epoch

    def take_frames(self) -> deque[WireFrame]:
        """Return the accepted frames, and empty the queue."""
        frames, self.frames, self.waiting_bytes = self.frames, deque(), 0
        self.received += len(frames)
        return frames


class LearnerTransport:
    """The learner's two calls of `serl.transport.Transport`, over ROS 2.

    Records that `receive` returned are not acknowledged before `receive` is called again: a learner
    that makes them durable in between (see `serl.log.index`) loses and repeats nothing, whenever it
    dies. Callbacks check frames and keep them; records are decoded in the thread that calls
    `receive`. An actor has one stream at a time, that of the epoch it introduced last. An
    introduction not sent later than the one before it is a replayed message, and dropped.

    Args:
        spec: the spec that actors must have.
        run: name of the run that actors must belong to.
        cursors: the positions at which a predecessor stopped.
        claim: checks that an actor's name is its own.
        places: episode and index of the record at each cursor, where known.
        actors: highest number of actors to admit; further ones are refused.

    Attributes:
        counts: frames and hellos by fate: accepted, duplicate, gap, full, corrupt, stranger,
            refused, replayed.
    """

    def __init__(
        self,
        node: RosNode,
        spec: Spec,
        run: str,
        cursors: Cursors | None = None,
        claim: Claim = lambda actor, home, place: "",
        places: Mapping[Stream, tuple[int, int]] | None = None,
        actors: int = _MAX_ACTORS,
    ) -> None:
        self.counts: Counter[str] = Counter()
        self._spec = spec
        self._run = run
        self._epoch = time.time_ns()
        self._version = 0
        self._cursors = dict(cursors or {})
        self._places = dict(places or {})
        self._claim = claim
        self._most = actors
        self._streams: dict[int, _Stream] = {}
        self._lock = threading.Lock()
        self._acks = node.publisher(ACKS)
        self._refusals = node.publisher(REFUSED)
        self._weights = node.publisher(WEIGHTS)
        node.subscribe(ACTORS, self._on_hello)
        node.subscribe(TRANSITIONS, self._on_frame, raw=True)
        node.every(1.0, self._announce)
        self._announce()

    def receive(self) -> Sequence[Arrival]:
        """Acknowledge the records of earlier calls; return new ones, in order per actor.

        A stream is refused from the first record that cannot be decoded, with the reason.
        """
        with self._lock:
            streams = list(self._streams.values())
            for stream in streams:
                if stream.due(time.monotonic()):
                    stream.acknowledged = stream.received
                    self._answer(stream)
        return [record for stream in streams for record in self._records(stream)]

    @property
    def cursors(self) -> dict[Stream, int]:
        """Position up to which `receive` returned each stream; an argument for a successor."""
        with self._lock:
            return dict(self._cursors)

    @property
    def actors(self) -> set[str]:
        """Names of the admitted actors."""
        with self._lock:
            return {stream.hello.actor for stream in self._streams.values() if not stream.refused}

    def publish(self, snapshot: Snapshot) -> None:
        """Publish new weights to all actors, including those that join later."""
        self._version = snapshot.version
        self._weights.publish(to_cdr(encode_snapshot(snapshot, self._spec.digest)))

    def flush(self) -> bool:
        """Wait up to 2 s until every link has the newest weights; False when one is too slow."""
        deadline_s = time.monotonic() + _FLUSH_S
        while self._weights.get_subscription_count() < len(self.actors):  # one has just joined
            if time.monotonic() > deadline_s:
                return False
            time.sleep(0.01)
        return bool(self._weights.wait_for_all_acked(Duration(seconds=_FLUSH_S)))

    def _records(self, stream: _Stream) -> list[Arrival]:
        """Decode the accepted frames, up to the first that is not the stream's next record."""
        records: list[Arrival] = []
        with self._lock:
            if self._streams.get(stream.number) is not stream:  # displaced since: sent again
                return []
            frames = stream.take_frames()
            self._cursors[stream.key] = stream.received
            if not frames:
                return []
            self._places.pop(stream.key, None)  # unknown until the last one is decoded
        for frame in frames:
            try:
                record = decode_arrival(frame.payload, self._spec)
                _check(record, stream, self._version + MAX_LEAD)
            except BadInput as error:
                with self._lock:
                    self._cursors[stream.key] = stream.received = frame.sequence
                    self._refuse_stream(stream, f"record {frame.sequence}: {error}")
                break
            stream.place = place_after(record)
            records.append(record)
        if stream.place is not None:
            self._places[stream.key] = stream.place
        return records

    def _on_hello(self, message: Any) -> None:
        try:
            hello = decode_hello(message.data.encode())
        except BadInput:
            self.counts["corrupt"] += 1
            return
        with self._lock:
            stream = self._streams.get(actor_number(hello.run, hello.actor))
            if stream and _is_replayed(hello, stream.hello):
                self.counts["replayed"] += 1
                return
            known = stream and stream.hello._replace(sent_ns=hello.sent_ns) == hello
            if stream and known:
                stream.hello = hello
            if reason := stream.refused if stream and known else self._objection(hello):
                self._refuse(hello, reason)
                return
            self._answer(stream if stream and known else self._admit(hello))

    def _admit(self, hello: Hello) -> _Stream:
        """Create the actor's stream; frames waiting in its previous stream will be sent again."""
        number = actor_number(hello.run, hello.actor)
        cursor = self._cursors.get((hello.actor, hello.epoch), 0)
        place = self._places.get((hello.actor, hello.epoch), None if cursor else (0, 0))
        stream = self._streams[number] = _Stream(hello, number, cursor, cursor, cursor, place)
        return stream

    def _objection(self, hello: Hello) -> str:
        """Return the reason why an actor cannot be admitted; empty when it can."""
        if hello.run != self._run:
            return f"run {hello.run!r}, the learner's is {self._run!r}"
        if difference := hello.spec.difference(self._spec):
            return f"spec differs, actor's != learner's: {difference}"
        known = actor_number(hello.run, hello.actor) in self._streams
        if len(self._streams) >= self._most and not known:
            names = ", ".join(sorted(stream.hello.actor for stream in self._streams.values()))
            return f"the run has its actors: {names}; its setting `actors` allows {self._most}"
        return self._claim(hello.actor, hello.home, hello.place)

    def _on_frame(self, message: bytes) -> None:
        try:
            frame = decode_frame(from_cdr(message))
        except CorruptData:
            self.counts["corrupt"] += 1
            return
        with self._lock:
            stream = self._streams.get(frame.actor)
            if stream is None or stream.hello.epoch != frame.epoch or stream.refused:
                self.counts["stranger"] += 1
            else:
                self._accept(stream, frame)

    def _accept(self, stream: _Stream, frame: WireFrame) -> None:
        full = self._is_full(stream)
        if frame.sequence == stream.expected and not full:
            stream.frames.append(frame)
            stream.waiting_bytes += len(frame.payload)
            stream.expected += 1
            self.counts["accepted"] += 1
            return
        gap = frame.sequence > stream.expected
        self.counts["gap" if gap else "full" if full else "duplicate"] += 1
        if time.monotonic() - stream.answered_s >= _NACK_PERIOD_S:
            self._answer(stream, Answer.RESEND if gap and not full else Answer.HELD)

    def _is_full(self, stream: _Stream) -> bool:
        """Check whether the queues are full, because the learner is slow."""
        waiting_bytes = sum(other.waiting_bytes for other in self._streams.values())
        return len(stream.frames) >= _MAX_WAITING or waiting_bytes >= _MAX_WAITING_BYTES

    def _answer(self, stream: _Stream, answer: Answer = Answer.STANDING) -> None:
        stream.answered_s = time.monotonic()
        self._send_ack(stream.number, stream.hello.epoch, stream.acknowledged, answer)

    def _announce(self) -> None:
        """Announce the learner to actors, and repeat the cursor of each stream."""
        self._send_ack(0, 0, self._version)
        with self._lock:
            for stream in self._streams.values():
                if not stream.refused:
                    self._answer(stream)

    def _send_ack(
        self, actor: int, epoch: int, held: int, answer: Answer = Answer.STANDING
    ) -> None:
        numbers = array("Q", (actor, epoch, held, self._epoch, answer))
        self._acks.publish(UInt64MultiArray(data=numbers))

    def _refuse_stream(self, stream: _Stream, reason: str) -> None:
        stream.refused = reason
        self._refuse(stream.hello, reason)

    def _refuse(self, hello: Hello, reason: str) -> None:
        self.counts["refused"] += 1
        text = json.dumps({"actor": hello.actor, "epoch": hello.epoch, "reason": reason})
        self._refusals.publish(String(data=text))


def _is_replayed(hello: Hello, last: Hello) -> bool:
    """Return whether an introduction was sent before the last one, by the same actor's folder.

    Times of another folder are not comparable: its claim to the name is refused.
    """
    return hello.home == last.home and hello.sent_ns <= last.sent_ns


def _check(record: Arrival, stream: _Stream, highest: int) -> None:
    """Raise `CorruptData` unless the record is the sender's own and the next one.

    The index would not accept any other record. The version of its policy is at most `highest`.
    """
    key = record.key
    hello, found = stream.hello, (key.episode, key.index)
    if isinstance(record, Step) and record.policy_version > highest:
        raise CorruptData(f"policy_version {record.policy_version}, allowed 0-{highest}")
    if (key.run, key.actor, key.epoch) != (hello.run, hello.actor, hello.epoch):
        raise CorruptData(f"claims to be of {key.run}/{key.actor}/{key.epoch}")
    if stream.place not in (None, found):
        raise CorruptData(f"claims to be {found}, expected {stream.place} (episode, index)")
