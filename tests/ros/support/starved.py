"""Whether messages have come to a node that is too busy to take them."""

from __future__ import annotations

from typing import Any

from serl.ros.node import RosNode
from serl.ros.topics import Topic, latest_only


class Waiting:
    """Another reader of a topic in the same process, taken from by hand.

    Its node's executor is busy, and hands over nothing: what has come to one reader of a process
    has come to all.
    """

    def __init__(self, node: RosNode, topic: Topic) -> None:
        self._node, self._kind, self._newest = node, topic.kind, topic.kind()
        self._subscription = node.handle.create_subscription(
            topic.kind, node.absolute(topic.name), self._take, latest_only()
        )

    def hears(self, publisher: Any) -> bool:
        """All readers of the topic in its process know the publisher, and it knows them.

        Either side may know first, and until both do a best-effort message is lost.
        """
        name = self._subscription.topic_name
        readers = [each for each in self._node.handle.subscriptions if each.topic_name == name]
        known = all(reader.get_publisher_count() for reader in readers)
        return known and bool(publisher.get_subscription_count() == len(readers))

    def newest(self) -> Any:
        """The message that came last."""
        handle = self._subscription.handle
        with handle:
            if (taken := handle.take_message(self._kind, False)) is not None:
                self._take(taken[0])
        return self._newest

    def _take(self, message: Any) -> None:
        self._newest = message
