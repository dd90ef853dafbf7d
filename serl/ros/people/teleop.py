"""Teleoperation devices over topics: from any ROS 2 node, the console and `serl teleop`."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from geometry_msgs.msg import PoseStamped, TwistStamped
from sensor_msgs.msg import JointState, Joy

from serl.errors import BadInput
from serl.intervention import Event
from serl.loop import Observer
from serl.ros.node import RosNode
from serl.ros.topics import Topic, latest_only
from serl.specs import ArraySpec
from serl.system.json_fields import printable
from serl.teleop import mapping
from serl.teleop.config import JOY_AXES, JOY_BUTTONS, TWIST_AXES, TeleopConfig
from serl.teleop.device import Buttons, DeviceReport
from serl.teleop.leader_arm import LeaderArm
from serl.teleop.leader_joints import LeaderJoints
from serl.teleop.mapping import AXES, MappingConfig, Wish
from serl.teleop.operator import Operator, arm_count
from serl.types import Observation

logger = logging.getLogger(__name__)

_MAX_NAMES, _MAX_NAME = 8, 64
_COMMAND_S = 0.05
_TIMES = 5
"""Number of messages with an event: those of 0.1 s."""
_CONSOLE = "the console"


class TopicDevice:
    """A `Device` over a topic; its age is that of the last message, by this host's clock.

    Args:
        name: name shown to people.
        axes: names of the axes, in the order of the message.
        now_s: returns monotonic seconds.
    """

    def __init__(
        self,
        name: str,
        axes: Sequence[str],
        buttons: Sequence[str] = (),
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self._axis_names, self._button_names, self._now_s = axes, buttons, now_s
        self._lock = threading.Lock()  # messages arrive in the executor's thread
        self._axes: dict[str, float] = {}
        self._buttons = Buttons()
        self._received_s: float | None = None

    @property
    def silence_s(self) -> float:
        """Seconds since the last message; infinite before the first."""
        return float("inf") if self._received_s is None else self._now_s() - self._received_s

    def read(self) -> DeviceReport | None:
        """Return the last message's content; None before the first message."""
        with self._lock:
            if self._received_s is None:
                return None
            return DeviceReport(dict(self._axes), *self._buttons.take(), self._received_s)

    def close(self) -> None:
        """Do nothing: there is nothing to close."""

    def receive(self, axes: Sequence[float], buttons: Sequence[int] = ()) -> None:
        """Store the content of a message; axes and buttons without a name are ignored."""
        with self._lock:
            self._axes = dict(zip(self._axis_names, map(float, axes), strict=False))
            pairs = zip(self._button_names, buttons, strict=False)
            self._buttons.hold(frozenset(name for name, down in pairs if down))
            self._received_s = self._now_s()


def console_topic(actor: str) -> Topic:
    """Return the topic of console input to an actor."""
    return Topic(f"{actor}/console", Joy, latest_only())


def console_topics(actor: str, arms: int) -> tuple[Topic, ...]:
    """Return the topics of console input to an actor; for two arms the left, then the right."""
    return _by_arm(console_topic(actor), arms)


def device_topics(actor: str, arms: int = 1) -> tuple[Topic, ...]:
    """Return the topics of `serl teleop` to an actor; for two arms the left, then the right."""
    return _by_arm(Topic(f"{actor}/device", Joy, latest_only()), arms)


def _by_arm(topic: Topic, arms: int) -> tuple[Topic, ...]:
    if arms == 1:
        return (topic,)
    return tuple(topic._replace(name=f"{topic.name}/{side}") for side in ("left", "right"))


def joy_topic(actor: str) -> Topic:
    """Return the topic to which the messages of a device's `joy_node` are remapped for an actor."""
    return Topic(f"{actor}/joy", Joy, latest_only())


def twist_topic(actor: str, side: str = "") -> Topic:
    """Return the topic of twist commands to an actor, for any other node.

    Args:
        actor: name of the actor.
        side: "left" or "right" for an arm of a pair.
    """
    place = f"{actor}/teleop/{side}" if side else f"{actor}/teleop"
    return Topic(f"{place}/twist", TwistStamped, latest_only())


def leader_topic(actor: str) -> Topic:
    """Return the topic of the tool pose of an actor's leader arm."""
    return Topic(f"{actor}/leader", PoseStamped, latest_only())


def leader_joints_topic(actor: str) -> Topic:
    """Return the topic of the joint states of an actor's leader arm."""
    return Topic(f"{actor}/leader_joints", JointState, latest_only())


def leader_command_topic(actor: str) -> Topic:
    """Return the topic of the robot's joint positions, for a leader arm with motors to follow."""
    return Topic(f"{actor}/leader_command", JointState, latest_only())


class ActionFrame(NamedTuple):
    """The frame in which actions are expressed.

    Attributes:
        name: its frame id in message headers.
        of_tool: True for the tool's frame, which turns with the robot; False for the base frame.
    """

    name: str
    of_tool: bool = False


class _Input(NamedTuple):
    """Input of one operator.

    Attributes:
        devices: the device; or the devices of the left and the right arm.
        name: name shown for the devices of both arms; empty for names by arm.
        in_action_frame: the input is in the frame of the actions, not along the base's axes.
    """

    devices: tuple[TopicDevice | LeaderArm, ...]
    mapping: MappingConfig
    name: str = ""
    in_action_frame: bool = False


class TopicDevices(Observer):
    """All topics by which people drive an actor, as devices.

    Args:
        config: settings of teleoperation, with the mappings of the topics.
        frame: the frame of the actions; a twist in another frame is ignored.
    """

    def __init__(self, node: RosNode, actor: str, config: TeleopConfig, frame: ActionFrame) -> None:
        self._config, self._node, self._actor, self._frame = config, node, actor, frame
        self._inputs: list[_Input] = []
        self._pairs: list[_Input] = []
        topics = {_CONSOLE: console_topic(actor), "the device": device_topics(actor)[0]}
        for name, topic in topics.items():
            self._inputs.append(_Input((self._remote(name, topic),), mapping.MAPPING))
        joy = TopicDevice("the joystick", JOY_AXES, JOY_BUTTONS)
        node.subscribe(joy_topic(actor), _joy_into(joy))
        twist = TopicDevice("the twist topic", TWIST_AXES)
        node.subscribe(twist_topic(actor), _twist_into(twist, frame.name))
        joints = config.leader_joints
        limits = joints.limits if joints else None
        self._leader = LeaderArm(
            config.leader_m,
            config.leader_rad,
            limits=limits,
            in_tool_frame=frame.of_tool,
            follows=joints is not None and joints.follow,
        )
        self._inputs += [
            _Input((joy,), config.joy),
            _Input((twist,), config.twist, in_action_frame=True),
            _Input((self._leader,), config.leader, in_action_frame=True),
        ]
        self._joints = LeaderJoints(joints, self._leader) if joints else None
        self._robot_joints_rad: list[float] = []
        if self._joints is None:
            node.subscribe(leader_topic(actor), _pose_into(self._leader))
        else:
            node.subscribe(leader_joints_topic(actor), _joints_into(self._joints))
        if joints and joints.follow:
            self._command = node.publisher(leader_command_topic(actor))
            node.every(_COMMAND_S, self._lead)

    @property
    def has_operator(self) -> bool:
        """Whether any device sends messages, with or without operator input."""
        operator = self._config.operator
        lost_s = operator.lost_s + 2.0 * operator.stale_s  # until the loss was reported
        inputs = (*self._inputs, *self._pairs)
        return any(device.silence_s <= lost_s for each in inputs for device in each.devices)

    def on_reading(self, reading: Observation) -> None:
        """Compare the leader arm with this pose of the robot, and let its motors follow."""
        if (pose := reading.state.get("tcp_pose")) is None:
            return
        x, y, z, *turn = map(float, pose)
        self._leader.robot_pose = (x, y, z), (turn[0], turn[1], turn[2], turn[3])
        self._robot_joints_rad = reading.state["q"].tolist() if "q" in reading.state else []

    def people(self, spec: ArraySpec) -> list[Operator]:
        """Return an operator for each device, or for each pair where actions move two arms.

        The list is empty where the actions have an axis that no device can move.
        """
        inputs = self._two_hands() if arm_count(spec) == 2 else self._inputs
        config, of_tool = self._config.operator, self._frame.of_tool
        try:
            return [
                Operator(
                    each.devices,
                    each.mapping,
                    config,
                    spec,
                    name=each.name,
                    in_tool_frame=of_tool and not each.in_action_frame,
                )
                for each in inputs
            ]
        except BadInput as error:
            logger.warning("no device can drive: %s", error)
            return []

    def _lead(self) -> None:
        """Publish the joints at which a leader arm with motors stands for the robot."""
        if self._joints and (command := self._joints.command(self._robot_joints_rad)):
            message = JointState(name=list(command), position=list(command.values()))
            message.header.stamp = self._node.handle.get_clock().now().to_msg()
            self._command.publish(message)

    def _two_hands(self) -> list[_Input]:
        """Return the inputs for two arms: the console, `serl teleop` and the twist topics."""
        if not self._pairs:
            page, hands = (
                tuple(self._remote(name, topic) for topic in topics)
                for name, topics in (
                    (_CONSOLE, console_topics(self._actor, 2)),
                    ("device", device_topics(self._actor, 2)),
                )
            )
            twists = self._twist("left"), self._twist("right")
            self._pairs = [
                _Input(page, mapping.MAPPING, _CONSOLE),
                _Input(hands, mapping.MAPPING),
                _Input(twists, self._config.twist, in_action_frame=True),
            ]
        return self._pairs

    def _twist(self, side: str) -> TopicDevice:
        device = TopicDevice("twist topic", TWIST_AXES)
        self._node.subscribe(twist_topic(self._actor, side), _twist_into(device, self._frame.name))
        return device

    def _remote(self, name: str, topic: Topic) -> TopicDevice:
        device = TopicDevice(name, AXES, mapping.BUTTONS)
        self._node.subscribe(topic, _joy_into(device))
        return device


class RemoteHand:
    """A publisher of the operator input of a local device; every message is a heartbeat.

    An event is in several messages, as a reader gets only the newest one. It counts as one press.
    """

    def __init__(self, node: RosNode, topic: Topic) -> None:
        self._node = node
        self._publisher = node.publisher(topic)
        self._left: dict[Event, int] = {}  # number of messages, for each event

    @property
    def has_subscriber(self) -> bool:
        """Whether the topic has a subscriber."""
        return bool(self._publisher.get_subscription_count())

    def send(self, operator_input: Wish) -> None:
        """Publish the operator input once, as a heartbeat."""
        message = Joy()
        message.header.stamp = self._node.handle.get_clock().now().to_msg()
        self._left |= dict.fromkeys(operator_input.events, _TIMES)
        events = tuple(event for event, left in self._left.items() if left)
        self._left = {event: self._left[event] - 1 for event in events}
        message.axes, message.buttons = mapping.to_joystick(operator_input._replace(events=events))
        self._publisher.publish(message)


def _joy_into(device: TopicDevice) -> Callable[[Any], None]:
    return lambda message: device.receive(message.axes, message.buttons)


def _pose_into(arm: LeaderArm) -> Callable[[Any], None]:
    def take(message: Any) -> None:
        place, turn = message.pose.position, message.pose.orientation
        arm.receive((place.x, place.y, place.z), (turn.x, turn.y, turn.z, turn.w))

    return take


def _joints_into(leader: LeaderJoints) -> Callable[[Any], None]:
    return lambda message: leader.receive(message.name, message.position)


def _twist_into(device: TopicDevice, frame: str) -> Callable[[Any], None]:
    """Return a callback that takes twists in `frame` or without a frame, and warns of others.

    It warns once per frame name, for eight names at most: any node can send any number of names.
    """
    foreign: set[str] = set()

    def take(message: Any) -> None:
        given = message.header.frame_id
        if given not in ("", frame):
            name = printable(given, _MAX_NAME)
            if name not in foreign and len(foreign) < _MAX_NAMES:
                foreign.add(name)
                logger.warning(
                    "%s: ignored a twist in the frame '%s': expected '%s' or no frame",
                    device.name,
                    name,
                    frame,
                )
            return
        linear, angular = message.twist.linear, message.twist.angular
        device.receive([linear.x, linear.y, linear.z, angular.x, angular.y, angular.z])

    return take
