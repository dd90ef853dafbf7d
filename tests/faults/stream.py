"""Faults of the acknowledged stream between its real endpoints."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import datetime
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, TypeVar, cast
from unittest.mock import patch

import psutil
from pydantic import BaseModel
from std_msgs.msg import String, UInt64MultiArray

from serl.errors import BadInput
from serl.log.episode_reader import episode_paths, next_epoch
from serl.log.index import Index
from serl.log.metrics import MetricsWriter
from serl.log.recovery import recover
from serl.log.tail import Tail
from serl.log.wire import Hello, WireFrame, actor_number, encode_frame, encode_hello, encode_record
from serl.ros.link import receiver as receiver_module
from serl.ros.link.receiver import Claim, LearnerTransport
from serl.ros.link.sender import StreamSender
from serl.ros.node import RosNode
from serl.ros.nodes.link import WeightsReceiver
from serl.ros.topics import ACKS, ACTORS, REFUSED, TRANSITIONS, WEIGHTS, Topic, to_cdr
from serl.runs.config import resolve
from serl.runs.folder import RunFolder
from serl.runs.resume import Continuation
from serl.specs import Spec
from serl.testing.samples import ACTOR, RUN, open_log
from serl.types import Key

from .cable import Cable
from .records import LARGE, SPEC, episode, keys, write_log
from .refusal import refusal
from .registry import REGISTRY, Level

KILLS = 50
MANY_KILLS = 500
WINDOW = 2
LIMIT_S = 60.0

Model = TypeVar("Model", bound=BaseModel)


class Stream:
    """Sender and learner that can be killed, with log, index and simulated network between them."""

    def __init__(
        self,
        folder: Path,
        cable: Cable,
        episodes: int,
        steps: int,
        spec: Spec = SPEC,
        sender_spec: Spec | None = None,
        claim: Claim | None = None,
    ) -> None:
        write_log(folder / "log", episodes, steps, spec=spec)
        self.expected = [r.key for number in range(episodes) for r in episode(number, steps)]
        self.accepted: list[Key] = []
        self.cable = cable
        self._folder = folder
        self._spec = spec
        self._claim = claim
        self._start_sender(sender_spec or spec)
        self.start_learner()

    def start_learner(self) -> None:
        self.index = Index(self._folder / "index.sqlite")
        self._node = self.cable.node()
        claim = self._claim or self.index.claim
        self.transport = LearnerTransport(
            cast(RosNode, self._node), self._spec, RUN, self.index.cursors, claim
        )

    def kill_learner(self) -> None:
        """Kill the learner: uncommitted records are lost and nothing more is acknowledged."""
        self.cable.unplug(self._node)
        self.index.close()

    def _start_sender(self, spec: Spec) -> None:
        self.sender = StreamSender(cast(RosNode, self.cable.node()), self._folder, WINDOW)
        hello = Hello(RUN, ACTOR, 1, spec, "0" * 32, "place")
        self.sender.start(hello, partial(Tail, self._folder / "log", 1))

    def turn(self) -> None:
        """Run the network and both endpoints once."""
        self.sender.pump()
        self.cable.deliver()

    def accept(self) -> int:
        """Receive and commit in the learner, which acknowledges the records returned before."""
        records = self.transport.receive()
        self.index.accept(records)
        self.accepted += [record.key for record in records]
        return len(records)

    def until(self, condition: Callable[[], object], accept: bool = True) -> None:
        """Call `turn`, and `accept` if set, until the condition holds."""
        deadline_s = time.monotonic() + LIMIT_S
        while not condition():
            self.turn()
            if accept and not self.accept():
                time.sleep(0.001)
            assert time.monotonic() < deadline_s, (len(self.accepted), self.transport.counts)

    def check(self) -> None:
        assert self.accepted == self.expected
        assert self.index.cursors == {(ACTOR, 1): len(self.expected)}


@REGISTRY.fault(
    10,
    "Learner dies around its commit",
    injected=f"{KILLS} times: between receiving and committing a record, or between committing "
    "and acknowledging it",
    required="every record is accepted exactly once, in order",
    level=Level.COMPONENT,
)
def exactly_once(folder: Path) -> None:
    _exactly_once(folder, KILLS)


@REGISTRY.longer(exactly_once, injected=f"{MANY_KILLS} times")
def exactly_once_of_many(folder: Path) -> None:
    _exactly_once(folder, MANY_KILLS)


def _exactly_once(folder: Path, kills: int) -> None:
    rng = Random(10)
    # At most six records between two kills: two per turn after the first.
    stream = Stream(folder, Cable(rng), episodes=kills // 8, steps=49, spec=LARGE)
    # Acknowledgements are always due, as on a slow machine.
    with patch.object(receiver_module, "_ACK_PERIOD_S", 0.0):
        _kill_learner(stream, rng, kills)
        assert 0 < len(stream.accepted) < len(stream.expected), "the kills came too late"
        stream.until(lambda: len(stream.accepted) >= len(stream.expected))
    stream.check()


def _kill_learner(stream: Stream, rng: Random, kills: int) -> None:
    for _ in range(kills):
        for _ in range(rng.randrange(1, 4)):
            stream.turn()
            stream.accept()
        stream.turn()
        if rng.random() < 0.5:
            stream.transport.receive()  # killed before the commit
        else:
            stream.accept()  # killed before the acknowledgement
        stream.kill_learner()
        stream.start_learner()


@REGISTRY.fault(
    12,
    "One message in five is dropped",
    injected="frames and acknowledgements, within one process",
    required="every record is accepted exactly once, in order",
    level=Level.COMPONENT,
)
def dropped(folder: Path) -> None:
    _through(folder, Cable(Random(12), drop=0.2, hits=(TRANSITIONS.name, ACKS.name)))


@REGISTRY.fault(
    14,
    "Delayed, reordered and duplicated messages",
    injected="frames and acknowledgements, within one process: up to 500 ms each, one in ten "
    "duplicated",
    required="every record is accepted exactly once, in order",
    level=Level.COMPONENT,
)
def delayed(folder: Path) -> None:
    hits = (TRANSITIONS.name, ACKS.name)
    _through(folder, Cable(Random(14), duplicate=0.1, delay_s=0.5, hits=hits))


def _through(folder: Path, cable: Cable) -> None:
    stream = Stream(folder, cable, episodes=1, steps=24)
    stream.until(lambda: len(stream.accepted) >= len(stream.expected))
    stream.check()


@REGISTRY.fault(
    17,
    "Actor restarts, also with a clock that was set back",
    injected="20 starts in one folder, each with another clock",
    required="each start is a new epoch, in order; lost 0, duplicated 0",
    level=Level.COMPONENT,
)
def restarted_actor(folder: Path) -> None:
    rng = Random(17)
    epochs = []
    for _ in range(20):
        recover(folder)
        epochs.append(next_epoch(folder, now_ns=lambda: rng.randrange(1, 10**18)))
        with open_log(folder, epochs[-1], SPEC) as log:
            for record in episode(0, 5, epochs[-1]):
                log.append(record)
    assert epochs == sorted(set(epochs))
    assert str(epochs[-1]) in refusal(partial(open_log, folder, epochs[-1], SPEC), BadInput)
    assert len({key for path in episode_paths(folder) for key in keys(path)}) == 20 * 6


@REGISTRY.fault(
    18,
    "Wrong specification or version",
    injected="an actor whose spec differs in one shape, type, bound, unit, rate, name, order or "
    "motion; a frame, a record and an announcement of another version",
    required="refused before the first record, with a message that names the difference",
    level=Level.COMPONENT,
)
def wrong_spec(folder: Path) -> None:
    for number, (what, spec) in enumerate(_other_specs()):
        (place := folder / str(number)).mkdir()
        stream = Stream(place, Cable(Random(18)), 1, 3, sender_spec=spec)
        stream.until(partial(getattr, stream.sender, "refused"))
        assert what in stream.sender.refused, stream.sender.refused
        assert stream.accepted == []
    stream = Stream(folder, Cable(Random(18)), 1, 3)
    stream.until(lambda: len(stream.accepted) >= len(stream.expected))
    publish = stream.cable.node().publisher
    for topic, message in _other_versions():
        publish(topic).publish(message)
        stream.turn()
        assert stream.accept() == 0
    assert stream.transport.counts["corrupt"] == 2
    stream.until(lambda: stream.sender.refused, accept=False)
    assert "header" in stream.sender.refused, stream.sender.refused


def _other_specs() -> Iterator[tuple[str, Spec]]:
    """Yield specs that differ from `SPEC`, each with a name of the difference."""
    first, second = SPEC.observation.state
    array, action = SPEC.observation.state[first], SPEC.action
    states = {
        f"{first}.shape": {**SPEC.observation.state, first: changed(array, shape=(8,))},
        f"{first}.dtype": {**SPEC.observation.state, first: changed(array, dtype="uint8")},
        f"{first}.unit": {**SPEC.observation.state, first: changed(array, unit="mm")},
        f"{first}.low": {**SPEC.observation.state, first: changed(array, low=-1.0)},
        "extra": {**SPEC.observation.state, "extra": array},
        "order": {name: SPEC.observation.state[name] for name in (second, first)},
    }
    for what, state in states.items():
        yield what, changed(SPEC, observation=changed(SPEC.observation, state=state))
    yield "action.shape", changed(SPEC, action=changed(action, shape=(4,)))
    yield "action.high", changed(SPEC, action=changed(action, high=2.0))
    yield "rate_hz", changed(SPEC, rate_hz=20.0)
    yield "motion", changed(SPEC, motion="0.1 m, 0.1 rad, tool frame")
    yield "task", changed(SPEC, task="another")


def changed(model: Model, **fields: object) -> Model:
    return model.model_copy(update=fields)


def _other_versions() -> Iterator[tuple[Topic, Any]]:
    (record, _) = episode(0, 1)
    payload = encode_record(record)
    number = actor_number(RUN, ACTOR)
    other_frame = bytearray(b"".join(encode_frame(WireFrame(number, 1, 4, payload))))
    other_frame[4] ^= 0xFF
    yield TRANSITIONS, to_cdr(bytes(other_frame))
    other_hello = encode_hello(Hello(RUN, ACTOR, 1, SPEC, "0" * 32, "place"))
    yield ACTORS, String(data=other_hello.replace(b'"format":', b'"format":9', 1).decode())
    other_record = payload[:4] + b"\xff\xff" + payload[6:]
    yield TRANSITIONS, to_cdr(*encode_frame(WireFrame(number, 1, 4, other_record)))


@REGISTRY.fault(
    54,
    "Garbage on every topic",
    injected="10,000 random and mutated messages among those of the five topics of the stream",
    required="every record is accepted exactly once; the garbage is counted; memory grows by "
    "less than 50 MB",
    level=Level.COMPONENT,
)
def garbage(folder: Path) -> None:
    _garbage(folder, 10_000)


@REGISTRY.longer(garbage, injected="1,000,000 random and mutated messages")
def much_garbage(folder: Path) -> None:
    _garbage(folder, 1_000_000)


def _garbage(folder: Path, messages: int) -> None:
    run = RunFolder.create(folder / "run", resolve({"task": "reach", "demos": 0}), datetime.now())
    with (
        MetricsWriter(run.path) as metrics,
        closing(Continuation(run, metrics)) as continuation,
    ):
        _shower(folder, messages, continuation.claim)
    assert not run.actors()


def _shower(folder: Path, messages: int, claim: Claim) -> None:
    rng = Random(54)
    stream = Stream(folder, Cable(rng), 7, 49, claim=claim)
    receiver = WeightsReceiver(cast(RosNode, stream.cable.node()), folder / "weights", SPEC.digest)
    overheard: dict[str, list[Any]] = {topic.name: [] for topic in _TOPICS}
    listener = stream.cable.node()
    for topic in _TOPICS:
        listener.subscribe(topic, overheard[topic.name].append)
    publishers = {topic.name: stream.cable.node().publisher(topic) for topic in _TOPICS}
    process = psutil.Process()
    before_bytes = 0
    for number in range(messages):
        topic = rng.choice(_TOPICS)
        publishers[topic.name].publish(_mutated(topic, overheard[topic.name], rng))
        for messages_ in overheard.values():
            del messages_[:-8]
        stream.turn()
        receiver.poll()
        if number % 8 == 0:
            stream.accept()
        if number == messages // 10:
            before_bytes = process.memory_info().rss
    assert process.memory_info().rss - before_bytes < 50e6
    assert not stream.sender.refused, stream.sender.refused
    stream.until(lambda: len(stream.accepted) >= len(stream.expected))
    stream.check()
    assert stream.transport.counts["corrupt"] > messages / 10
    assert receiver.rejected > messages / 10
    assert receiver.version == 0


_TOPICS = (TRANSITIONS, ACTORS, ACKS, REFUSED, WEIGHTS)
_NAMES = ("../../x", "a/b", "/x", ".", "", "a\nb", "a" * 300, "actor7")


def _mutated(topic: Topic, heard: list[Any], rng: Random) -> Any:
    """Return a forged message: random bytes, or a real message with changed bytes."""
    data = rng.randbytes(rng.randrange(200))
    if topic is ACKS:
        return UInt64MultiArray(data=[rng.randrange(1 << 40) for _ in range(rng.randrange(8))])
    if topic.kind is String:
        if heard and rng.random() < 0.5:
            text = rng.choice(heard).data
            if rng.random() < 0.5:
                return String(data=text.replace(json.dumps(ACTOR), json.dumps(rng.choice(_NAMES))))
            place = rng.randrange(len(text) + 1)
            return String(data=text[:place] + chr(rng.randrange(32, 500)) + text[place + 1 :])
        return String(data=data.decode("latin-1"))
    if heard and rng.random() < 0.5:
        real = bytearray(rng.choice(heard) or b"0")
        real[rng.randrange(len(real))] ^= rng.randrange(1, 256)
        return bytes(real)
    return to_cdr(data) if rng.random() < 0.5 else data
