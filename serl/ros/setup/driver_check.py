"""Passive comparison of an arm's driver with its profile: subscriptions and queries only."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from serl.arm_profile import ArmProfile, Channel
from serl.compliance import is_value
from serl.errors import BadInput, SerlError
from serl.ros.arm.controller import controller_node, stiffness_problem
from serl.ros.arm.faults import fault_topic, fault_words
from serl.ros.arm.topics import SENSOR, missing_types, name_of, topic_of
from serl.ros.conversions import (
    gripper_of,
    joints_of,
    nanoseconds_of,
    pose_of,
    twist_of,
    wrench_of,
)
from serl.ros.doctor import Finding
from serl.ros.feed import AHEAD_S
from serl.ros.inspection import Endpoint, GraphListener, TopicInfo, mismatch
from serl.ros.node import RosNode
from serl.ros.services import Remote
from serl.ros.setup.checks import GRIPPER_HZ, LEAST_HZ
from serl.ros.topics import Topic

LISTEN_S = 2.0
_ANSWER_S = 5.0
OLD_S = 0.1


class _MessageLog:
    """A subscription that keeps all messages of a channel, with their arrival, up to `end`."""

    def __init__(self, node: RosNode, topic: Topic) -> None:
        self.topic = topic
        self.name = node.absolute(self.topic.name)
        self.messages: list[tuple[int, Any]] = []
        self._arriving = self.messages
        self._clock = node.handle.get_clock()
        node.subscribe(self.topic, self._append)

    def end(self) -> None:
        """Keep the messages as they are: others arrive, in another thread, while they are read."""
        self.messages = self._arriving.copy()

    def _append(self, message: Any) -> None:
        self._arriving.append((self._clock.now().nanoseconds, message))


class RobotCheck:
    """A check of one arm's driver.

    Args:
        profile: the profile that the driver has to match.
        arm: absolute namespace of the arm, empty for the root itself.
    """

    def __init__(self, node: RosNode, profile: ArmProfile, arm: str) -> None:
        self._node, self._profile, self._arm = node, profile, arm

    def findings(self, seconds: float = LISTEN_S) -> Iterator[Finding]:
        """Yield a finding for each check; the driver need not be running."""
        profile = self._profile
        yield from self._packages()
        decoders, reports = self._decoders(), self._reports()
        logs = {
            subject: _MessageLog(self._node, topic_of(channel, self._arm, SENSOR))
            for subject, channel in self._states()
        }
        listener = GraphListener(self._node)
        has_others = listener.settle()  # meanwhile the publishers discover the subscriptions
        for each in logs.values():
            each.messages.clear()
        graph = listener.listen(seconds if has_others else 0.0)
        for each in logs.values():
            each.end()
        if not graph.topics:
            yield Finding(False, "driver", "no other node publishes anything in this domain")
            return
        topics = {topic.name: topic for topic in graph.topics}
        for subject, each in logs.items():
            yield self._state(subject, each, topics.get(each.name), decoders[subject], seconds)
        yield self._joints(logs["joints"])
        yield self._commanded("target", profile.target, topics)
        if profile.target_wrench is not None:
            yield self._commanded("press", profile.target_wrench, topics)
        if profile.trajectory is not None:
            yield self._commanded("trajectory", profile.trajectory, topics)
        if reports is not None:
            yield self._fault(reports, topics)
        if profile.gripper is not None:
            yield self._commanded("gripper", profile.gripper.command, topics)
        if profile.recover is not None:
            yield self._service("recovery", profile.recover.name, profile.recover.type)
        yield from self._controller()
        problem = stiffness_problem(self._node, self._arm, profile)
        after = f"after a stop by a contact: {profile.after_contact}"
        yield Finding(not problem, "contact", problem or after)

    def _packages(self) -> Iterator[Finding]:
        types = {channel.type for channel in self._profile.channels}
        missing = missing_types(self._profile)
        text = f"not installed: {', '.join(missing)}" if missing else f"{len(types)} types"
        yield Finding(not missing, "messages", text)

    def _states(self) -> list[tuple[str, Channel]]:
        """Return the profile's channels of measurements, each with its name."""
        profile = self._profile
        gripper = profile.gripper.state if profile.gripper else None
        named = {
            "pose": profile.pose,
            "twist": profile.twist,
            "wrench": profile.wrench,
            "joints": profile.joint_states,
            "fingers": gripper,
        }
        return [(subject, channel) for subject, channel in named.items() if channel is not None]

    def _decoders(self) -> dict[str, Callable[[Any], object]]:
        profile = self._profile
        joint = profile.gripper.joint if profile.gripper else None
        return {
            "pose": lambda message: pose_of(message, profile.base_frame),
            "twist": lambda message: twist_of(message, profile.twist_headers),
            "wrench": lambda message: wrench_of(message, profile.wrench_headers),
            "joints": lambda message: joints_of(message, profile.joints),
            "fingers": lambda message: gripper_of(message, joint),
        }

    def _state(
        self,
        subject: str,
        log: _MessageLog,
        topic: TopicInfo | None,
        decode: Callable[[Any], object],
        seconds: float,
    ) -> Finding:
        """Check a topic of the driver: publishers, type, content, age and rate."""
        name = log.name
        if topic is None or not topic.publishers:
            return Finding(False, subject, f"{name}: it has no publisher")
        expected = _type_name(log.topic.kind)
        if topic.types != (expected,):
            return Finding(
                False, subject, f"{name}: is {', '.join(topic.types)}, expected {expected}"
            )
        own = Endpoint("doctor", expected, reliable=False)
        if why := next(filter(None, (mismatch(end, own) for end in topic.publishers)), ""):
            return Finding(False, subject, f"{name}: {why}")
        if not log.messages:
            return Finding(False, subject, f"{name}: silent for {seconds:g} s")
        rate_hz = len(log.messages) / seconds
        if problem := _content(log.messages, decode):
            return Finding(False, subject, f"{name}: {problem}")
        least_hz = GRIPPER_HZ if subject == "fingers" else LEAST_HZ
        if rate_hz < least_hz:
            text = f"{rate_hz:.1f} messages a second, expected {least_hz:g} or more"
            return Finding(False, subject, f"{name}: {text}")
        frame = getattr(log.messages[-1][1].header, "frame_id", "")
        return Finding(
            True, subject, f"{name}: {rate_hz:.0f} Hz" + (f", in {frame}" if frame else "")
        )

    def _reports(self) -> _MessageLog | None:
        """Subscribe to the arm's error reports; None without them or without their type."""
        channel = self._profile.fault
        with suppress(BadInput):
            return (
                None
                if channel is None
                else _MessageLog(self._node, fault_topic(channel, self._arm))
            )
        return None

    def _fault(self, log: _MessageLog, topics: dict[str, TopicInfo]) -> Finding:
        """Check that the arm reports no error."""
        channel = self._profile.fault
        assert channel is not None
        if not log.messages:
            absent = not topics.get(log.name, TopicInfo(log.name)).publishers
            why = "it has no publisher" if absent else "silent"
            return Finding(False, "errors", f"{log.name}: {why}")
        words = fault_words(channel, log.messages[-1][1])
        text = f"the arm reports {words}" if words else "the arm is well"
        return Finding(not words, "errors", f"{log.name}: {text}")

    def _joints(self, log: _MessageLog) -> Finding:
        """Check that the arm's joints are reported, and within the limits of the profile."""
        profile = self._profile
        found = None
        for _, message in reversed(log.messages):
            try:
                found = joints_of(message, profile.joints)
            except BadInput as error:
                return Finding(False, "limits", str(error))
            if found is not None:
                break
        if found is None:
            names = ", ".join(profile.joints)
            return Finding(False, "limits", f"no message has the joints {names}")
        rows = zip(
            profile.joints, found[0], profile.joint_low_rad, profile.joint_high_rad, strict=True
        )
        outside = [
            f"{joint} is at {value:.3f} rad, its limits are {low:g} to {high:g}"
            for joint, value, low, high in rows
            if not low < value < high
        ]
        text = "; ".join(outside) or f"{len(profile.joints)} joints, all within their limits"
        return Finding(not outside, "limits", text)

    def _commanded(self, subject: str, channel: Channel, topics: dict[str, TopicInfo]) -> Finding:
        """Check that commands have a receiver, and no publisher besides a guard."""
        name = self._node.absolute(name_of(channel, self._arm))
        strangers = [
            end.node
            for end in topics.get(name, TopicInfo(name)).publishers
            if not end.node.rpartition("/")[2].startswith("guard_")
        ]
        if strangers:
            return Finding(False, subject, f"{name}: {', '.join(strangers)} commands it already")
        return self._taker(subject, channel, topics)

    def _taker(self, subject: str, channel: Channel, topics: dict[str, TopicInfo]) -> Finding:
        """Check that commands have a receiver, of the right type."""
        if "/action/" in channel.type:
            goal = f"{channel.name}/_action/send_goal"
            return self._service(subject, goal, f"{channel.type}_SendGoal")
        name = self._node.absolute(topic_of(channel, self._arm, SENSOR).name)
        takers = topics.get(name, TopicInfo(name)).subscriptions
        if not takers:
            return Finding(
                False, subject, f"{name}: it has no subscriber; does its controller run?"
            )
        types = sorted({end.type for end in takers})
        if types != [channel.type]:
            return Finding(
                False, subject, f"{name}: is {', '.join(types)}, expected {channel.type}"
            )
        nodes = ", ".join(sorted({end.node for end in takers}))
        return Finding(True, subject, f"{name}: {nodes} listens")

    def _service(self, subject: str, name: str, kind: str) -> Finding:
        """Check that a service is offered, of the right type."""
        full = self._node.absolute(name if name.startswith("/") else f"{self._arm}/{name}")
        found = dict(self._node.handle.get_service_names_and_types()).get(full, [])
        if not found:
            return Finding(False, subject, f"{full}: it has no server")
        if kind not in found:
            return Finding(False, subject, f"{full}: is {', '.join(found)}, expected {kind}")
        return Finding(True, subject, f"{full}: is offered")

    def _controller(self) -> Iterator[Finding]:
        """Check that the controller has the parameters to set and the expected values."""
        controller = self._profile.controller
        expected = controller.expected
        if not (controller.parameters or expected):
            return
        node = self._node.absolute(controller_node(self._arm, self._profile))
        remote, names = Remote(self._node, lambda: None), [*controller.parameters, *expected]
        try:
            found = remote.get_parameters(node, names, _ANSWER_S)
        except SerlError as error:
            yield Finding(False, "controller", str(error))
            return
        if absent := [name for name, value in found.items() if value is None]:
            yield Finding(False, "controller", f"{node}: has no parameter {', '.join(absent)}")
            return
        wrong = [
            f"{name} is {found[name]}, expected {value}"
            for name, value in expected.items()
            if not is_value(found[name], value)
        ]
        changed = [
            f"{name} is {found[name]}, will be {value}"
            for name, value in controller.parameters.items()
            if not is_value(found[name], value)
        ]
        if expected:
            text = "; ".join(wrong) or f"{len(expected)} parameters are as expected"
            yield Finding(not wrong, "controller", f"{node}: {text}")
        text = "; ".join(changed) or f"all {len(controller.parameters)} are set already"
        yield Finding(True, "gains", f"{node}: {text}")


def _content(messages: list[tuple[int, Any]], decode: Callable[[Any], object]) -> str:
    """Return the first problem with messages; empty without one.

    Contents come before ages: on a busy machine every message is late.
    """
    values = []
    for _, message in messages:
        try:
            values.append(decode(message))
        except BadInput as error:
            return str(error)
    stamps_ns = [nanoseconds_of(message.header.stamp) for _, message in messages]
    if len(messages) > 2 and len(set(stamps_ns)) == 1:
        return "its stamps stand still"
    ages_s = [1e-9 * (at_ns - ns) for (at_ns, _), ns in zip(messages, stamps_ns, strict=True)]
    if (age_s := sorted(ages_s)[len(ages_s) // 2]) > OLD_S:
        return f"stamped {age_s:.2f} s ago, over {OLD_S:g} s: late, or the clocks disagree"
    if age_s < -AHEAD_S:
        return f"stamped {-age_s:.2f} s in the future: do the clocks agree?"
    return "" if any(value is not None for value in values) else "is about other joints"


def _type_name(kind: Any) -> str:
    """Return the name of a message class, as `ros2 interface` writes it."""
    return f"{kind.__module__.split('.')[0]}/msg/{kind.__name__}"
