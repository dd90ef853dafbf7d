"""Faults that an arm's driver reports on its own topic: a reflex, a stop, a program that ended."""

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

from serl.arm_profile import FRANKA_STATE, KORTEX_FAULT, RUNNING, XARM_STATE, Channel
from serl.ros.arm.topics import NEWEST, topic_of
from serl.ros.node import RosNode
from serl.ros.topics import Topic
from serl.system.json_fields import printable

_PERIOD_S = 0.02
"""Least time between messages that are evaluated: drivers send up to 1,000 a second, and errors
persist."""

_SILENT_S = 1.0
"""Time without a message after which a driver has timed out; the slowest, an xArm's, sends five a
second."""

_CHANGES: Any = QoSProfile(
    depth=1,
    reliability=ReliabilityPolicy.RELIABLE,
    durability=DurabilityPolicy.TRANSIENT_LOCAL,
)
_FRANKA_MODES = {4: "a reflex", 5: "that its user stopped it", 6: "that it recovers from an error"}
_XARM_PAUSED = 3  # the states above it are stops
_XARM_MODES = (1, 4)  # in which its driver sends joint angles, or joint velocities


class FaultWatch:
    """Subscriber to an arm's fault topic that also detects the loss of its publisher.

    Args:
        topic: see `fault_topic`.
        describe: returns the fault in a message, in words; empty when the arm is well.
        on_fault: called in the executor's thread with the fault of each evaluated message; empty
            for none.
        needed: whether the arm counts as unmonitored before the first message.
    """

    def __init__(
        self,
        node: RosNode,
        topic: Topic,
        describe: Callable[[Any], str],
        on_fault: Callable[[str], None],
        needed: bool = True,
    ) -> None:
        self._node, self._topic, self._describe, self._on_fault = node, topic, describe, on_fault
        self._name = node.absolute(topic.name)
        self._latched = topic.qos.durability == DurabilityPolicy.TRANSIENT_LOCAL
        self._unmonitored = needed
        self._had_publisher = self._lost_publisher = False
        self._received_s = float("-inf")
        node.subscribe(topic, self._receive, raw=True)

    def check(self) -> str:
        """Return why faults of the arm would go unnoticed; empty while its state is received.

        To be called a few times a second. A latched topic, sent on changes only, needs a publisher
        that is present; a periodic topic times out after a second without a message. The loss of a
        publisher that never sent a message is not reported; one of an incompatible type or QoS is.
        """
        if mismatch := self._mismatch():
            return f"{self._name}: {mismatch}"
        if self._unmonitored:
            return f"{self._name}: no fault reports of the driver"
        there = self._node.handle.count_publishers(self._name) > 0
        received = self._received_s > float("-inf")
        self._lost_publisher |= self._had_publisher and not there and received
        self._had_publisher = there
        silent = not self._latched and time.monotonic() - self._received_s > _SILENT_S
        if self._lost_publisher or (silent and received):
            return f"{self._name}: the driver's fault reports have ended"
        return ""

    def _mismatch(self) -> str:
        """Return a publisher whose messages DDS does not deliver, and why; empty for none."""
        kind = self._topic.kind
        expected = f"{kind.__module__.split('.')[0]}/msg/{kind.__name__}"
        for each in self._node.handle.get_publishers_info_by_topic(self._name):
            publisher = printable(f"{each.node_namespace.rstrip('/')}/{each.node_name}")
            if each.topic_type != expected:
                found = printable(each.topic_type)
                return f"{publisher} publishes {found}, expected {expected}: not received"
            fits, why = qos_check_compatible(each.qos_profile, self._topic.qos)
            if fits == QoSCompatibility.ERROR:
                reason = why.removeprefix("ERROR: ").strip().rstrip(";")
                return f"{publisher} is not received: {reason}"
        return ""

    def _receive(self, message: bytes) -> None:
        now_s = time.monotonic()
        if self._latched or now_s - self._received_s >= _PERIOD_S:
            self._received_s = now_s
            self._on_fault(self._describe(deserialize_message(message, self._topic.kind)))
            self._unmonitored = self._lost_publisher = False


def fault_topic(channel: Channel, robot: str) -> Topic:
    """Return a fault channel's topic, with the QoS that matches its driver."""
    return topic_of(channel, robot, _CHANGES if channel.type == RUNNING else NEWEST)


def fault_words(channel: Channel, message: Any) -> str:
    """Return the fault in a message, phrased to follow "it reports"; empty for a healthy arm."""
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
    if message.state >= _XARM_PAUSED:
        return f"that it is {'paused' if message.state == _XARM_PAUSED else 'stopped'}"
    taken = message.mode in _XARM_MODES
    return "" if taken else f"the mode {message.mode}, in which its driver sends no targets"


def _of_kortex(message: Any) -> str:
    return "that it has a fault" if message.data else ""


_WORDS: dict[str, Callable[[Any], str]] = {
    RUNNING: _of_program,
    FRANKA_STATE: _of_franka,
    XARM_STATE: _of_xarm,
    KORTEX_FAULT: _of_kortex,
}
