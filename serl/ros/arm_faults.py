"""What an arm says of itself on its driver's own topic: a reflex, a stop, a program that ended."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy
from rclpy.serialization import deserialize_message

from serl.arm_profile import FRANKA_STATE, RUNNING, XARM_STATE, Channel
from serl.ros.arm_topics import topic_of
from serl.ros.node import RosNode
from serl.ros.topics import Topic

_PERIOD_S = 0.02
"""Drivers tell their state up to 1,000 times a second, and an error lasts."""

_NEWEST: Any = QoSProfile(depth=1, reliability=ReliabilityPolicy.BEST_EFFORT)
_CHANGES: Any = QoSProfile(
    depth=1,
    reliability=ReliabilityPolicy.RELIABLE,
    durability=DurabilityPolicy.TRANSIENT_LOCAL,
)
_FRANKA_MODES = {4: "a reflex", 5: "that its user stopped it", 6: "that it recovers from an error"}
_XARM_STOPPED = 4


def listen_to_faults(
    node: RosNode, channel: Channel, robot: str, heed: Callable[[str], None]
) -> None:
    """Call back in the executor's thread with what is wrong with an arm, empty when it is well.

    Args:
        node: the process's node.
        channel: the profile's `fault`.
        robot: the arm's namespace.
        heed: is called with each change, and again and again.
    """
    topic, tell, heard_s = fault_topic(channel, robot), _WORDS[channel.type], float("-inf")

    def hear(message: bytes) -> None:
        nonlocal heard_s
        now_s = time.monotonic()
        if channel.type == RUNNING or now_s - heard_s >= _PERIOD_S:
            heard_s = now_s
            heed(tell(deserialize_message(message, topic.kind)))

    node.subscribe(topic, hear, raw=True)


def fault_topic(channel: Channel, robot: str) -> Topic:
    """The topic, listened to as its driver sends it."""
    return topic_of(channel, robot, _CHANGES if channel.type == RUNNING else _NEWEST)


def fault_words(channel: Channel, message: Any) -> str:
    """What a message says is wrong with the arm, after "it reports"; empty when it is well."""
    return _WORDS[channel.type](message)


def _of_program(message: Any) -> str:
    return "" if message.data else "that its program does not run"


def _of_franka(message: Any) -> str:
    errors = message.current_errors
    names = [name for name in errors.get_fields_and_field_types() if getattr(errors, name)]
    mode = _FRANKA_MODES.get(message.robot_mode, "")
    return ": ".join(filter(None, [mode or ("an error" if names else ""), ", ".join(names)]))


def _of_xarm(message: Any) -> str:
    if message.err:
        return f"error {message.err}"
    return "that it is stopped" if message.state >= _XARM_STOPPED else ""


_WORDS: dict[str, Callable[[Any], str]] = {
    RUNNING: _of_program,
    FRANKA_STATE: _of_franka,
    XARM_STATE: _of_xarm,
}
