"""The topics between actor and guard, relative to the namespace of an arm.

Those of the arm are in its profile, see `serl.ros.arm.topics`. Poses are base_T_tcp. Who listens
asks for no deadline and no lifespan, so that it matches every sender; the guard watches ages by
itself.
"""

from __future__ import annotations

from typing import Any

from diagnostic_msgs.msg import DiagnosticStatus
from geometry_msgs.msg import PoseStamped
from rclpy.duration import Duration
from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy
from sensor_msgs.msg import JointState
from std_msgs.msg import Bool, Header

from serl.ros.topics import Topic

_DEADLINE = Duration(nanoseconds=100_000_000)
_LIFESPAN = Duration(nanoseconds=150_000_000)


def _newest(**policies: Any) -> Any:
    return QoSProfile(depth=1, reliability=ReliabilityPolicy.BEST_EFFORT, **policies)


def _latched() -> Any:
    durability = DurabilityPolicy.TRANSIENT_LOCAL
    return QoSProfile(depth=1, reliability=ReliabilityPolicy.RELIABLE, durability=durability)


def sent(topic: Topic) -> Topic:
    """The topic as its sender offers it: what is older than 150 ms is not delivered."""
    deadline = {"deadline": _DEADLINE} if topic.kind is Header else {}
    return topic._replace(qos=_newest(lifespan=_LIFESPAN, **deadline))


COMMAND_POSE = Topic("command/pose", PoseStamped, _newest())
"""Targets at the control rate, actor to guard."""

COMMAND_GRIPPER = Topic("command/gripper", JointState, _newest())
"""One position, 1 open or 0 close, actor to guard; sent with each target, and stamped as it is."""

HEARTBEAT = Topic("heartbeat", Header, _newest())
"""At most 20 ms apart, actor to guard; frame_id is "<lease> <mode> <count>", and in teleop for how
many ms the person's device has been silent, where the actor knows."""

ESTOP = Topic("estop", Bool, _newest())
"""True stops, anybody to guard; False does nothing. Send it until the guard's state says so."""

GUARD_STATE = Topic("guard/state", DiagnosticStatus, _latched())
"""10 times a second and on change: state and cause, refusals by reason, hash of the limits."""

NOT_NOW = "not now"
"""The key in it of why `ack`, `reset` or `arm` would be refused; empty when they would not."""

ARM_STATE = Topic("arm/state", DiagnosticStatus, _latched())
"""Optional, arm to all: an error of the arm, level ERROR or above, with its message."""
