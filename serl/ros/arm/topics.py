"""The topics of an arm: its profile's, in the namespace of a robot. The only table of them.

Those between actor and guard are in `serl.ros.arm.guard_topics`.
"""

from __future__ import annotations

import importlib
from typing import Any

from geometry_msgs.msg import PoseStamped
from rclpy.duration import Duration
from rclpy.qos import QoSProfile, ReliabilityPolicy
from std_msgs.msg import Float32MultiArray

from serl.arm_profile import ArmProfile, Channel
from serl.errors import BadInput
from serl.ros.topics import Topic, latest_only

SENSOR: Any = QoSProfile(depth=5, reliability=ReliabilityPolicy.BEST_EFFORT)
"""Of what an arm measures: nobody waits for who is slow. Who reads takes all that waits."""

NEWEST: Any = latest_only()
"""For readers for whom the newest alone counts: who is starved is behind by one, not by five."""

COMMAND: Any = QoSProfile(
    depth=1, reliability=ReliabilityPolicy.RELIABLE, lifespan=Duration(nanoseconds=150_000_000)
)
"""Of what the guard sends to an arm. Controllers of ros2_control ask for reliable senders, and DDS
matches them with no other. The newest one replaces what was not delivered, and what is older than
150 ms is not: who does not read delays nobody, and gets nothing old when he does."""

EXACT: Any = QoSProfile(depth=10, reliability=ReliabilityPolicy.RELIABLE)
"""In lock-step, where nothing may be lost and time waits."""


def message_type(channel: Channel) -> Any:
    """The class of a channel's messages.

    Raises:
        BadInput: its package is not installed, or has no such type.
    """
    package, kind, name = channel.type.split("/")
    try:
        return getattr(importlib.import_module(f"{package}.{kind}"), name)
    except (ImportError, AttributeError):
        raise BadInput(
            f"{channel.name}: needs {channel.type}, and the package {package} is not installed; "
            "source a ROS 2 installation that has it"
        ) from None


def check_types(profile: ArmProfile) -> None:
    """Raise `BadInput`, naming all that is missing, unless every type of the profile is there."""
    missing = set()
    for channel in profile.channels:
        try:
            message_type(channel)
        except BadInput:
            missing.add(channel.type)
    if missing:
        raise BadInput(
            f"arm {profile.name}: not installed: {', '.join(sorted(missing))}; "
            "source a ROS 2 installation that has them"
        )


def topic_of(channel: Channel, robot: str, qos: Any) -> Topic:
    """A channel of a robot."""
    return Topic(name_of(channel, robot), message_type(channel), qos)


def name_of(channel: Channel, robot: str) -> str:
    """A channel's name within a run; one that begins with a slash belongs to no namespace."""
    return channel.name if channel.name.startswith("/") else f"{robot}/{channel.name}"


def commanded(profile: ArmProfile, robot: str) -> list[str]:
    """Names of the topics that one node alone may command an arm on; an action has none."""
    gripper = [profile.gripper.command] if profile.gripper is not None else []
    channels = [profile.target, *gripper]
    return [name_of(channel, robot) for channel in channels if "/msg/" in channel.type]


def measured(profile: ArmProfile) -> dict[str, Channel]:
    """Return the channels on which the arm's driver alone publishes, by what they tell."""
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
    """A topic of `serl.ros.arm.guard_topics` in the namespace of a robot."""
    return Topic(f"{robot}/{topic.name}", topic.kind, qos or topic.qos)


def truth(robot: str, qos: Any = SENSOR) -> Topic:
    """The privileged state of a simulation: arrays one after the other, named by the layout."""
    return Topic(f"{robot}/truth", Float32MultiArray, qos)


def tracked_pose(robot: str, body: str, qos: Any = SENSOR) -> Topic:
    """Where an object tracker sees a body: base_T_body."""
    return Topic(f"{robot}/{body}_pose", PoseStamped, qos)
