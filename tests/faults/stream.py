"""Faults of the acknowledged stream, between its real ends."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, cast

import numpy as np
import psutil
from std_msgs.msg import String, UInt64MultiArray

from serl.episodes import Tail
from serl.errors import BadInput
from serl.index import Index
from serl.ros.node import RosNode
from serl.ros.stream_sender import StreamSender
from serl.ros.topics import ACKS, ACTORS, REFUSED, TRANSITIONS, WEIGHTS, to_cdr
from serl.ros.transport import LearnerTransport
from serl.ros.weights import WeightsReceiver
from serl.specs import Spec
from serl.testing.logs import ACTOR, RUN
from serl.types import Key
from serl.wire import Frame, Hello, actor_number, encode_frame, encode_record

from .cable import Cable
from .records import LARGE, SPEC, episode, write_log
from .registry import REGISTRY, Level

KILLS = 500
WINDOW = 2
LIMIT_S = 60.0


class Stream:
    """A sender and a learner that can die, with the log, the index and the cable between them."""

    def __init__(self, folder: Path, cable: Cable, episodes: int, steps: int, spec: Spec = SPEC) -> None:
        write_log(folder / "log", episodes, steps, spec=spec)
        self.expected = [r.key for number in range(episodes) for r in episode(number, steps)]
        self.accepted: list[Key] = []
        self.cable = cable
        self._folder = folder
        self._spec = spec
        self._start_sender()
        self.start_learner()

    def start_learner(self) -> None:
        self.index = Index(self._folder / "index.sqlite")
        self._node = self.cable.node()
        self.transport = LearnerTransport(
            cast(RosNode, self._node), self._spec, RUN, self.index.cursors, self.index.claim
        )

    def kill_learner(self) -> None:
        """It dies; what it did not commit is gone, nothing more is acknowledged."""
        self.cable.unplug(self._node)
        self.index.close()

    def _start_sender(self) -> None:
        self.sender = StreamSender(cast(RosNode, self.cable.node()), WINDOW)
        hello = Hello(RUN, ACTOR, 1, self._spec, "0" * 32, "place")
        self.sender.start(hello, partial(Tail, self._folder / "log", 1))

    def turn(self) -> None:
        """Everything has its turn once."""
        self.sender.pump()
        self.cable.deliver()

    def accept(self) -> int:
        """The learner receives and commits; what it returned before is acknowledged by that."""
        records = self.transport.receive()
        self.index.accept(records)
        self.accepted += [record.key for record in records]
        return len(records)

    def until(self, condition: Callable[[], object], accept: bool = True) -> None:
        """Turn, and accept, until the condition holds."""
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
    "Exactly once",
    injected=f"the learner dies {KILLS} times: between receiving and committing, or between "
    "committing and acknowledging",
    required="every record accepted exactly once, in order",
    level=Level.COMPONENT,
)
def exactly_once(folder: Path) -> None:
    rng = Random(10)
    stream = Stream(folder, Cable(rng), episodes=KILLS // 25, steps=49, spec=LARGE)
    for _ in range(KILLS):
        for _ in range(rng.randrange(1, 4)):
            stream.turn()
            stream.accept()
        stream.turn()
        if rng.random() < 0.5:
            stream.transport.receive()  # and dies before the commit
        else:
            stream.accept()  # and dies before the acknowledgement
        stream.kill_learner()
        stream.start_learner()
    assert 0 < len(stream.accepted) < len(stream.expected), "the kills came too late"
    stream.until(lambda: len(stream.accepted) >= len(stream.expected))
    stream.check()


@REGISTRY.fault(
    12,
    "One message in five is dropped",
    injected="in process: frames and acknowledgements",
    required="every record accepted exactly once, in order",
    level=Level.COMPONENT,
)
def dropped(folder: Path) -> None:
    _through(folder, Cable(Random(12), drop=0.2, hits=(TRANSITIONS.name, ACKS.name)), 1)


@REGISTRY.fault(
    14,
    "Delayed, overtaken and doubled messages",
    injected="in process: up to 500 ms each for frames and acknowledgements, one in ten doubled",
    required="every record accepted exactly once, in order (commands come with the arms)",
    level=Level.COMPONENT,
)
def delayed(folder: Path) -> None:
    hits = (TRANSITIONS.name, ACKS.name)
    _through(folder, Cable(Random(14), duplicate=0.1, delay_s=0.5, hits=hits), 2)


def _through(folder: Path, cable: Cable, episodes: int) -> None:
    stream = Stream(folder, cable, episodes, steps=49)
    stream.until(lambda: len(stream.accepted) >= len(stream.expected))
    stream.check()
