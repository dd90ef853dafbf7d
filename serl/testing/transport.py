"""Conformance tests of transports, and a transport within one process."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from threading import Lock

import numpy as np

from serl.loop import EpisodeKey
from serl.policy import RandomPolicy
from serl.testing.fakes import FakeRobot, FakeTask
from serl.testing.samples import episode, equal
from serl.transport import Snapshot, Transport
from serl.types import Arrival, Record, Step


class InProcess:
    """A transport between an actor and a learner in one process; thread-safe."""

    def __init__(self) -> None:
        self._records: deque[Arrival] = deque()
        self._snapshot: Snapshot | None = None
        self._lock = Lock()

    def send(self, records: Sequence[Arrival]) -> None:
        """Append records to the queue."""
        with self._lock:
            self._records.extend(records)

    def receive(self) -> Sequence[Arrival]:
        """Return all records of the queue and empty it."""
        with self._lock:
            records = list(self._records)
            self._records.clear()
        return records

    def publish(self, snapshot: Snapshot) -> None:
        """Store weights if they are newer than the stored ones."""
        with self._lock:
            if self._snapshot is None or snapshot.version > self._snapshot.version:
                self._snapshot = snapshot

    def latest(self, newer_than: int) -> Snapshot | None:
        """Return the newest weights, or None if their version is not above `newer_than`."""
        snapshot = self._snapshot
        return snapshot if snapshot is not None and snapshot.version > newer_than else None


class TransportSuite(ABC):
    """Conformance tests of `serl.transport.Transport`.

    Attributes:
        patience_s: timeout for data to arrive; the tests continue as soon as it has arrived.
    """

    patience_s = 10.0

    @abstractmethod
    def make(self) -> tuple[Transport, Transport]:
        """Return an actor's end and the learner's end, connected."""

    def test_records_arrive_once_in_order_and_whole(self) -> None:
        """Check that records of several episodes arrive, whatever batches they are sent in."""
        actor, learner = self.make()
        sent = _records(episodes=3)
        actor.send(sent[:1])
        actor.send([])
        actor.send(sent[1:50])
        actor.send(sent[50:])
        arrived = self._receive(learner, len(sent))
        assert [record.key for record in arrived] == [record.key for record in sent]
        for a, b in zip(sent, arrived, strict=True):
            _assert_same(a, b)
        assert list(learner.receive()) == [], "a record came twice"

    def test_sending_does_not_wait_for_the_learner(self) -> None:
        """Check that more than a thousand records can be queued."""
        actor, learner = self.make()
        sent = _records(episodes=40)
        assert len(sent) > 1000
        for record in sent:
            actor.send([record])
        assert len(self._receive(learner, len(sent))) == len(sent)

    def test_there_are_no_weights_before_the_first(self) -> None:
        """Check that there is no snapshot before the first publication."""
        actor, _ = self.make()
        assert actor.latest(0) is None

    def test_the_newest_weights_win(self) -> None:
        """Check that the newest weights arrive, and only if they are newer than requested."""
        actor, learner = self.make()
        for version in (1, 2, 3):
            learner.publish(_snapshot(version))
        snapshot = self._latest(actor, version=3)
        assert actor.latest(3) is None, "version 3 is not newer than 3"
        expected = _snapshot(3)
        assert dict(snapshot.trained) == dict(expected.trained)
        assert equal(snapshot.weights, expected.weights), "weights arrived changed"

    def test_older_weights_do_not_come_back(self) -> None:
        """Check that a late publication of an old version has no effect."""
        actor, learner = self.make()
        learner.publish(_snapshot(2))
        self._latest(actor, version=2)
        learner.publish(_snapshot(1))
        learner.publish(_snapshot(3))
        self._latest(actor, version=3)
        newest = actor.latest(0)
        assert newest is not None
        assert newest.version == 3

    def _receive(self, learner: Transport, count: int) -> list[Arrival]:
        arrived: list[Arrival] = []

        def complete() -> bool:
            arrived.extend(learner.receive())
            return len(arrived) >= count

        self._wait(complete, lambda: f"{len(arrived)} of {count} records arrived")
        return arrived

    def _latest(self, actor: Transport, version: int) -> Snapshot:
        found: list[Snapshot] = []

        def arrived() -> bool:
            snapshot = actor.latest(version - 1)
            found.extend([snapshot] if snapshot else [])
            return bool(found)

        self._wait(arrived, lambda: f"version {version} did not arrive")
        assert found[0].version == version
        return found[0]

    def _wait(self, condition: Callable[[], bool], complaint: Callable[[], str]) -> None:
        deadline_s = time.monotonic() + self.patience_s
        while not condition():
            assert time.monotonic() < deadline_s, f"{complaint()} within {self.patience_s} s"
            time.sleep(0.001)


def _records(episodes: int) -> list[Record]:
    robot, task = FakeRobot(), FakeTask()
    policy = RandomPolicy(robot.action_spec, seed=0)
    return [
        record
        for number in range(episodes)
        for record in episode(robot, task, policy, number, EpisodeKey("run", "actor", 0, number))
    ]


def _snapshot(version: int) -> Snapshot:
    rng = np.random.default_rng(version)
    weights = {"layer.weight": rng.normal(size=(8, 4)).astype(np.float32)}
    return Snapshot(version, {"actor": 10 * version}, weights)


def _assert_same(sent: Record, arrived: Arrival) -> None:
    assert type(sent) is type(arrived)
    for name in sent.__slots__:
        a, b = getattr(sent, name), getattr(arrived, name)
        if name == "observation":
            assert equal(a.state, b.state), f"{sent.key}: state"
            assert equal(a.images, b.images), f"{sent.key}: images"
            assert dict(a.stamps) == dict(b.stamps), f"{sent.key}: stamps"
        elif isinstance(sent, Step) and name in {"requested", "action"}:
            assert np.array_equal(a, b), f"{sent.key}: {name}"
        else:
            assert a == b, f"{sent.key}: {name}: sent {a}, arrived {b}"
