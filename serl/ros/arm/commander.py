"""Commands from the guard to an arm, on the topics and in the message types of its profile."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any

from geometry_msgs.msg import PoseStamped, TwistStamped
from rclpy.action import ActionClient
from std_msgs.msg import Float64MultiArray

from serl.arm_profile import GRIP, TWIST, ArmProfile, GripperProfile
from serl.compliance import NO_WRENCH, Wrench
from serl.geometry import Vector, add, rotation_between, subtract
from serl.motion import Limits, Pose, within_lead
from serl.ros.arm.topics import COMMAND, message_type, name_of, topic_of
from serl.ros.conversions import trajectory_message, wrench_message
from serl.ros.node import RosNode
from serl.setpoint import PROFILE_PERIOD_S, Setpoint, steer
from serl.trajectory import Trajectory

_GAIN_HZ = 2.0
"""Gain on the position error: a lag of 0.1 s at full speed is 1 cm and adds 2 cm/s."""

_HALTED_S = 0.1
"""Time without a command after which a velocity-controlled arm stops by itself."""

_ANSWER_S = 1.0
_STILL: Vector = (0.0, 0.0, 0.0)


class VelocityFollower:
    """Velocity commands, one every 10 ms, that make an arm follow its setpoint.

    A stop decelerates from the last command to zero and then sends zero: the arm is not driven
    back to its earlier position, nor does it push back when pushed. Commands keep the limits of
    setpoints.

    Args:
        limits: limits on stops and on all motion.
    """

    def __init__(self, limits: Limits) -> None:
        self._stopping = limits.model_copy(
            update={
                "acceleration_m_s2": limits.stop_acceleration_m_s2,
                "jerk_m_s3": limits.stop_jerk_m_s3,
                "angular_acceleration_rad_s2": limits.stop_angular_acceleration_rad_s2,
                "angular_jerk_rad_s3": limits.stop_angular_jerk_rad_s3,
            }
        )
        self._sent_s = -math.inf
        self._linear = self._angular = (_STILL, _STILL)  # velocity and acceleration

    def follow(
        self, setpoint: Setpoint, measured: Pose | None, pace: Limits | None, now_s: float
    ) -> tuple[Vector, Vector]:
        """Return the velocity to send now: the setpoint's velocity plus a position correction.

        Args:
            setpoint: desired pose of the arm at this instant, and its velocity.
            measured: measured pose; None when unknown: the arm then brakes.
            pace: limits on the motion; None makes the arm brake.
            now_s: monotonic time; after a pause the commands begin at rest.

        Returns:
            Linear (m/s) and angular velocity (rad/s), in the base frame, about the tool.
        """
        if now_s - self._sent_s > _HALTED_S:
            self._linear = self._angular = (_STILL, _STILL)
        self._sent_s = now_s
        linear = angular = _STILL
        limits = self._stopping
        if measured is not None and pace is not None:
            limits = pace
            near = within_lead(setpoint.pose, measured, pace)  # an arm may have been pushed away
            behind = subtract(near.position, measured.position)
            turned = rotation_between(measured.quaternion, near.quaternion)
            linear = add(setpoint.velocity, _scaled(behind))
            angular = add(setpoint.angular_velocity, _scaled(turned))
        self._linear = steer(
            *self._linear,
            linear,
            limits.speed_m_s,
            limits.acceleration_m_s2,
            limits.jerk_m_s3,
            PROFILE_PERIOD_S,
        )
        self._angular = steer(
            *self._angular,
            angular,
            limits.angular_speed_rad_s,
            limits.angular_acceleration_rad_s2,
            limits.angular_jerk_rad_s3,
            PROFILE_PERIOD_S,
        )
        return self._linear[0], self._angular[0]


def _scaled(v: Vector) -> Vector:
    return _GAIN_HZ * v[0], _GAIN_HZ * v[1], _GAIN_HZ * v[2]


class ArmCommander:
    """Publisher of setpoints and gripper commands. Only the guard's process creates one.

    Args:
        robot: the arm's namespace.
        profile: topic names and message types of the arm.
        limits: speed limits for a velocity-controlled arm.
        exerts: whether the task has a wrench, which needs a subscriber.
    """

    def __init__(
        self,
        node: RosNode,
        robot: str,
        profile: ArmProfile,
        limits: Limits,
        exerts: bool = False,
    ) -> None:
        self._clock = node.handle.get_clock()
        self._node, self._topic = node, topic_of(profile.target, robot, COMMAND)
        self._follower = VelocityFollower(limits) if profile.target.type == TWIST else None
        self._message = TwistStamped() if self._follower else PoseStamped()
        self._message.header.frame_id = profile.base_frame
        self._publisher = node.publisher(self._topic)
        self._exerts, self._wrench, self._tool_frame = exerts, NO_WRENCH, profile.tool_frame
        self._wrenches: Any = None
        if profile.target_wrench is not None:
            self._wrench_topic = topic_of(profile.target_wrench, robot, COMMAND)
            self._wrenches = node.publisher(self._wrench_topic)
        self._trajectories: Any = None
        if profile.trajectory is not None:
            self._trajectory_topic = topic_of(profile.trajectory, robot, COMMAND)
            self._trajectories = node.publisher(self._trajectory_topic)
        self._gripper: _GripperTopic | _GripperAction | None = None
        if profile.gripper is not None:
            kind = _GripperAction if profile.gripper.command.type == GRIP else _GripperTopic
            self._gripper = kind(node, robot, profile.gripper)

    def send(self, setpoint: Setpoint, measured: Pose | None, pace: Limits | None) -> None:
        """Publish a setpoint, or the velocity that makes the arm follow it.

        Args:
            setpoint: desired pose of the arm at this instant.
            measured: measured pose; None when unknown.
            pace: limits on the motion to a target; None while the arm brakes or holds.
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

    def exert(self, wrench: Wrench, due: bool) -> None:
        """Publish the target wrench; an unchanged one only if `due`.

        Controllers keep the last one without a timeout, so zeros are published as well.
        """
        if self._wrenches is not None and (due or wrench != self._wrench):
            self._wrench = wrench
            stamp_ns = self._clock.now().nanoseconds
            self._wrenches.publish(wrench_message(wrench, self._tool_frame, stamp_ns))

    def move_joints(self, trajectory: Trajectory, joints: Sequence[str]) -> None:
        """Publish a trajectory of these joints, which begins when it arrives."""
        assert self._trajectories is not None  # the guard's configuration fits the profile
        self._trajectories.publish(trajectory_message(joints, trajectory))

    @property
    def unheard_trajectory(self) -> str:
        """The reason why a trajectory would have no subscriber; empty if it has one."""
        if self._trajectories is None or self._trajectories.get_subscription_count():
            return ""
        return f"{self._node.absolute(self._trajectory_topic.name)}: no controller listens"

    def end(self) -> None:
        """End the stream of setpoints; send no wrench, and zero velocity if velocities move it."""
        self.exert(NO_WRENCH, due=True)
        if self._follower is not None:
            self._send_twist(_STILL, _STILL)

    def _send_twist(self, linear: Vector, angular: Vector) -> None:
        message = self._message
        message.header.stamp = self._clock.now().to_msg()
        twist = message.twist
        twist.linear.x, twist.linear.y, twist.linear.z = linear
        twist.angular.x, twist.angular.y, twist.angular.z = angular
        self._publisher.publish(message)

    def begin(self) -> None:
        """Forget earlier gripper commands; called when the guard takes the arm."""
        if self._gripper is not None:
            self._gripper.begin()

    def grip(self, opening: float) -> None:
        """Open (1) or close (0) the gripper; called repeatedly."""
        if self._gripper is not None:
            self._gripper.send(opening)

    @property
    def missing_subscriber(self) -> str:
        """The reason why setpoints or gripper commands have no subscriber; empty if they do."""
        if not self._publisher.get_subscription_count():
            return self._target_problem()
        if self._exerts and not self._wrenches.get_subscription_count():
            return f"{self._node.absolute(self._wrench_topic.name)}: no controller listens"
        return self._gripper.missing_subscriber if self._gripper is not None else ""

    @property
    def overdue_goal(self) -> str:
        """The gripper command that was not accepted within a second; empty if there is none."""
        return self._gripper.overdue_goal if self._gripper is not None else ""

    def _target_problem(self) -> str:
        name = self._node.absolute(self._topic.name)
        found = self._node.handle.get_subscriptions_info_by_topic(name)
        expected = type(self._message).__name__
        others = sorted({each.topic_type for each in found} - {f"geometry_msgs/msg/{expected}"})
        if others:
            return f"{name}: its subscribers take {', '.join(others)}, expected {expected}"
        return f"{name}: no controller listens" + (" with a compatible QoS" if found else "")


class _GripperTopic:
    """A gripper commanded by a number on a topic; repeated, in case a message is lost."""

    overdue_goal = ""

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
    def missing_subscriber(self) -> str:
        subscribers = self._publisher.get_subscription_count()
        return "" if subscribers else f"{self._name}: no gripper listens"


class _GripperAction:
    """A gripper commanded by action goals: one per change, repeated each second until accepted."""

    def __init__(self, node: RosNode, robot: str, gripper: GripperProfile) -> None:
        kind, self._gripper = message_type(gripper.command), gripper
        self._name = node.absolute(name_of(gripper.command, robot))
        self._goal = kind.Goal
        self._client: Any = ActionClient(node.handle, kind, self._name)
        self.begin()

    def begin(self) -> None:
        self._opening: float | None = None  # of the last goal
        self._accepted = True
        self._requested_s = self._sent_s = -math.inf

    def send(self, opening: float) -> None:
        now_s = time.monotonic()
        if opening != self._opening:
            self._opening, self._accepted, self._requested_s = opening, False, now_s
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
    def missing_subscriber(self) -> str:
        ready = self._client.server_is_ready()
        return "" if ready else f"{self._name}: no gripper takes its goals"

    @property
    def overdue_goal(self) -> str:
        if self._accepted or time.monotonic() - self._requested_s <= _ANSWER_S:
            return ""
        return f"{self._name}: the gripper took no goal within {_ANSWER_S:g} s"
