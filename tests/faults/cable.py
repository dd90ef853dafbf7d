"""Simulated unreliable network in one process: the product's endpoints without DDS.

`Node` implements the part of `serl.ros.node.RosNode` that the stream uses. Messages of a topic
reach each of its subscribers; latched messages also reach later subscribers.
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
    """Simulated network between nodes.

    Attributes:
        rng: random generator that selects the affected messages.
        drop: share of messages that are lost.
        duplicate: share of messages that arrive twice.
        delay_s: maximum delay; each message draws its own, so messages can overtake each other.
        hits: names of the affected topics.
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
        """Return a new node, which stands for a process."""
        self._nodes.append(node := Node(self))
        return node

    def unplug(self, node: Node) -> None:
        """Remove a node, as when its process dies."""
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
        """Deliver the latched messages of a topic to a new subscriber."""
        for message in self._latched[topic.name]:
            self._fly(callback, message, 0.0)

    def deliver(self) -> None:
        """Deliver due messages and run timers."""
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
    """Stand-in for a `RosNode`, created by `Cable.node`."""

    def __init__(self, cable: Cable) -> None:
        self.callbacks: dict[str, list[Callback]] = defaultdict(list)
        self._cable = cable
        self._timers: list[tuple[float, Callable[[], None]]] = []
        self._due_s: list[float] = []

    def publisher(self, topic: Topic) -> Any:
        """Return a publisher on a topic."""
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
