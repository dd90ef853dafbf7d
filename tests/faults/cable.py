"""A network in one process that is as bad as it is told: the product's ends, without DDS between.

`Node` has what the ends of the stream use of `serl.ros.node.RosNode`. Messages of one topic reach
each of its subscribers; latched ones also those that come later.
"""

from __future__ import annotations

import heapq
import time
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import Any

from rclpy.qos import DurabilityPolicy

from serl.ros.topics import Topic

Callback = Callable[[Any], None]


@dataclass
class Cable:
    """What connects nodes.

    Attributes:
        rng: decides whom it hits.
        drop: share of the messages that are lost.
        duplicate: share that arrives twice.
        delay_s: longest delay; each message has its own, so that they overtake each other.
        hits: names of the topics that suffer so.
    """

    rng: Random
    drop: float = 0.0
    duplicate: float = 0.0
    delay_s: float = 0.0
    hits: tuple[str, ...] = ()
    _nodes: list[Node] = field(default_factory=list)
    _flying: list[tuple[float, int, Callback, Any]] = field(default_factory=list)
    _numbers: count[int] = field(default_factory=count)
    _latched: dict[str, deque[Any]] = field(default_factory=lambda: defaultdict(deque))

    def node(self) -> Node:
        """A process that takes part."""
        self._nodes.append(node := Node(self))
        return node

    def unplug(self, node: Node) -> None:
        """The process died."""
        self._nodes.remove(node)

    def send(self, topic: Topic, message: Any) -> None:
        """Publish."""
        if topic.qos.durability == DurabilityPolicy.TRANSIENT_LOCAL:
            self._latched[topic.name].append(message)
            while len(self._latched[topic.name]) > topic.qos.depth:
                self._latched[topic.name].popleft()
        for node in self._nodes:
            for callback in node.callbacks[topic.name]:
                self._post(topic, callback, message)

    def catch_up(self, topic: Topic, callback: Callback) -> None:
        """What a new subscriber gets."""
        for message in self._latched[topic.name]:
            self._fly(callback, message, 0.0)

    def deliver(self) -> None:
        """Let arrive what is due, and timers run."""
        now_s = time.monotonic()
        for node in self._nodes:
            node.tick(now_s)
        alive = {each for node in self._nodes for some in node.callbacks.values() for each in some}
        while self._flying and self._flying[0][0] <= now_s:
            _, _, callback, message = heapq.heappop(self._flying)
            if callback in alive:
                callback(message)

    def _post(self, topic: Topic, callback: Callback, message: Any) -> None:
        if topic.name not in self.hits:
            self._fly(callback, message, 0.0)
            return
        copies = (self.rng.random() >= self.drop) + (self.rng.random() < self.duplicate)
        for _ in range(copies):
            self._fly(callback, message, self.rng.random() * self.delay_s)

    def _fly(self, callback: Callback, message: Any, delay_s: float) -> None:
        due_s = time.monotonic() + delay_s
        heapq.heappush(self._flying, (due_s, next(self._numbers), callback, message))


class Node:
    """Stands in for a `RosNode`; made by `Cable.node`."""

    def __init__(self, cable: Cable) -> None:
        self.callbacks: dict[str, list[Callback]] = defaultdict(list)
        self._cable = cable
        self._timers: list[tuple[float, Callable[[], None]]] = []
        self._due_s: list[float] = []

    def publisher(self, topic: Topic) -> Any:
        """A publisher on a topic."""
        return _Publisher(self._cable, topic)

    def subscribe(self, topic: Topic, callback: Callback, *, raw: bool = False) -> None:
        """Call back with each message."""
        self.callbacks[topic.name].append(callback)
        self._cable.catch_up(topic, callback)

    def every(self, period_s: float, callback: Callable[[], None]) -> None:
        """Call back periodically."""
        self._timers.append((period_s, callback))
        self._due_s.append(time.monotonic() + period_s)

    def tick(self, now_s: float) -> None:
        """Run the timers that are due."""
        for number, (period_s, callback) in enumerate(self._timers):
            if self._due_s[number] <= now_s:
                self._due_s[number] = now_s + period_s
                callback()


@dataclass(frozen=True)
class _Publisher:
    cable: Cable
    topic: Topic

    def publish(self, message: Any) -> None:
        self.cable.send(self.topic, message)
