"""The guard's subscriptions: messages of arm and actor, as numbers with their arrival times."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from diagnostic_msgs.msg import DiagnosticStatus

from serl.arm_profile import ArmProfile, Channel
from serl.guard.guard import Guard, MessageInfo
from serl.ros.arm.competitors import DuplicatePublishers
from serl.ros.arm.faults import FaultWatch, fault_topic, fault_words
from serl.ros.arm.guard_topics import ARM_STATE, COMMAND_GRIPPER, COMMAND_POSE, ESTOP, HEARTBEAT
from serl.ros.arm.topics import NEWEST, SENSOR, measurement_channels, name_of, of_robot, topic_of
from serl.ros.node import RosNode
from serl.ros.topics import Topic
from serl.system.json_fields import printable

_RESUMED_S = 3.0
"""Longest time from a driver's first message until its node is discovered."""


class GuardInbox:
    """Subscriber that passes the messages of arm and actor to a guard, in the executor's thread.

    It also checks the publishers of the arm's measurements and faults.

    Args:
        prefix: namespace of the arm, from the root.
        profile: the arm's profile, with its topics and message types.
        joint_names: names of the arm's joints, in order; empty: all joints, in message order.
        guard: receives the messages.
        lock: held while the guard is called.
    """

    def __init__(
        self,
        node: RosNode,
        prefix: str,
        profile: ArmProfile,
        joint_names: tuple[str, ...],
        guard: Guard,
        lock: threading.Lock,
    ) -> None:
        self._node, self._prefix, self._lock = node, prefix, lock
        self._guard, self._joint_names = guard, joint_names
        self._clock = node.handle.get_clock()
        self._shares_joints = False
        self._kinds = {
            node.absolute(name_of(channel, prefix)): kind
            for kind, channel in reversed(measurement_channels(profile).items())
        }
        if profile.fault is None:
            self._kinds[node.absolute(of_robot(ARM_STATE, prefix).name)] = "fault"
        self._doubles = DuplicatePublishers(node, list(self._kinds))
        self._faults = self._listen_to_faults(profile.fault)
        self._listen_to_arm(profile)
        self._listen_to_actor()
        self.check()

    def _listen_to_arm(self, profile: ArmProfile) -> None:
        guard = self._guard
        pose = topic_of(profile.pose, self._prefix, NEWEST)
        self._subscribe(pose, lambda m: guard.pose(_pose(m), self._info(m.header)))
        self._take_all(profile.joint_states, self._on_joints)
        if profile.wrench is not None:
            wrench = profile.wrench
            self._take_all(wrench, lambda m: guard.wrench(_wrench(m), self._info(m.header)))

    def _listen_to_faults(self, channel: Channel | None) -> FaultWatch:
        """Subscribe to the fault topic of the arm's profile, or to the public `arm/state`."""
        if channel is None:
            topic = of_robot(ARM_STATE, self._prefix)
            return FaultWatch(self._node, topic, _error, self._on_fault, needed=False)
        topic, words = fault_topic(channel, self._prefix), partial(fault_words, channel)
        return FaultWatch(self._node, topic, words, self._on_fault)

    def _listen_to_actor(self) -> None:
        guard, listen = self._guard, self._listen
        listen(COMMAND_POSE, lambda m: guard.command(_pose(m), self._info(m.header)))
        listen(COMMAND_GRIPPER, lambda m: guard.gripper(m.position, self._info(m.header)))
        listen(HEARTBEAT, lambda m: guard.heartbeat(m.frame_id, self._info(m)))
        listen(ESTOP, lambda m: guard.estop("the topic estop") if m.data else None)

    def _take_all(self, channel: Channel, take: Callable[[Any], None]) -> None:
        """Subscribe to every message: the newest may be a gripper's, and a contact is short."""
        self._subscribe(topic_of(channel, self._prefix, SENSOR), take, drain=True)

    def _listen(self, topic: Topic, take: Callable[[Any], None]) -> None:
        self._subscribe(of_robot(topic, self._prefix), take)

    def _subscribe(self, topic: Topic, take: Callable[[Any], None], *, drain: bool = False) -> None:
        def taken(message: Any) -> None:
            with self._lock:
                take(message)

        self._node.subscribe(topic, taken, drain=drain)

    def _on_fault(self, text: str) -> None:
        with self._lock:
            self._guard.robot_error(text)

    def check(self) -> None:
        """Inform the guard of an unmonitored arm and of second publishers of its measurements.

        To be called a few times a second.
        """
        unwatched, now_s = self._faults.check(), time.monotonic()

        def resumed(topic: str) -> bool:
            return self._guard.measured.is_resumed(self._kinds[topic], now_s, _RESUMED_S)

        joints = [topic for topic, kind in self._kinds.items() if kind == "joints"]
        shared = joints if self._shares_joints else ()
        rivals = self._doubles.check(resumed, shared, not self._guard.active)
        with self._lock:
            self._guard.measured.unwatched = unwatched
            self._guard.set_rivals(rivals)

    def _on_joints(self, message: Any) -> None:
        values, names = list(message.position), self._joint_names
        if names:
            known = dict(zip(message.name, values, strict=False))
            if not any(name in known for name in names):
                self._shares_joints = True  # as a gripper's driver does
                return
            values = [known[name] for name in names if name in known]
        self._guard.joints(values, self._info(message.header))

    def _info(self, header: Any) -> MessageInfo:
        wall_s = 1e-9 * self._clock.now().nanoseconds
        stamp_s = header.stamp.sec + 1e-9 * header.stamp.nanosec
        return MessageInfo(time.monotonic(), stamp_s, wall_s, header.frame_id)


def _pose(message: Any) -> tuple[float, ...]:
    place, turn = message.pose.position, message.pose.orientation
    return place.x, place.y, place.z, turn.x, turn.y, turn.z, turn.w


def _wrench(message: Any) -> tuple[float, ...]:
    force, torque = message.wrench.force, message.wrench.torque
    return force.x, force.y, force.z, torque.x, torque.y, torque.z


def _error(message: Any) -> str:
    """Return the error that an arm reports; empty when it is well."""
    ill = message.level >= DiagnosticStatus.ERROR
    return (printable(message.message) or "an error") if ill else ""
