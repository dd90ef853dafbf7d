"""Pure functions between an arm's ROS messages and values; non-finite numbers are refused."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from builtin_interfaces.msg import Duration, Time
from geometry_msgs.msg import PoseStamped, TransformStamped, TwistStamped, WrenchStamped
from sensor_msgs.msg import CameraInfo, Image, JointState
from std_msgs.msg import Float32MultiArray, MultiArrayDimension
from trajectory_msgs.msg import JointTrajectory, JointTrajectoryPoint

from serl import types
from serl.camera import WHOLE, View
from serl.errors import BadInput, CorruptData
from serl.geometry import Quaternion, Vector, normalize, rotate, rotation_between
from serl.motion import Pose
from serl.trajectory import JointPoint, Trajectory
from serl.types import Array

_SECOND_NS = 1_000_000_000
_MOST_TRUTH = 1 << 12


def stamp_of(nanoseconds: int) -> Any:
    """Convert nanoseconds to a `builtin_interfaces/Time`."""
    seconds, rest = divmod(nanoseconds, _SECOND_NS)
    return Time(sec=seconds, nanosec=rest)


def nanoseconds_of(stamp: Any) -> int:
    """Convert a `builtin_interfaces/Time` to nanoseconds; the inverse of `stamp_of`."""
    return int(stamp.sec) * _SECOND_NS + int(stamp.nanosec)


def pose_message(values: Sequence[float], frame: str, stamp_ns: int) -> Any:
    """Make a PoseStamped of seven numbers, x y z (m) and a quaternion xyzw, in a frame."""
    message = PoseStamped()
    message.header.frame_id, message.header.stamp = frame, stamp_of(stamp_ns)
    position, orientation = message.pose.position, message.pose.orientation
    position.x, position.y, position.z = values[:3]
    orientation.x, orientation.y, orientation.z, orientation.w = values[3:]
    return message


def transform_message(
    parent: str, child: str, place: Vector, turn: Quaternion, stamp_ns: int
) -> Any:
    """Make a TransformStamped: the pose of the frame `child` in the frame `parent`."""
    message = TransformStamped(child_frame_id=child)
    message.header.frame_id, message.header.stamp = parent, stamp_of(stamp_ns)
    translation, rotation = message.transform.translation, message.transform.rotation
    translation.x, translation.y, translation.z = place
    rotation.x, rotation.y, rotation.z, rotation.w = turn
    return message


def pose_of(message: Any, frame: str) -> Pose:
    """Read a PoseStamped; the pose is the one that was sent, to the bit.

    Raises:
        BadInput: the frame is another one, a number is not finite, or the quaternion's norm is
            not 1.
    """
    _check_frame(message, frame)
    position, orientation = message.pose.position, message.pose.orientation
    place = _finite((position.x, position.y, position.z), "position")
    quaternion = orientation.x, orientation.y, orientation.z, orientation.w
    normalize(quaternion)
    return Pose((place[0], place[1], place[2]), quaternion)


def twist_message(values: Sequence[float], frame: str, stamp_ns: int) -> Any:
    """Make a TwistStamped of the linear (m/s), then the angular velocity (rad/s)."""
    message = TwistStamped()
    message.header.frame_id, message.header.stamp = frame, stamp_of(stamp_ns)
    linear, angular = message.twist.linear, message.twist.angular
    linear.x, linear.y, linear.z = values[:3]
    angular.x, angular.y, angular.z = values[3:]
    return message


def twist_of(message: Any, frames: Sequence[str]) -> list[float]:
    """Read a TwistStamped as six finite numbers, linear velocity first.

    Raises:
        BadInput: a number is not finite, or the header names a frame that is not in `frames`.
    """
    if message.header.frame_id:
        _check_frame(message, *frames)
    linear, angular = message.twist.linear, message.twist.angular
    numbers = (linear.x, linear.y, linear.z, angular.x, angular.y, angular.z)
    return _finite(numbers, "twist")


def wrench_message(values: Sequence[float], frame: str, stamp_ns: int) -> Any:
    """Make a WrenchStamped of the force (N), then the torque (Nm)."""
    message = WrenchStamped()
    message.header.frame_id, message.header.stamp = frame, stamp_of(stamp_ns)
    force, torque = message.wrench.force, message.wrench.torque
    force.x, force.y, force.z = values[:3]
    torque.x, torque.y, torque.z = values[3:]
    return message


def wrench_of(message: Any, frames: Sequence[str]) -> list[float]:
    """Read a WrenchStamped as six finite numbers, force first.

    Raises:
        BadInput: a number is not finite, or the header names a frame that is not in `frames`.
    """
    if message.header.frame_id:
        _check_frame(message, *frames)
    force, torque = message.wrench.force, message.wrench.torque
    numbers = (force.x, force.y, force.z, torque.x, torque.y, torque.z)
    return _finite(numbers, "wrench")


def rotate_to_base(values: Sequence[float], pose: Pose) -> list[float]:
    """Rotate two vectors, one after the other, from the tool's frame into the base frame."""
    first, second = (values[0], values[1], values[2]), (values[3], values[4], values[5])
    return [*rotate(pose.quaternion, first), *rotate(pose.quaternion, second)]


def twist_between(before: Pose, after: Pose, dt_s: float) -> list[float]:
    """Return the mean twist from one pose to another, for arms that publish no twist."""
    shift = [(b - a) / dt_s for a, b in zip(before.position, after.position, strict=True)]
    return [
        *shift,
        *(turn / dt_s for turn in rotation_between(before.quaternion, after.quaternion)),
    ]


def joints_message(
    names: Sequence[str], q: Sequence[float], dq: Sequence[float], stamp_ns: int
) -> Any:
    """Make a JointState of the positions and velocities of joints."""
    message = JointState(name=list(names), position=list(q), velocity=list(dq))
    message.header.stamp = stamp_of(stamp_ns)
    return message


def joints_of(message: Any, names: Sequence[str]) -> tuple[list[float], list[float]] | None:
    """Return the positions and velocities of these joints; None when the message has none of them.

    Raises:
        BadInput: some of the joints are missing, or numbers are missing or not finite.
    """
    index = {name: place for place, name in enumerate(message.name)}
    missing = [name for name in names if name not in index]
    if len(missing) == len(names):
        return None
    if missing:
        raise BadInput(f"no joint {', '.join(missing)} among {', '.join(message.name)}")
    if len(message.position) < len(index) or len(message.velocity) < len(index):
        raise BadInput("expected a position and a velocity of each joint")
    places = [index[name] for name in names]
    q, dq = [message.position[i] for i in places], [message.velocity[i] for i in places]
    return _finite(q, "joint positions"), _finite(dq, "joint velocities")


def gripper_of(message: Any, joint: str | None) -> float | None:
    """Return the gripper's position; None when the message is about other joints."""
    if joint is not None and joint not in message.name:
        return None
    place = 0 if joint is None else list(message.name).index(joint)
    if len(message.position) <= place:
        raise BadInput("expected a position of the gripper")
    return _finite((message.position[place],), "gripper position")[0]


def opening_message(opening: float, stamp_ns: int) -> Any:
    """Make a gripper command from the opening, 0 to 1; `gripper_of` reads it."""
    return joints_message(["gripper"], [opening], [], stamp_ns)


def number_of(message: Any) -> float:
    """Return the number of a command; raises `BadInput` unless there is exactly one, finite."""
    if len(message.data) != 1:
        raise BadInput(f"expected one number, got {len(message.data)}")
    return _finite(message.data, "command")[0]


def image_message(picture: types.Image, frame: str, stamp_ns: int) -> Any:
    """Make an Image message of a picture, uint8 (H, W, 3) RGB."""
    height, width, _ = picture.shape
    message = Image(height=height, width=width, encoding="rgb8", step=3 * width)
    message.header.frame_id, message.header.stamp = frame, stamp_of(stamp_ns)
    message.data.frombytes(picture.tobytes())
    return message


def camera_info_message(image: Any, fovy_rad: float | None = None, view: View | None = None) -> Any:
    """Make the CameraInfo of an image: its size, and its intrinsics where they are known.

    Args:
        image: the Image.
        fovy_rad: vertical field of view of the whole picture; None leaves out the intrinsics.
        view: the view that the image shows of the picture; None for the whole picture.
    """
    info = CameraInfo(header=image.header, height=image.height, width=image.width)
    if fovy_rad is None:
        return info
    width, height = view.capture_size if view else (image.width, image.height)
    left, top, right, bottom = view.crop if view else WHOLE
    x, y = image.width / (right - left), image.height / (bottom - top)  # of the whole, in pixels
    focal = 0.5 / math.tan(0.5 * fovy_rad)  # in heights of the whole picture
    first = focal * height / width * x, 0.0, (0.5 - left) * x - 0.5
    second = 0.0, focal * y, (0.5 - top) * y - 0.5
    info.k = [*first, *second, 0.0, 0.0, 1.0]
    info.p = [*first, 0.0, *second, 0.0, 0.0, 0.0, 1.0, 0.0]
    info.r = [1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0]
    info.distortion_model, info.d = "plumb_bob", [0.0] * 5
    return info


def truth_message(arrays: Mapping[str, Array]) -> Any:
    """Make a Float32MultiArray of named arrays, one after the other."""
    message = Float32MultiArray()
    message.layout.dim = [
        MultiArrayDimension(label=name, size=len(array), stride=len(array))
        for name, array in arrays.items()
    ]
    message.data = [number for array in arrays.values() for number in array.tolist()]
    return message


def truth_of(message: Any) -> dict[str, Array]:
    """Read the message of `truth_message`; raises `CorruptData` when layout and data disagree."""
    sizes = [int(dim.size) for dim in message.layout.dim]
    if sum(sizes) != len(message.data) or len(message.data) > _MOST_TRUTH:
        raise CorruptData(f"truth: {len(message.data)} numbers for arrays of {sizes}")
    values, start, arrays = np.array(message.data, np.float32), 0, {}
    for dim, size in zip(message.layout.dim, sizes, strict=True):
        arrays[str(dim.label)] = values[start : start + size]
        start += size
    return arrays


def _check_frame(message: Any, *frames: str) -> None:
    if message.header.frame_id not in frames:
        expected = " or ".join(map(repr, frames))
        raise BadInput(f"in the frame {message.header.frame_id!r}, expected {expected}")


def _finite(values: Sequence[float], subject: str) -> list[float]:
    numbers = list(values)
    if not all(map(math.isfinite, numbers)):
        raise BadInput(f"{subject} not finite: {numbers}")
    return numbers


def trajectory_message(joints: Sequence[str], trajectory: Trajectory) -> Any:
    """Return the message of a trajectory that begins when it arrives: its stamp is zero."""
    points = []
    for point in trajectory:
        seconds, rest = divmod(round(1e9 * point.time_s), _SECOND_NS)
        points.append(
            JointTrajectoryPoint(
                positions=list(point.positions_rad),
                velocities=list(point.velocities_rad_s),
                time_from_start=Duration(sec=seconds, nanosec=rest),
            )
        )
    return JointTrajectory(joint_names=list(joints), points=points)


def trajectory_of(message: Any, joints: Sequence[str]) -> Trajectory:
    """Return the trajectory of a message, in the order of these joints.

    Raises:
        BadInput: it has other joints, no points, times that do not increase, or no numbers.
    """
    names = list(message.joint_names)
    if sorted(names) != sorted(joints):
        raise BadInput(f"trajectory of {', '.join(names)[:200]}: expected {', '.join(joints)}")
    order, before_s, points = [names.index(joint) for joint in joints], 0.0, []
    for point in message.points:
        time_s = point.time_from_start.sec + 1e-9 * point.time_from_start.nanosec
        numbers = [*point.positions, *point.velocities]
        if len(point.positions) != len(names) or len(point.velocities) != len(names):
            raise BadInput(f"trajectory: expected {len(names)} positions and velocities")
        if time_s <= before_s or not all(map(math.isfinite, numbers)):
            raise BadInput("trajectory: expected finite numbers, and times that increase")
        before_s = time_s
        positions = tuple(point.positions[i] for i in order)
        points.append(JointPoint(time_s, positions, tuple(point.velocities[i] for i in order)))
    if not points:
        raise BadInput("trajectory: it has no points")
    return tuple(points)
