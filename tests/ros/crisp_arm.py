"""A fake of an FR3 under crisp_controllers, in a process of its own: its topics, its types, its
parameters, written down from its sources and not from our profile; and it can misbehave.

    python crisp_arm.py RUN_FOLDER ROBOT

Its parameter `fault` says how: late (stamps of long ago), frozen (the same stamp again and again),
nan, silent (no pose), dropped (commands are lost), stuck (it does not move), reflex (it stops, and
feels 60 N), stubborn (parameters are refused).
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from geometry_msgs.msg import PoseStamped, TwistStamped, WrenchStamped
from rcl_interfaces.msg import SetParametersResult
from sensor_msgs.msg import JointState
from std_msgs.msg import Float64MultiArray

from serl.ros.node import RosNode
from serl.ros.parameters import Described
from serl.ros.topics import Topic

PERIOD_S = 0.01
CLIP_M = 0.010
HOME = (0.3069, 0.0, 0.4869)
GAINS = {f"task.{k}_{kind}_{axis}": 1.0 for k in "kd" for kind in ("pos", "rot") for axis in "xyz"}
CLIPS = {f"task.error_clip.{axis}": 0.1 for axis in ("x", "y", "z", "rx", "ry", "rz")}
VALUES = {**GAINS, **CLIPS, "limit_error": False, "limit_torques": False, "fault": ""}
PARAMETERS = {
    name: Described(value, "of the fake", read_only=False) for name, value in VALUES.items()
}


class CrispArm:
    """A point that goes where it is told, with its tool down."""

    def __init__(self, node: RosNode, robot: str) -> None:
        self._node, self._robot = node, robot
        self._place = list(HOME)
        self._target = list(HOME)
        self._speed = [0.0, 0.0, 0.0]
        self._finger = self._finger_target = 1.0
        self._stamp = node.handle.get_clock().now().to_msg()
        self._pose = self._publisher("current_pose", PoseStamped)
        self._twist = self._publisher("current_twist", TwistStamped)
        self._wrench = self._publisher("external_wrench", WrenchStamped)
        self._joints = self._publisher("joint_states", JointState)
        self._gripper = self._publisher("gripper/joint_states", JointState)
        node.subscribe(Topic(f"{robot}/target_pose", PoseStamped, 1), self._on_target)
        command = f"{robot}/gripper/gripper_position_controller/commands"
        node.subscribe(Topic(command, Float64MultiArray, 1), self._on_gripper)
        node.handle.add_on_set_parameters_callback(self._on_parameters)
        node.every(PERIOD_S, self._tick)

    @property
    def fault(self) -> str:
        return str(self._node.handle.get_parameter("fault").value)

    def _publisher(self, name: str, kind: Any) -> Any:
        return self._node.publisher(Topic(f"{self._robot}/{name}", kind, 10))

    def _on_target(self, message: Any) -> None:
        if self.fault != "dropped":
            place = message.pose.position
            self._target = [place.x, place.y, place.z]

    def _on_gripper(self, message: Any) -> None:
        self._finger_target = message.data[0]

    def _on_parameters(self, parameters: Any) -> Any:
        names = {parameter.name for parameter in parameters}
        refused = self.fault == "stubborn" and names != {"fault"}
        return SetParametersResult(successful=not refused, reason="controller is active")

    def _tick(self) -> None:
        fault = self.fault
        if fault not in ("stuck", "reflex"):
            self._move()
        if fault != "frozen":
            self._stamp = self._node.handle.get_clock().now().to_msg()
        if fault == "late":
            self._stamp.sec -= 1
        self._finger += max(-0.1, min(0.1, self._finger_target - self._finger))
        self._tell(fault)

    def _move(self) -> None:
        step = [
            0.3 * max(-CLIP_M, min(CLIP_M, target - place))
            for target, place in zip(self._target, self._place, strict=True)
        ]
        self._place = [a + b for a, b in zip(self._place, step, strict=True)]
        self._speed = [value / PERIOD_S for value in step]

    def _tell(self, fault: str) -> None:
        twist, wrench, pose = TwistStamped(), WrenchStamped(), PoseStamped()
        for message in (twist, wrench, pose):
            message.header.frame_id, message.header.stamp = "base", self._stamp
        linear = twist.twist.linear
        linear.x, linear.y, linear.z = self._speed
        wrench.wrench.force.z = 60.0 if fault == "reflex" else 0.0
        place = pose.pose.position
        place.x, place.y, place.z = [float("nan")] * 3 if fault == "nan" else self._place
        pose.pose.orientation.x, pose.pose.orientation.w = 1.0, 0.0
        names = [f"fr3_joint{number}" for number in range(1, 8)]
        joints = JointState(name=names, velocity=[0.0] * 7)
        joints.position = [0.0, -0.785, 0.0, -2.356, 0.0, 1.571, 0.785]
        fingers = JointState(name=["gripper_joint"], position=[self._finger], velocity=[0.0])
        joints.header.stamp = fingers.header.stamp = self._stamp
        self._twist.publish(twist)
        self._wrench.publish(wrench)
        self._joints.publish(joints)
        self._gripper.publish(fingers)
        if fault != "silent":
            self._pose.publish(pose)


def main(folder: Path, robot: str) -> None:
    name = "cartesian_impedance_controller"
    with RosNode(name, folder, local=True, robot=robot, parameters=PARAMETERS) as node:
        CrispArm(node, robot)
        while not node.stopping:
            time.sleep(0.05)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
