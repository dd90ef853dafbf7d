"""Publishers of an arm's measurements, on the topics of its profile."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from std_msgs.msg import String

from serl.arm_profile import ArmProfile, Channel
from serl.errors import BadInput
from serl.ros.arm.camera import info_topic, picture_topic
from serl.ros.arm.topics import robot_description, topic_of, tracked_pose, truth
from serl.ros.conversions import (
    camera_info_message,
    image_message,
    joints_message,
    pose_message,
    truth_message,
    twist_message,
    wrench_message,
)
from serl.ros.node import RosNode
from serl.types import Array, Image


class ArmPublisher:
    """Publisher of the numbers and pictures of one arm.

    Args:
        robot: the arm's namespace.
        profile: topic names and message types of the arm.
        tracked: bodies whose pose is published, as by an object tracker.
        cameras: names of the cameras whose pictures are published.
        qos: quality of service of all topics.
        with_truth: publish the privileged state as well.
    """

    def __init__(
        self,
        node: RosNode,
        robot: str,
        profile: ArmProfile,
        tracked: Iterable[str],
        cameras: Iterable[str],
        qos: Any,
        with_truth: bool = True,
    ) -> None:
        def of(channel: Channel | None) -> Any:
            return node.publisher(topic_of(channel, robot, qos)) if channel else None

        self._profile = profile
        self._pose, self._twist = of(profile.pose), of(profile.twist)
        self._wrench, self._joints = of(profile.wrench), of(profile.joint_states)
        self._gripper = of(profile.gripper.state if profile.gripper else None)
        self._truth = node.publisher(truth(robot, qos)) if with_truth else None
        self._tracked = {name: node.publisher(tracked_pose(robot, name, qos)) for name in tracked}
        self._pictures = PicturePublisher(node, robot, cameras, qos)

    def state(self, numbers: Mapping[str, Sequence[float]], stamp_ns: int) -> None:
        """Publish the numbers of a reading, see `serl.robot`, all of one instant."""
        frame, gripper = self._profile.base_frame, self._profile.gripper
        for name, publisher in self._tracked.items():
            publisher.publish(pose_message(numbers[f"{name}_pose"], frame, stamp_ns))
        if self._twist:
            self._twist.publish(twist_message(numbers["tcp_twist"], frame, stamp_ns))
        if self._wrench:
            self._wrench.publish(wrench_message(numbers["wrench"], frame, stamp_ns))
        names, q, dq = self._profile.joints, numbers["q"], numbers["dq"]
        self._joints.publish(joints_message(names, q, dq, stamp_ns))
        if gripper:
            joint = gripper.joint or "gripper"
            position = [gripper.position(numbers["gripper"][0])]
            self._gripper.publish(joints_message([joint], position, [0.0], stamp_ns))
        self._pose.publish(pose_message(numbers["tcp_pose"], frame, stamp_ns))

    def truth(self, arrays: Mapping[str, Array]) -> None:
        """Publish the privileged state of a simulation, if `with_truth`."""
        if self._truth:
            self._truth.publish(truth_message(arrays))

    def pictures(
        self, pictures: Mapping[tuple[str, tuple[int, int]], Image], stamp_ns: int
    ) -> None:
        """Publish the cameras' pictures, and a `CameraInfo` with each."""
        self._pictures.publish({name: one for (name, _), one in pictures.items()}, stamp_ns)


class PicturePublisher:
    """Publisher of pictures, with a `CameraInfo` each, in the namespace of a robot.

    Args:
        robot: the arm's namespace.
        cameras: names of the cameras or views.
        qos: quality of service of all topics.
    """

    def __init__(self, node: RosNode, robot: str, cameras: Iterable[str], qos: Any) -> None:
        self._cameras = {
            name: (
                node.publisher(picture_topic(robot, name, qos)),
                node.publisher(info_topic(robot, name, qos)),
            )
            for name in cameras
        }

    def publish(self, pictures: Mapping[str, Image], stamp_ns: int) -> None:
        """Publish pictures by camera, all of one instant."""
        for name, picture in pictures.items():
            image = image_message(picture, name, stamp_ns)
            images, infos = self._cameras[name]
            images.publish(image)
            infos.publish(camera_info_message(image))


def publish_description(node: RosNode, robot: str, arm: Any, prefix: str = "") -> None:
    """Publish the URDF of a simulated arm once, latched; do nothing without a URDF.

    Args:
        node: the process's node.
        robot: the arm's namespace.
        arm: the simulation, with the method `urdf` if its URDF is known.
        prefix: prefix of the arm's names in the simulation.
    """
    if (urdf := getattr(arm, "urdf", None)) is not None:
        node.publisher(robot_description(robot)).publish(String(data=urdf(prefix)))


def cameras_of(sources: Iterable[tuple[str, tuple[int, int]]]) -> list[str]:
    """Return the cameras' names; raise `BadInput` if views ask for two sizes of one picture."""
    names = [name for name, _ in sources]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise BadInput(
            f"camera {', '.join(twice)}: views ask for different sizes of its picture; "
            "give them the same capture"
        )
    return names
