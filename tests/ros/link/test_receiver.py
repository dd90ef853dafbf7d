"""Acceptance and limits of streams at the learner's end of a link."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from std_msgs.msg import String

from serl.log.index import Index
from serl.log.metrics import MetricsWriter
from serl.log.wire import (
    Buffer,
    Hello,
    WireFrame,
    actor_number,
    decode_arrival,
    encode_frame,
    encode_hello,
    encode_record,
)
from serl.ros.link import receiver as transport_module
from serl.ros.link.receiver import LearnerTransport
from serl.ros.node import RosNode
from serl.ros.nodes.learner import LearnerNode
from serl.ros.testing.processes import eventually
from serl.ros.topics import ACKS, ACTORS, REFUSED, TRANSITIONS, to_cdr
from serl.runs.config import resolve
from serl.runs.folder import RunFolder
from serl.runs.resume import Continuation
from serl.specs import Spec
from serl.transport import MAX_LEAD
from serl.types import Arrival, Key, Step

from ..conftest import SPEC, Run, arrived, expected, record

pytestmark = pytest.mark.ros


class Sender:
    """A sender of an actor's messages, in the learner's process.

    Args:
        node: node of the learner's process.
        run: name of the run.
    """

    def __init__(self, node: RosNode, run: str) -> None:
        self._hellos, self._frames = node.publisher(ACTORS), node.publisher(TRANSITIONS)
        self._run = run

    def introduce(self, actor: str, spec: Spec = SPEC, epoch: int = 1) -> None:
        eventually(self._frames.get_subscription_count)
        eventually(self._hellos.get_subscription_count)
        hello = Hello(self._run, actor, epoch, spec, "0" * 32, "here", time.time_ns())
        self._hellos.publish(String(data=encode_hello(hello).decode()))

    def send(self, actor: str, sequence: int, payload: bytes, epoch: int = 1) -> None:
        frame = WireFrame(actor_number(self._run, actor), epoch, sequence, payload)
        self._frames.publish(to_cdr(*encode_frame(frame)))

    def record(self, actor: str, episode: int, index: int) -> bytes:
        return encode_record(record(Key(self._run, actor, 1, episode, index), RNG))


RNG = np.random.default_rng(0)


@pytest.fixture
def index(run: Run) -> Iterator[Index]:
    with Index(run.folder / "index.sqlite") as index:
        yield index


@pytest.fixture
def ends(run: Run) -> Iterator[tuple[LearnerTransport, Sender]]:
    """Yield the transport of a learner, and a sender that has introduced the actor `a`."""
    with RosNode("learner", run.folder) as node:
        transport = LearnerTransport(node, SPEC, run.folder.name)
        sender = Sender(node, run.folder.name)
        sender.introduce("a")
        eventually(lambda: transport.actors == {"a"})
        yield transport, sender


def test_stream_with_wrong_next_episode_after_restart_is_refused(run: Run, index: Index) -> None:
    name = run.folder.name
    index.accept([record(Key(name, "a", 1, 0, number), RNG) for number in range(20)])
    with RosNode("learner", run.folder) as node:
        transport = LearnerTransport(node, SPEC, name, index.cursors, index.claim, index.places)
        sender = Sender(node, name)
        for actor in ("a", "b"):
            sender.introduce(actor)
        eventually(lambda: transport.actors == {"a", "b"})
        sender.send("a", 20, sender.record("a", 7, 0))
        sender.send("b", 0, sender.record("b", 0, 0))
        eventually(lambda: transport.counts["accepted"] == 2)
        index.accept(transport.receive())
        assert transport.actors == {"b"}
        assert index.cursors == {("a", 1): 20, ("b", 1): 1}


def test_link_that_starts_again_while_records_are_decoded_is_accepted(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Introduce an earlier epoch, then the present one again, as a restarted link does."""
    name = run.folder.name
    with RosNode("learner", run.folder) as node:
        answered = list[int]()  # epochs of the learner's answers to actors
        node.subscribe(ACKS, lambda ack: answered.extend(ack.data[1:2] if ack.data[0] else []))
        transport = LearnerTransport(node, SPEC, name)
        sender = Sender(node, name)
        sender.introduce("a")
        eventually(lambda: transport.actors == {"a"})

        def answered_last(epoch: int) -> bool:
            return answered[-1] == epoch

        def received(index: int) -> int:
            sender.send("a", index, sender.record("a", 0, index))
            eventually(lambda: transport.counts["accepted"] == index + 1)
            return len(transport.receive())

        def interrupted(payload: Buffer, spec: Spec) -> Arrival:
            monkeypatch.undo()
            for epoch in (0, 1):
                sender.introduce("a", epoch=epoch)
                eventually(partial(answered_last, epoch))
            return decode_arrival(payload, spec)

        assert received(0) == 1
        monkeypatch.setattr(transport_module, "decode_arrival", interrupted)
        assert [received(index) for index in (1, 2)] == [1, 1]
        assert transport.actors == {"a"}


def test_bytes_in_buffer_are_limited_over_all_actors(
    ends: tuple[LearnerTransport, Sender], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport_module, "_MAX_WAITING_BYTES", 10_000)
    transport, sender = ends
    sender.introduce("b")
    eventually(lambda: transport.actors == {"a", "b"})
    sender.send("a", 0, bytes(9_000))
    sender.send("a", 1, bytes(9_000))
    eventually(lambda: transport.counts["accepted"] == 2)
    sender.send("b", 0, bytes(10))
    eventually(lambda: transport.counts["full"] == 1)
    transport.receive()
    sender.send("b", 0, bytes(10))
    eventually(lambda: transport.counts["accepted"] == 3)


def test_transport_drops_frames_beyond_its_buffer(ends: tuple[LearnerTransport, Sender]) -> None:
    """Send without a window; frames beyond the buffer are dropped and counted as full."""
    transport, sender = ends

    def flood() -> bool:
        first = transport.counts["accepted"]
        for sequence in range(first, first + 100):
            sender.send("a", sequence, b"x")
        return transport.counts["full"] > 0

    eventually(flood)
    assert transport.counts["accepted"] == 1024


def test_transport_accepts_twenty_actors_at_once(ends: tuple[LearnerTransport, Sender]) -> None:
    transport, sender = ends
    names = {f"actor{number}" for number in range(20)}
    for name in names:
        sender.introduce(name)
    eventually(lambda: transport.actors == names | {"a"})


def test_actor_keeps_one_stream_over_many_restarts(ends: tuple[LearnerTransport, Sender]) -> None:
    transport, sender = ends
    for epoch in (*range(2, 40), 1, 40):
        sender.introduce("a", epoch=epoch)

        def is_accepted(epoch: int = epoch, before: int = transport.counts["accepted"]) -> bool:
            sender.send("a", 0, b"waiting", epoch)
            return transport.counts["accepted"] > before

        eventually(is_accepted)
    assert len(transport._streams) == 1
    assert not any(transport.cursors.values())


def test_actor_beyond_the_actors_setting_of_its_run_is_refused(tmp_path: Path) -> None:
    config = resolve({"task": "reach", "actors": 2})
    folder, refusals = RunFolder.create(tmp_path, config, datetime(2026, 11, 21)), list[str]()
    with (
        MetricsWriter(folder.path) as metrics,
        closing(Continuation(folder, metrics)) as continuation,
        RosNode("learner", folder.path, managed=True) as node,
    ):
        transport = LearnerNode(node, folder)._open_end(continuation)
        assert isinstance(transport, LearnerTransport)
        node.subscribe(REFUSED, lambda message: refusals.append(message.data))
        sender = Sender(node, folder.name)
        for actor in ("left", "right"):
            sender.introduce(actor, continuation.spec)
        eventually(lambda: transport.actors == {"left", "right"})
        sender.introduce("evil", continuation.spec)
        eventually(lambda: refusals)
        sender.introduce("left", continuation.spec)  # a known actor may restart
        assert json.loads(refusals[0]) == {
            "actor": "evil",
            "epoch": 1,
            "reason": "the run has its actors: left, right; its setting `actors` allows 2",
        }
        assert transport.actors == {"left", "right"}


@pytest.mark.parametrize("wrong", ["undecodable", "out of order", "of an unpublished policy"])
def test_wrong_record_refuses_its_stream(
    ends: tuple[LearnerTransport, Sender], run: Run, wrong: str
) -> None:
    """Refuse the actor; the learner continues without storing the record."""
    transport, sender = ends
    step = record(Key(run.folder.name, "a", 1, 0, 1), RNG)
    assert isinstance(step, Step)
    payloads = {
        "undecodable": b"nonsense",
        "out of order": sender.record("a", 0, 3),
        "of an unpublished policy": encode_record(replace(step, policy_version=MAX_LEAD + 1)),
    }
    sender.send("a", 0, sender.record("a", 0, 0))
    sender.send("a", 1, payloads[wrong])
    eventually(lambda: transport.counts["accepted"] == 2)
    assert arrived(transport, 1) == expected("a", 1, 1)[:1]
    eventually(lambda: transport.receive() or not transport.actors)
    (stream,) = transport._streams.values()
    assert stream.refused.startswith("record 1: ")
    assert transport.counts["refused"] == 1
    assert transport.cursors == {("a", 1): 1}


def test_actor_name_that_is_no_folder_name_is_rejected(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, resolve({"task": "reach"}), datetime(2026, 11, 21))
    with (
        MetricsWriter(folder.path) as metrics,
        closing(Continuation(folder, metrics)) as continuation,
        RosNode("learner", folder.path) as node,
    ):
        spec = continuation.spec
        transport = LearnerTransport(node, spec, folder.name, claim=continuation.claim)
        sender = Sender(node, folder.name)
        for actor in (wrong := ("../x", "", "a/b", "a\n")):
            sender.introduce(actor, spec)
        eventually(lambda: transport.counts["corrupt"] == len(wrong))
        sender.introduce("a", spec)
        eventually(lambda: transport.actors == {"a"})
        for actor in wrong:
            claimed = continuation.index.claim(actor, "f" * 32, "elsewhere")
            assert claimed == "", "the name must be free"
