"""What a guard sends to an arm, on the topics and in the types of its profile."""

from __future__ import annotations

import math
import time
from typing import Any

from geometry_msgs.msg import PoseStamped, TwistStamped
from rclpy.action import ActionClient
from std_msgs.msg import Float64MultiArray

from serl.arm_profile import GRIP, TWIST, ArmProfile, GripperProfile
from serl.geometry import Vector, add, between, subtract
from serl.motion import Limits, Pose, within_lead
from serl.ros.arm.topics import COMMAND, message_type, name_of, topic_of
from serl.ros.node import RosNode
from serl.setpoint import PROFILE_PERIOD_S, Setpoint, steer

_GAIN_HZ = 2.0
"""Of what the arm is behind: a tenth of a second late at full speed is 1 cm, and 2 cm/s more."""

_HALTED_S = 0.1
"""Silence after which such an arm stands by itself."""

_STILL: Vector = (0.0, 0.0, 0.0)


class VelocityFollower:
    """The velocities of an arm, one every 10 ms, from that of its setpoint and where it is.

    A stop brakes what was sent last, and then sends zero: whoever stands is not led back, and
    whoever is pushed is not pushed back. What is sent keeps the limits that setpoints keep.

    Args:
        limits: of the stop, and of all motion.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._sent_s = -math.inf
        self._linear = self._angular = (_STILL, _STILL)  # velocity and acceleration

    def follow(
        self, setpoint: Setpoint, measured: Pose | None, pace: Limits | None, now_s: float
    ) -> tuple[Vector, Vector]:
        """The velocity to send now: the setpoint's own, and what brings the arm to it.

        Args:
            setpoint: where the arm is to be now, and how fast that moves.
            measured: where it is; None when that is not known: then it has to stand.
            pace: the limits by which it goes; None when it has to stand.
            now_s: monotonic time; after a pause it begins at rest.

        Returns:
            Linear (m/s) and angular velocity (rad/s), in the base frame, about the tool.
        """
        if now_s - self._sent_s > _HALTED_S:
            self._linear = self._angular = (_STILL, _STILL)
        self._sent_s = now_s
        if measured is None or pace is None:
            self._brake()
        else:
            self._pursue(setpoint, measured, pace)
        return self._linear[0], self._angular[0]

    def _pursue(self, setpoint: Setpoint, measured: Pose, pace: Limits) -> None:
        near = within_lead(setpoint.pose, measured, pace)  # an arm may have been pushed away
        behind = subtract(near.position, measured.position)
        turned = between(measured.quaternion, near.quaternion)
        self._linear = steer(
            *self._linear,
            add(setpoint.velocity, _scaled(behind)),
            pace.speed_m_s,
            pace.acceleration_m_s2,
            pace.jerk_m_s3,
            PROFILE_PERIOD_S,
        )
        self._angular = steer(
            *self._angular,
            add(setpoint.angular_velocity, _scaled(turned)),
            pace.angular_speed_rad_s,
            pace.angular_acceleration_rad_s2,
            pace.angular_jerk_rad_s3,
            PROFILE_PERIOD_S,
        )

    def _brake(self) -> None:
        limits = self._limits
        self._linear = steer(
            *self._linear,
            _STILL,
            limits.speed_m_s,
            limits.stop_acceleration_m_s2,
            limits.stop_jerk_m_s3,
            PROFILE_PERIOD_S,
        )
        self._angular = steer(
            *self._angular,
            _STILL,
            limits.angular_speed_rad_s,
            limits.stop_angular_acceleration_rad_s2,
            limits.stop_angular_jerk_rad_s3,
            PROFILE_PERIOD_S,
        )


def _scaled(v: Vector) -> Vector:
    return _GAIN_HZ * v[0], _GAIN_HZ * v[1], _GAIN_HZ * v[2]


_ANSWER_S = 1.0


class ArmCommander:
    """Publishes setpoints and what the gripper is to do. The guard's process makes the only one.

    Args:
        node: the process's node.
        robot: the arm's namespace.
        profile: names and types.
        limits: of speed, for an arm that takes velocities.
    """

    def __init__(self, node: RosNode, robot: str, profile: ArmProfile, limits: Limits) -> None:
        self._clock = node.handle.get_clock()
        self._node, self._topic = node, topic_of(profile.target, robot, COMMAND)
        self._follower = VelocityFollower(limits) if profile.target.type == TWIST else None
        self._message = TwistStamped() if self._follower else PoseStamped()
        self._message.header.frame_id = profile.base_frame
        self._publisher = node.publisher(self._topic)
        self._gripper: _Topic | _Action | None = None
        if profile.gripper is not None:
            kind = _Action if profile.gripper.command.type == GRIP else _Topic
            self._gripper = kind(node, robot, profile.gripper)

    def send(self, setpoint: Setpoint, measured: Pose | None, pace: Limits | None) -> None:
        """Send the arm to a setpoint.

        Args:
            setpoint: where it is to be now.
            measured: where it is; None when nobody knows.
            pace: the limits on its way to a target; None while it brakes, or holds.
        """
        if self._follower is not None:
            self._send_twist(*self._follower.follow(setpoint, measured, pace, time.monotonic()))
            return
        message = self._message
        message.header.stamp = self._clock.now().to_msg()
        position, orientation = message.pose.position, message.pose.orientation
        position.x, position.y, position.z = setpoint.pose.position
        x, y, z, w = setpoint.pose.quaternion
        orientation.x, orientation.y, orientation.z, orientation.w = x, y, z, w
        self._publisher.publish(message)

    def end(self) -> None:
        """No more setpoints for now: an arm that takes velocities is told to stand."""
        if self._follower is not None:
            self._send_twist((0.0, 0.0, 0.0), (0.0, 0.0, 0.0))

    def _send_twist(self, linear: Vector, angular: Vector) -> None:
        message = self._message
        message.header.stamp = self._clock.now().to_msg()
        twist = message.twist
        twist.linear.x, twist.linear.y, twist.linear.z = linear
        twist.angular.x, twist.angular.y, twist.angular.z = angular
        self._publisher.publish(message)

    def begin(self) -> None:
        """The arm is taken: forget what its gripper did not answer."""
        if self._gripper is not None:
            self._gripper.begin()

    def grip(self, opening: float) -> None:
        """Open (1) or close (0) the gripper; called again and again."""
        if self._gripper is not None:
            self._gripper.send(opening)

    @property
    def unheard(self) -> str:
        """Why what is sent would get nowhere; empty when somebody takes it."""
        if not self._publisher.get_subscription_count():
            return self._nobody()
        return self._gripper.unheard if self._gripper is not None else ""

    @property
    def unanswered(self) -> str:
        """What the gripper did not even begin to do within a second; empty if nothing."""
        return self._gripper.unanswered if self._gripper is not None else ""

    def _nobody(self) -> str:
        name = self._node.absolute(self._topic.name)
        found = self._node.handle.get_subscriptions_info_by_topic(name)
        wanted = type(self._message).__name__
        others = sorted({each.topic_type for each in found} - {f"geometry_msgs/msg/{wanted}"})
        if others:
            return f"{name}: is listened to as {', '.join(others)}, not as {wanted}"
        return f"{name}: no controller listens" + (" with a quality that fits" if found else "")


class _Topic:
    """A gripper that takes a number; it is repeated, so that none has to arrive."""

    unanswered = ""

    def begin(self) -> None:
        pass

    def __init__(self, node: RosNode, robot: str, gripper: GripperProfile) -> None:
        topic = topic_of(gripper.command, robot, COMMAND)
        self._name, self._gripper = node.absolute(topic.name), gripper
        self._publisher = node.publisher(topic)

    def send(self, opening: float) -> None:
        position = self._gripper.position(opening)
        self._publisher.publish(Float64MultiArray(data=[position]))

    @property
    def unheard(self) -> str:
        heard = self._publisher.get_subscription_count()
        return "" if heard else f"{self._name}: no gripper listens"


class _Action:
    """A gripper that takes goals: one when it is to switch, each second until it is accepted."""

    def __init__(self, node: RosNode, robot: str, gripper: GripperProfile) -> None:
        kind, self._gripper = message_type(gripper.command), gripper
        self._name = node.absolute(name_of(gripper.command, robot))
        self._goal = kind.Goal
        self._client: Any = ActionClient(node.handle, kind, self._name)
        self.begin()

    def begin(self) -> None:
        self._opening: float | None = None  # asked for
        self._accepted = True
        self._asked_s = self._sent_s = -math.inf

    def send(self, opening: float) -> None:
        now_s = time.monotonic()
        if opening != self._opening:
            self._opening, self._accepted, self._asked_s = opening, False, now_s
        elif self._accepted or now_s - self._sent_s < _ANSWER_S:
            return
        self._sent_s = now_s
        goal = self._goal()
        goal.command.position = self._gripper.position(opening)
        goal.command.max_effort = self._gripper.effort

        def answered(future: Any) -> None:
            handle = future.result()
            if opening == self._opening and handle is not None:
                self._accepted = bool(handle.accepted)

        self._client.send_goal_async(goal).add_done_callback(answered)

    @property
    def unheard(self) -> str:
        ready = self._client.server_is_ready()
        return "" if ready else f"{self._name}: no gripper takes its goals"

    @property
    def unanswered(self) -> str:
        if self._accepted or time.monotonic() - self._asked_s <= _ANSWER_S:
            return ""
        return f"{self._name}: the gripper took no goal within {_ANSWER_S:g} s"
