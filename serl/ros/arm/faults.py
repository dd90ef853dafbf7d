"""What an arm says of itself on its driver's own topic: a reflex, a stop, a program that ended."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from rclpy.qos import (
    DurabilityPolicy,
    QoSCompatibility,
    QoSProfile,
    ReliabilityPolicy,
    qos_check_compatible,
)
from rclpy.serialization import deserialize_message

from serl.arm_profile import FRANKA_STATE, RUNNING, XARM_STATE, Channel
from serl.ros.arm.topics import NEWEST, topic_of
from serl.ros.node import RosNode
from serl.ros.topics import Topic
from serl.system.json_fields import printable

_PERIOD_S = 0.02
"""Drivers tell their state up to 1,000 times a second, and an error lasts."""

_SILENT_S = 1.0
"""The slowest of them, an xArm's, tells it five times a second."""

_CHANGES: Any = QoSProfile(
    depth=1,
    reliability=ReliabilityPolicy.RELIABLE,
    durability=DurabilityPolicy.TRANSIENT_LOCAL,
)
_FRANKA_MODES = {4: "a reflex", 5: "that its user stopped it", 6: "that it recovers from an error"}
_XARM_STOPPED = 4


class FaultWatch:
    """Listens to what tells errors of an arm, and notices when nobody tells them any more.

    Args:
        node: the process's node.
        topic: see `fault_topic`.
        tell: what a message says is wrong, in words; empty when the arm is well.
        heed: is called in the executor's thread with each change, and again and again.
        needed: the arm is not known to be well before the first message.
    """

    def __init__(
        self,
        node: RosNode,
        topic: Topic,
        tell: Callable[[Any], str],
        heed: Callable[[str], None],
        needed: bool = True,
    ) -> None:
        self._node, self._topic, self._tell, self._heed = node, topic, tell, heed
        self._name = node.absolute(topic.name)
        self._latched = topic.qos.durability == DurabilityPolicy.TRANSIENT_LOCAL
        self._unheard = needed
        self._seen = self._gone = False
        self._heard_s = float("-inf")
        node.subscribe(topic, self._hear, raw=True)

    def look(self) -> str:
        """Why nobody knows whether the arm is well; empty while somebody says so.

        To be called a few times a second. What is told on changes only is told by who is there;
        what is told again and again is not when it ended for a second. Who leaves without having
        been heard is not missed; who is there and cannot be heard is named.
        """
        if deaf := self._deaf_to():
            return f"{self._name}: {deaf}"
        if self._unheard:
            return f"{self._name}: nobody tells whether the arm is well"
        there = self._node.handle.count_publishers(self._name) > 0
        heard = self._heard_s > float("-inf")
        self._gone |= self._seen and not there and heard
        self._seen = there
        silent = not self._latched and time.monotonic() - self._heard_s > _SILENT_S
        if self._gone or (silent and heard):
            return f"{self._name}: nobody tells any more whether the arm is well"
        return ""

    def _deaf_to(self) -> str:
        """Who publishes there what DDS does not hand over, and why; empty for nobody."""
        kind = self._topic.kind
        expected = f"{kind.__module__.split('.')[0]}/msg/{kind.__name__}"
        for each in self._node.handle.get_publishers_info_by_topic(self._name):
            who = printable(f"{each.node_namespace.rstrip('/')}/{each.node_name}")
            if each.topic_type != expected:
                found = printable(each.topic_type)
                return f"{who} tells {found}, expected {expected}: it is not heard"
            fits, why = qos_check_compatible(each.qos_profile, self._topic.qos)
            if fits == QoSCompatibility.ERROR:
                return f"{who} is not heard: {why.removeprefix('ERROR: ').strip().rstrip(';')}"
        return ""

    def _hear(self, message: bytes) -> None:
        now_s = time.monotonic()
        if self._latched or now_s - self._heard_s >= _PERIOD_S:
            self._heard_s = now_s
            self._heed(self._tell(deserialize_message(message, self._topic.kind)))
            self._unheard = self._gone = False


def fault_topic(channel: Channel, robot: str) -> Topic:
    """The topic, listened to as its driver sends it."""
    return topic_of(channel, robot, _CHANGES if channel.type == RUNNING else NEWEST)


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
