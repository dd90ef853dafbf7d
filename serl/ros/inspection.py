"""Snapshots of a ROS graph, and checks for problems in them."""

from __future__ import annotations

import importlib
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy

from serl.ros.node import RosNode
from serl.ros.topics import Topic
from serl.system.json_fields import printable

_ONLY_ONE = ("/command/pose", "/command/gripper", "/heartbeat")
"""Suffixes of topics with one sender per robot, besides the topics that a guard publishes."""
_GUARD = "guard_"
_SHARED = ("/stats", "/diagnostics", "/rosout", "/parameter_events")


class Endpoint(NamedTuple):
    """A publisher or a subscription.

    Attributes:
        node: full name of its node.
        type: message type, as `ros2 interface` writes it.
        reliable: lost messages are sent again.
        latched: late subscribers get the last messages.
        deadline_s: longest time between two messages; infinite without a deadline.
    """

    node: str
    type: str
    reliable: bool = True
    latched: bool = False
    deadline_s: float = math.inf


class TopicInfo(NamedTuple):
    """A topic of the graph, with its endpoints and its rate.

    Attributes:
        name: full name of the topic.
        rate_hz: measured messages per second; None where the topic could not be subscribed to.
    """

    name: str
    publishers: tuple[Endpoint, ...] = ()
    subscriptions: tuple[Endpoint, ...] = ()
    rate_hz: float | None = None

    @property
    def types(self) -> tuple[str, ...]:
        """Message types of its publishers and subscriptions, sorted."""
        return tuple(sorted({end.type for end in (*self.publishers, *self.subscriptions)}))


class GraphInfo(NamedTuple):
    """All nodes, one entry for each, and all topics.

    Attributes:
        nodes: full names; a name that two nodes have is listed twice.
        topics: sorted by name.
    """

    nodes: tuple[str, ...]
    topics: tuple[TopicInfo, ...]


def problems(graph: GraphInfo, expected: Iterable[str] = ()) -> Iterator[str]:
    """Yield one line for each problem of a graph.

    Args:
        graph: the graph that was found.
        expected: full names of nodes that should be running.
    """
    for name, count in sorted(Counter(graph.nodes).items()):
        if count > 1:
            yield f"{name}: {count} nodes have this name"
    for name in sorted(set(expected) - set(graph.nodes)):
        yield f"{name}: this node is missing"
    for topic in graph.topics:
        if len(topic.types) > 1:
            yield f"{topic.name}: has several types: {', '.join(topic.types)}"
        if line := _too_many(topic):
            yield line
        yield from _mismatches(topic)


def _too_many(topic: TopicInfo) -> str:
    """Report several publishers on a topic that has to have one; empty when there is one."""
    senders = sorted({end.node for end in topic.publishers})
    guarded = any(name.rpartition("/")[2].startswith(_GUARD) for name in senders)
    alone = topic.name.endswith(_ONLY_ONE) or (guarded and not topic.name.endswith(_SHARED))
    if alone and len(topic.publishers) > 1:
        return f"{topic.name}: {len(topic.publishers)} publishers command: {', '.join(senders)}"
    return ""


def _mismatches(topic: TopicInfo) -> Iterator[str]:
    for sender in topic.publishers:
        for reader in topic.subscriptions:
            if sender.type == reader.type and (why := mismatch(sender, reader)):
                yield f"{topic.name}: {reader.node} receives nothing from {sender.node}: {why}"


def mismatch(sender: Endpoint, reader: Endpoint) -> str:
    """Return the reason why DDS does not match two endpoints; empty when it does."""
    if reader.reliable and not sender.reliable:
        return "the publisher is best effort, the subscription asks for reliable"
    if reader.latched and not sender.latched:
        return "the publisher is volatile, the subscription asks for transient local"
    if sender.deadline_s > reader.deadline_s:
        offered = "none" if math.isinf(sender.deadline_s) else f"{sender.deadline_s:g} s"
        return (
            f"the subscription asks for a deadline of {reader.deadline_s:g} s, offered: {offered}"
        )
    return ""


_QUIET_S = 1.0
_SETTLED_S = 6.0
_SLICE_S = 0.05
_EVERYTHING: Any = QoSProfile(depth=100, reliability=ReliabilityPolicy.BEST_EFFORT)
_HIDDEN = ("/rosout", "/parameter_events")


class GraphListener:
    """A listener on all topics of a graph, each from the moment of its discovery.

    Args:
        node: this process's node, which is left out of the result.
    """

    def __init__(self, node: RosNode) -> None:
        self._node = node
        self._counts: dict[str, int] = {}
        self._since_s: dict[str, float] = {}

    def settle(self) -> bool:
        """Block until a graph with other nodes has not changed for a second, for 6 s at most.

        Returns:
            Whether there are other nodes.
        """
        begin_s = changed_s = time.monotonic()
        last: object = None
        while (now_s := time.monotonic()) < begin_s + _SETTLED_S:
            present = (self._nodes(), self._topics())
            if present != last:
                last, changed_s = present, now_s
            elif present[0] and now_s - changed_s > _QUIET_S and now_s - begin_s > 2 * _QUIET_S:
                return True
            time.sleep(_SLICE_S)
        return bool(present[0])

    def listen(self, seconds: float) -> GraphInfo:
        """Return the graph, with rates over this many seconds; over the rest for late topics."""
        begin_s = time.monotonic()
        while time.monotonic() - begin_s < seconds and not self._node.stopping:
            self._subscribe_new()
            time.sleep(_SLICE_S)
        topics = (self._topic(name) for name in sorted(self._topics()))
        return GraphInfo(self._nodes(), tuple(topic for topic in topics if _has_ends(topic)))

    def _subscribe_new(self) -> None:
        for name, types in self._topics().items():
            if name in self._counts or len(types) != 1:
                continue
            if (kind := message_class(types[0])) is not None:
                self._counts[name], self._since_s[name] = 0, time.monotonic()
                self._node.subscribe(Topic(name, kind, _EVERYTHING), self._counter(name), raw=True)

    def _counter(self, name: str) -> Callable[[Any], None]:
        def count(message: Any) -> None:
            self._counts[name] += 1

        return count

    def _nodes(self) -> tuple[str, ...]:
        found = self._node.handle.get_node_names_and_namespaces()
        names = sorted(printable(f"{place.rstrip('/')}/{name}") for name, place in found)
        own = self._own
        if own in names:
            names.remove(own)
        return tuple(names)

    def _topics(self) -> dict[str, list[str]]:
        found = self._node.handle.get_topic_names_and_types()
        return {name: list(types) for name, types in found if name not in _HIDDEN}

    def _topic(self, name: str) -> TopicInfo:
        handle, rate_hz = self._node.handle, None
        if name in self._counts:
            rate_hz = self._counts[name] / (time.monotonic() - self._since_s[name])
        publishers = self._ends(handle.get_publishers_info_by_topic(name))
        return TopicInfo(
            printable(name),
            publishers,
            self._ends(handle.get_subscriptions_info_by_topic(name)),
            rate_hz,
        )

    def _ends(self, found: Any) -> tuple[Endpoint, ...]:
        ends = (_endpoint(each) for each in found)
        return tuple(end for end in ends if end.node != self._own)

    @property
    def _own(self) -> str:
        return str(self._node.handle.get_fully_qualified_name())


def message_class(name: str) -> Any:
    """Return the class of `package/msg/Name`; None where its package is not installed."""
    package, _, kind = name.partition("/msg/")
    try:
        return getattr(importlib.import_module(f"{package}.msg"), kind)
    except (ImportError, AttributeError):
        return None


def _endpoint(info: Any) -> Endpoint:
    qos = info.qos_profile
    nanoseconds = qos.deadline.nanoseconds
    return Endpoint(
        node=printable(f"{info.node_namespace.rstrip('/')}/{info.node_name}"),
        type=printable(info.topic_type),
        reliable=qos.reliability == ReliabilityPolicy.RELIABLE,
        latched=qos.durability == DurabilityPolicy.TRANSIENT_LOCAL,
        deadline_s=1e-9 * nanoseconds if 0 < nanoseconds < 1 << 62 else math.inf,
    )


def _has_ends(topic: TopicInfo) -> bool:
    return bool(topic.publishers or topic.subscriptions)
