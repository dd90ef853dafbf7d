"""The topics between actor and guard, relative to the namespace of an arm.

The arm's own topics are in its profile, see `serl.ros.arm.topics`. Poses are base_T_tcp.
Subscribers request no deadline and no lifespan, so that they match every publisher; the guard
checks the age of messages itself.
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


def publisher_topic(topic: Topic) -> Topic:
    """Return a topic with its publisher's QoS: messages older than 150 ms are not delivered."""
    deadline = {"deadline": _DEADLINE} if topic.kind is Header else {}
    return topic._replace(qos=_newest(lifespan=_LIFESPAN, **deadline))


COMMAND_POSE = Topic("command/pose", PoseStamped, _newest())
"""Targets at the control rate, actor to guard."""

COMMAND_GRIPPER = Topic("command/gripper", JointState, _newest())
"""One position, 1 open or 0 close, actor to guard; sent with each target, with the same stamp."""

HEARTBEAT = Topic("heartbeat", Header, _newest())
"""Heartbeat, at most 20 ms apart, actor to guard; frame_id is "<lease> <mode> <count>", in teleop
followed by the time in ms since the last message of the operator's device, if known."""

ESTOP = Topic("estop", Bool, _newest())
"""Emergency stop, any node to guard: True stops, False does nothing. Repeat it until the guard's
state shows the stop."""

GUARD_STATE = Topic("guard/state", DiagnosticStatus, _latched())
"""Guard's report, 10 times a second and on change: state and cause, refusals by reason, hash of the
limits."""

NOT_NOW = "not now"
"""Key in the guard's report of the reason to refuse `ack`, `reset` or `arm`; empty if accepted."""

ARM_STATE = Topic("arm/state", DiagnosticStatus, _latched())
"""Optional, arm to all: an error of the arm, level ERROR or above, with its message."""
