"""The topics of an arm, from its profile, in the namespace of a robot.

This is the only table of them; those between actor and guard are in `serl.ros.arm.guard_topics`.
"""

from __future__ import annotations

import importlib
from typing import Any

from geometry_msgs.msg import PoseStamped
from rclpy.duration import Duration
from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy
from std_msgs.msg import Float32MultiArray, String

from serl.arm_profile import ArmProfile, Channel
from serl.errors import BadInput
from serl.ros.topics import Topic, latest_only

SENSOR: Any = QoSProfile(depth=10, reliability=ReliabilityPolicy.BEST_EFFORT)
"""QoS of an arm's measurements: a slow subscriber delays no publisher; readers drain the queue."""

NEWEST: Any = latest_only()
"""QoS of subscribers that need the newest message only: when starved they lag by one, not ten."""

COMMAND: Any = QoSProfile(
    depth=1, reliability=ReliabilityPolicy.RELIABLE, lifespan=Duration(nanoseconds=150_000_000)
)
"""QoS of the guard's commands to an arm. Controllers of ros2_control request reliable publishers,
and DDS matches them with no others. The newest message replaces an undelivered one, and one that is
older than 150 ms is no longer sent: a slow subscriber delays no publisher. Messages that arrived at
a subscriber stay in its queue, however long it takes to read them.
"""

EXACT: Any = QoSProfile(depth=10, reliability=ReliabilityPolicy.RELIABLE)
"""QoS of lock-step, where no message may be lost and time waits."""

KEPT: Any = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)
"""QoS of topics that are published once: later subscribers get the last message."""


TRANSFORMS = "tf2_msgs/msg/TFMessage"
_TRANSFORM_QOS: Any = QoSProfile(depth=100, reliability=ReliabilityPolicy.RELIABLE)
"""QoS that listeners of tf2 request."""


def message_type(channel: Channel) -> Any:
    """Return the class of a channel's messages.

    Raises:
        BadInput: the message package is not installed, or lacks the type.
    """
    package, kind, name = channel.type.split("/")
    try:
        return getattr(importlib.import_module(f"{package}.{kind}"), name)
    except (ImportError, AttributeError):
        raise BadInput(
            f"{channel.name}: needs {channel.type}, and the package {package} is not installed; "
            "source a ROS 2 installation that has it"
        ) from None


def missing_types(profile: ArmProfile) -> list[str]:
    """Return the types of the profile's messages that are not installed, sorted."""
    missing = set()
    for channel in profile.channels:
        try:
            message_type(channel)
        except BadInput:
            missing.add(channel.type)
    return sorted(missing)


def check_types(profile: ArmProfile) -> None:
    """Raise `BadInput`, naming all missing message types of the profile, if there are any."""
    if missing := missing_types(profile):
        raise BadInput(
            f"arm {profile.name}: not installed: {', '.join(missing)}; "
            "source a ROS 2 installation that has them"
        )


def topic_of(channel: Channel, robot: str, qos: Any) -> Topic:
    """Return the topic of a robot's channel."""
    return Topic(name_of(channel, robot), message_type(channel), qos)


def name_of(channel: Channel, robot: str) -> str:
    """Return a channel's name within a run; a name with a leading slash is absolute."""
    return channel.name if channel.name.startswith("/") else f"{robot}/{channel.name}"


def command_topics(profile: ArmProfile, robot: str) -> list[str]:
    """Return the topics, without actions, on which only one node may command an arm."""
    gripper = [profile.gripper.command] if profile.gripper is not None else []
    wrench = [profile.target_wrench] if profile.target_wrench is not None else []
    joints = [profile.trajectory] if profile.trajectory is not None else []
    channels = [profile.target, *wrench, *joints, *gripper]
    return [name_of(channel, robot) for channel in channels if "/msg/" in channel.type]


def measurement_channels(profile: ArmProfile) -> dict[str, Channel]:
    """Return the channels on which the arm's driver alone publishes, by kind of measurement."""
    gripper = profile.gripper.state if profile.gripper is not None else None
    channels = {
        "pose": profile.pose,
        "joints": profile.joint_states,
        "wrench": profile.wrench,
        "twist": profile.twist,
        "gripper": gripper,
        "fault": profile.fault,
    }
    return {kind: channel for kind, channel in channels.items() if channel is not None}


def of_robot(topic: Topic, robot: str, qos: Any = None) -> Topic:
    """Return a topic of `serl.ros.arm.guard_topics` in the namespace of a robot."""
    return Topic(f"{robot}/{topic.name}", topic.kind, qos or topic.qos)


def truth(robot: str, qos: Any = SENSOR) -> Topic:
    """Return the topic of a simulation's ground truth: arrays that the message's `layout` names."""
    return Topic(f"{robot}/truth", Float32MultiArray, qos)


def robot_description(robot: str) -> Topic:
    """Return the topic of a simulated arm's URDF."""
    return Topic(f"{robot}/robot_description", String, KEPT)


def transforms(robot: str) -> Topic:
    """Return the topic of the transforms of an arm's links; with an empty namespace `/tf`.

    Raises:
        BadInput: the package tf2_msgs is not installed.
    """
    return Topic(f"{robot}/tf", message_type(Channel(name="tf", type=TRANSFORMS)), _TRANSFORM_QOS)


def tracked_pose(robot: str, body: str, qos: Any = SENSOR) -> Topic:
    """Return the topic of a body's pose from an object tracker: base_T_body."""
    return Topic(f"{robot}/{body}_pose", PoseStamped, qos)
