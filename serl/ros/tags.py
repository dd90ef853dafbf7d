"""Messages signed by tags under the key of a topic; see `serl.system.authentication`."""

from __future__ import annotations

from typing import Any

from rclpy.duration import Duration
from rclpy.impl.implementation_singleton import rclpy_implementation
from rclpy.serialization import deserialize_message, serialize_message

from serl.system.authentication import sign, verify


class Signer:
    """A publisher that adds a tag to each message."""

    def __init__(self, publisher: Any, key: bytes) -> None:
        self._publisher = publisher
        self._key = key

    def publish(self, message: Any) -> None:
        """Sign and publish a message, or its CDR bytes."""
        serialized = message if isinstance(message, bytes) else serialize_message(message)
        self._publisher.publish(sign(self._key, serialized))

    def get_subscription_count(self) -> int:
        """Return the number of matched subscriptions, like rclpy's publishers."""
        return int(self._publisher.get_subscription_count())

    def wait_for_all_acked(self, timeout: Duration) -> bool:
        """Wait until all messages are acknowledged, like rclpy's publishers; False on timeout."""
        return bool(self._publisher.wait_for_all_acked(timeout))


def opened(key: bytes, signed: bytes, kind: Any = None) -> Any:
    """Return the content of a signed message; None if its tag or its type is invalid.

    Args:
        key: key of the topic.
        signed: CDR bytes and the tag.
        kind: type of the message; None leaves the content as CDR bytes.
    """
    message = verify(key, signed)
    if message is None or kind is None:
        return message
    try:
        return deserialize_message(bytes(message), kind)
    except rclpy_implementation.RMWError:
        return None
