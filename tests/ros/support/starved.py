"""Detection of messages that have arrived at a node with a busy executor."""

from __future__ import annotations

from typing import Any

from serl.ros.node import RosNode
from serl.ros.topics import Topic, latest_only


class Waiting:
    """A second reader of a topic in the same process, which is polled without the executor.

    The busy executor of its node delivers nothing, and a message that has come to one reader
    has come to all readers of the process.
    """

    def __init__(self, node: RosNode, topic: Topic) -> None:
        self._node, self._kind, self._newest = node, topic.kind, topic.kind()
        self._subscription = node.handle.create_subscription(
            topic.kind, node.absolute(topic.name), self._take, latest_only()
        )

    def hears(self, publisher: Any) -> bool:
        """Return whether the publisher and all readers of the process have discovered each other.

        Before that a best-effort message is lost.
        """
        name = self._subscription.topic_name
        readers = [each for each in self._node.handle.subscriptions if each.topic_name == name]
        known = all(reader.get_publisher_count() for reader in readers)
        return known and bool(publisher.get_subscription_count() == len(readers))

    def newest(self) -> Any:
        """Return the last message."""
        handle = self._subscription.handle
        with handle:
            if (taken := handle.take_message(self._kind, False)) is not None:
                self._take(taken[0])
        return self._newest

    def _take(self, message: Any) -> None:
        self._newest = message
