"""Publishers of an arm's measurements, on the topics of its profile."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from std_msgs.msg import String

from serl.arm_profile import ArmProfile, Channel
from serl.camera import View
from serl.errors import BadInput
from serl.ros.arm.camera import info_topic, picture_topic
from serl.ros.arm.topics import robot_description, topic_of, tracked_pose, transforms, truth
from serl.ros.conversions import (
    camera_info_message,
    image_message,
    joints_message,
    pose_message,
    transform_message,
    truth_message,
    twist_message,
    wrench_message,
)
from serl.ros.node import RosNode
from serl.teleop.leader_joints import Joint, read_joints
from serl.types import Array, Image


class ArmPublisher:
    """Publisher of the numbers and pictures of one arm.

    Args:
        robot: the arm's namespace.
        profile: topic names and message types of the arm.
        tracked: bodies whose pose is published, as by an object tracker.
        cameras: cameras whose pictures are published, by their names.
        qos: quality of service of all topics.
        with_truth: publish the privileged state as well.
    """

    def __init__(
        self,
        node: RosNode,
        robot: str,
        profile: ArmProfile,
        tracked: Iterable[str],
        cameras: Mapping[str, PublishedCamera],
        qos: Any,
        with_truth: bool = True,
    ) -> None:
        def of(channel: Channel | None) -> Any:
            return node.publisher(topic_of(channel, robot, qos)) if channel else None

        self._profile, self._node, self._robot = profile, node, robot
        self._transforms: TransformPublisher | None = None
        self._pose, self._twist = of(profile.pose), of(profile.twist)
        self._wrench, self._joints = of(profile.wrench), of(profile.joint_states)
        self._gripper = of(profile.gripper.state if profile.gripper else None)
        self._truth = node.publisher(truth(robot, qos)) if with_truth else None
        self._tracked = {name: node.publisher(tracked_pose(robot, name, qos)) for name in tracked}
        self._pictures = PicturePublisher(node, robot, cameras, qos)

    def describe(self, urdf: str, alone: bool) -> None:
        """Publish the URDF of a simulated arm once, latched, and its transforms from now on.

        Args:
            urdf: the URDF.
            alone: whether no other arm of the domain has frames of these names: transforms are
                then on the global `/tf`, else on `tf` in the arm's namespace.
        """
        self._node.publisher(robot_description(self._robot)).publish(String(data=urdf))
        if importlib.util.find_spec("tf2_msgs"):
            self._transforms = TransformPublisher(self._node, "" if alone else self._robot, urdf)

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
        if self._transforms:
            self._transforms.publish(dict(zip(names, q, strict=True)), stamp_ns)
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


class TransformPublisher:
    """Publisher of the pose of each link of an arm in its parent, for RViz and Foxglove.

    Needs the package tf2_msgs, which the wheels of ROS 2 lack and an installation of ROS 2 has.

    Args:
        robot: the namespace of the topic `tf`; empty for the root.
    """

    def __init__(self, node: RosNode, robot: str, urdf: str) -> None:
        self._joints = read_joints(urdf)
        self._publisher = node.publisher(topic := transforms(robot))
        self._kind = topic.kind

    def publish(self, positions: Mapping[str, float], stamp_ns: int) -> None:
        """Publish the poses of all links at positions of the joints (rad), if there is a reader."""
        if self._publisher.get_subscription_count():
            found = link_transforms(self._joints, positions, stamp_ns)
            self._publisher.publish(self._kind(transforms=found))


def link_transforms(
    joints: Iterable[tuple[str, str, Joint]], positions: Mapping[str, float], stamp_ns: int
) -> list[Any]:
    """Return a TransformStamped for each joint of a URDF, see `read_joints`; others rest at 0."""
    return [
        transform_message(parent, child, *joint.pose(positions.get(joint.name, 0.0)), stamp_ns)
        for parent, child, joint in joints
    ]


class PublishedCamera(NamedTuple):
    """A simulated camera as other programs need it.

    Attributes:
        frame: its optical frame, which has the name of the camera.
        fovy_rad: vertical field of view of its whole picture; None if unknown.
        view: the view of it that is published; None for the whole picture.
    """

    frame: str
    fovy_rad: float | None = None
    view: View | None = None


class PicturePublisher:
    """Publisher of pictures, with a `CameraInfo` each, in the namespace of a robot.

    Args:
        robot: the arm's namespace.
        cameras: the cameras, by the names of their topics.
        qos: quality of service of all topics.
    """

    def __init__(
        self, node: RosNode, robot: str, cameras: Mapping[str, PublishedCamera], qos: Any
    ) -> None:
        self._cameras = {
            name: (
                camera,
                node.publisher(picture_topic(robot, name, qos)),
                node.publisher(info_topic(robot, name, qos)),
            )
            for name, camera in cameras.items()
        }

    def publish(self, pictures: Mapping[str, Image], stamp_ns: int) -> None:
        """Publish pictures by topic, all of one instant."""
        for name, picture in pictures.items():
            camera, images, infos = self._cameras[name]
            image = image_message(picture, camera.frame, stamp_ns)
            images.publish(image)
            infos.publish(camera_info_message(image, camera.fovy_rad, camera.view))


def cameras_of(sources: Iterable[tuple[str, tuple[int, int]]]) -> list[str]:
    """Return the cameras' names; raise `BadInput` if views ask for two sizes of one picture."""
    names = [name for name, _ in sources]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise BadInput(
            f"camera {', '.join(twice)}: views ask for different sizes of its picture; "
            "give them the same capture"
        )
    return names
