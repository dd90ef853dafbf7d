"""A ROS graph as somebody sees it, and what is wrong with it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

_ONLY_ONE = ("/command/pose", "/command/gripper", "/heartbeat")
"""Ends of topics on which a robot listens to one sender, besides what a guard publishes."""
_GUARD = "guard_"
_SHARED = ("/stats", "/diagnostics", "/rosout", "/parameter_events")


class Endpoint(NamedTuple):
    """A publisher or a subscription.

    Attributes:
        node: full name.
        type: of its messages, as `ros2 interface` writes it.
        reliable: what is lost is sent again.
        latched: who comes later gets the last messages.
        deadline_s: longest time between two messages; infinite without one.
    """

    node: str
    type: str
    reliable: bool = True
    latched: bool = False
    deadline_s: float = math.inf


class TopicSeen(NamedTuple):
    """A topic.

    Attributes:
        name: full name.
        publishers: of it.
        subscriptions: to it.
        rate_hz: messages a second while it was listened to; None where nobody could listen.
    """

    name: str
    publishers: tuple[Endpoint, ...] = ()
    subscriptions: tuple[Endpoint, ...] = ()
    rate_hz: float | None = None

    @property
    def types(self) -> tuple[str, ...]:
        """All that its ends say, sorted."""
        return tuple(sorted({end.type for end in (*self.publishers, *self.subscriptions)}))


class GraphSeen(NamedTuple):
    """All nodes, one entry for each, and all topics.

    Attributes:
        nodes: full names; one that is there twice is twice in it.
        topics: sorted by name.
    """

    nodes: tuple[str, ...]
    topics: tuple[TopicSeen, ...]


def problems(graph: GraphSeen, expected: Iterable[str] = ()) -> Iterator[str]:
    """What is wrong, a line for each; nothing when all is well.

    Args:
        graph: what is there.
        expected: full names of nodes that should be there.
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


def _too_many(topic: TopicSeen) -> str:
    """Who else commands what has to have one commander."""
    senders = sorted({end.node for end in topic.publishers})
    guarded = any(name.rpartition("/")[2].startswith(_GUARD) for name in senders)
    alone = topic.name.endswith(_ONLY_ONE) or (guarded and not topic.name.endswith(_SHARED))
    if alone and len(topic.publishers) > 1:
        return f"{topic.name}: {len(topic.publishers)} publishers command: {', '.join(senders)}"
    return ""


def _mismatches(topic: TopicSeen) -> Iterator[str]:
    for sender in topic.publishers:
        for reader in topic.subscriptions:
            if sender.type == reader.type and (why := mismatch(sender, reader)):
                yield f"{topic.name}: {reader.node} hears nothing of {sender.node}: {why}"


def mismatch(sender: Endpoint, reader: Endpoint) -> str:
    """Why DDS does not match them; empty when it does."""
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
