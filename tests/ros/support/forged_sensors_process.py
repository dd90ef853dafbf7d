"""A forger of an arm's measurements: a push of 40 N, a drift along y, and turning joints.

    python forged_sensors_process.py NAMESPACE_OF_THE_ARM

A plain rclpy process beside the driver; it begins at the first received pose.
"""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from typing import Any

import rclpy
from geometry_msgs.msg import PoseStamped, WrenchStamped
from rclpy.executors import ExternalShutdownException
from rclpy.node import Node
from rclpy.qos import qos_profile_sensor_data
from sensor_msgs.msg import JointState

DRIFT_M_S, FORCE_N, TURN_RAD_S, RATE_HZ = 0.03, 40.0, 0.01, 200.0


class Forger(Node):  # type: ignore[misc]
    def __init__(self, prefix: str) -> None:
        super().__init__("forger")
        self._begun: tuple[float, Any] | None = None
        self._poses = self.create_publisher(PoseStamped, f"{prefix}/current_pose", 5)
        self._wrenches = self.create_publisher(WrenchStamped, f"{prefix}/wrench", 5)
        self._joints = self.create_publisher(JointState, f"{prefix}/joint_states", 5)
        self.create_subscription(
            PoseStamped, f"{prefix}/current_pose", self._begin, qos_profile_sensor_data
        )
        self.create_timer(1.0 / RATE_HZ, self._forge)

    def _begin(self, message: Any) -> None:
        self._begun = self._begun or (time.monotonic(), message)

    def _forge(self) -> None:
        if self._begun is None:
            return
        begun_s, true = self._begun
        pose, wrench = PoseStamped(), WrenchStamped()
        place, turn = pose.pose.position, pose.pose.orientation
        was, facing = true.pose.position, true.pose.orientation
        place.x, place.z = was.x, was.z
        place.y = was.y + DRIFT_M_S * (time.monotonic() - begun_s)
        turn.x, turn.y, turn.z, turn.w = facing.x, facing.y, facing.z, facing.w
        pose.header.frame_id = wrench.header.frame_id = true.header.frame_id
        pose.header.stamp = wrench.header.stamp = self.get_clock().now().to_msg()
        wrench.wrench.force.x = FORCE_N
        self._poses.publish(pose)
        joints = JointState(position=[TURN_RAD_S * (time.monotonic() - begun_s), *[0.0] * 6])
        joints.header.stamp = pose.header.stamp
        self._wrenches.publish(wrench)
        self._joints.publish(joints)


def main() -> None:
    rclpy.init()
    forger = Forger(sys.argv[1])
    with suppress(ExternalShutdownException, RuntimeError):  # it was asked to end
        rclpy.spin(forger)
    forger.destroy_node()  # otherwise it stays discovered for 20 s, like a killed node


if __name__ == "__main__":
    main()
