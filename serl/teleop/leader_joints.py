"""Joint states of a leader arm: its tool pose by forward kinematics of its URDF, and its gripper.

Leader arms such as GELLO and the SO-101 are published as `sensor_msgs/JointState` by their drivers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

from pydantic import Field

from serl.errors import BadInput, CorruptData
from serl.geometry import Quaternion, Vector, add, from_rotation_vector, multiply, rotate
from serl.system.files import read_bounded
from serl.teleop.leader_arm import LeaderArm, Pose
from serl.types import FrozenModel

_MAX_BYTES = 4_000_000
_FAR = 1e3  # m or rad: no arm has such a position
_TURNING, _SLIDING = ("revolute", "continuous"), ("prismatic",)


class LeaderJointsConfig(FrozenModel):
    """Settings of a leader arm that publishes its joints on `<actor>/leader_joints`.

    Attributes:
        urdf: URDF file of the leader arm; its base has to be oriented like the robot's.
        base: link at the base of the chain.
        tip: link of the tool. Its axes are those of the robot's tool.
        gripper: joint of the gripper, or empty without one.
        gripper_open: position of this joint with an open gripper.
        gripper_closed: position of this joint with a closed gripper.
        limit_m: largest distance to the robot's tool at which the leader may take over; None for a
            leader of other kinematics, whose motion is repeated from anywhere.
        limit_rad: largest angle to the robot's tool at which it may take over.
        follow: publish the robot's joints on `<actor>/leader_command` while the leader does not
            drive, under the leader's names, for a leader with motors of the same kinematics.
    """

    urdf: Path
    base: str = Field(min_length=1)
    tip: str = Field(min_length=1)
    gripper: str = ""
    gripper_open: float = Field(1.0, ge=-10, le=10)
    gripper_closed: float = Field(0.0, ge=-10, le=10)
    limit_m: float | None = Field(0.05, gt=0, le=1)
    limit_rad: float = Field(0.35, gt=0, le=math.pi)
    follow: bool = False

    @property
    def limits(self) -> tuple[float, float] | None:
        """Largest distance (m) and angle (rad) at a takeover; None without limits."""
        return None if self.limit_m is None else (self.limit_m, self.limit_rad)


class Joint(NamedTuple):
    """A joint of a chain: a fixed transform from its parent, then a motion along or about an axis.

    Attributes:
        name: name in joint states; empty if it is fixed.
        translation: translation (m) from the parent link.
        rotation: rotation from the parent link, xyzw.
        axis: unit vector of the motion.
        slides: True for a translation (m), False for a rotation (rad).
    """

    name: str
    translation: Vector
    rotation: Quaternion
    axis: Vector
    slides: bool

    def pose(self, position: float) -> Pose:
        """Return the pose of the child link in its parent at a position (rad or m)."""
        x, y, z = (position * part for part in self.axis)
        if self.slides:
            return add(self.translation, rotate(self.rotation, (x, y, z))), self.rotation
        return self.translation, multiply(self.rotation, from_rotation_vector((x, y, z)))


class JointChain:
    """The joints between two links of an arm."""

    def __init__(self, joints: Sequence[Joint]) -> None:
        self._joints = tuple(joints)
        self.names = tuple(joint.name for joint in joints if joint.name)

    def tip_pose(self, positions: Mapping[str, float]) -> Pose | None:
        """Return the pose of the tip in the base link; None without a position of each joint."""
        place: Vector = (0.0, 0.0, 0.0)
        turn: Quaternion = (0.0, 0.0, 0.0, 1.0)
        for joint in self._joints:
            if joint.name and joint.name not in positions:
                return None
            moved, turned = joint.pose(positions.get(joint.name, 0.0))
            place = add(place, rotate(turn, moved))
            turn = multiply(turn, turned)
        return place, turn


def read_chain(path: Path, base: str, tip: str) -> JointChain:
    """Read the joints from the link `base` to the link `tip` of a URDF file.

    Raises:
        BadInput: the file is no URDF, or has no such chain.
    """
    try:
        text = read_bounded(path, _MAX_BYTES)
    except (OSError, CorruptData) as error:
        raise BadInput(f"{path}: {getattr(error, 'strerror', None) or error}") from None
    if b"<!" in text.replace(b"<!--", b""):
        raise BadInput(f"{path}: expected a URDF without a document type")
    try:
        found = ElementTree.fromstring(text).findall("joint")
    except ElementTree.ParseError as error:
        raise BadInput(f"{path}: expected a URDF: {error}") from None
    by_child = {_link(path, joint, "child"): joint for joint in found}
    joints: list[Joint] = []
    link = tip
    while link != base:
        if link not in by_child or len(joints) > len(by_child):
            raise BadInput(f"{path}: no chain of joints from link {base!r} to link {tip!r}")
        joints.insert(0, _joint(path, by_child[link]))
        link = _link(path, by_child[link], "parent")
    return JointChain(joints)


def read_joints(urdf: str) -> list[tuple[str, str, Joint]]:
    """Return all joints of a URDF, each after the names of its parent link and its child link.

    Raises:
        BadInput: a joint is malformed.
    """
    path = Path("robot_description")
    return [
        (_link(path, joint, "parent"), _link(path, joint, "child"), _joint(path, joint))
        for joint in ElementTree.fromstring(urdf).findall("joint")
    ]


class LeaderJoints:
    """A receiver of a leader's joint states, which passes its tool pose on to a `LeaderArm`.

    Raises:
        BadInput: the URDF cannot be read.
    """

    def __init__(self, config: LeaderJointsConfig, arm: LeaderArm) -> None:
        self.chain = read_chain(config.urdf, config.base, config.tip)
        self._config, self._arm = config, arm

    def receive(self, names: Sequence[str], positions: Sequence[float]) -> None:
        """Receive joint positions by name (rad, m).

        Messages without all joints, or with a number that is no position, are ignored.
        """
        known = dict(zip(names, map(float, positions), strict=False))
        if not all(abs(value) < _FAR for value in known.values()):
            return
        pose = self.chain.tip_pose(known)
        if pose is not None:
            self._arm.receive(*pose, self._opening(known))

    def command(self, positions: Sequence[float]) -> dict[str, float] | None:
        """Return the leader's joint positions for the robot's; None while the leader drives.

        It is also None for a robot with another number of joints.
        """
        if self._arm.is_active or len(positions) != len(self.chain.names):
            return None
        return dict(zip(self.chain.names, map(float, positions), strict=True))

    def _opening(self, known: Mapping[str, float]) -> float | None:
        """Return the opening of the gripper, from -1 (closed) to 1 (open)."""
        closed, width = self._config.gripper_closed, self._config.gripper_open
        width -= closed
        if self._config.gripper not in known or not width:
            return None
        return min(1.0, max(-1.0, 2.0 * (known[self._config.gripper] - closed) / width - 1.0))


def _link(path: Path, joint: ElementTree.Element, kind: str) -> str:
    found = joint.find(kind)
    name = "" if found is None else found.get("link", "")
    if not name:
        raise BadInput(f"{path}: joint {joint.get('name')!r} names no {kind} link")
    return name


def _joint(path: Path, joint: ElementTree.Element) -> Joint:
    name, kind = joint.get("name", ""), joint.get("type", "")
    if joint.find("mimic") is not None or kind not in ("fixed", *_TURNING, *_SLIDING):
        raise BadInput(f"{path}: joint {name!r}: expected a fixed, turning or sliding joint")
    origin, axis = joint.find("origin"), joint.find("axis")
    roll, pitch, yaw = _numbers(path, name, origin, "rpy", "0 0 0")
    turn = from_rotation_vector((0.0, 0.0, yaw))
    for part in ((0.0, pitch, 0.0), (roll, 0.0, 0.0)):
        turn = multiply(turn, from_rotation_vector(part))
    x, y, z = _numbers(path, name, axis, "xyz", "1 0 0")
    length = math.hypot(x, y, z)
    if kind != "fixed" and not (name and length):
        raise BadInput(f"{path}: joint {name!r}: expected a name and an axis")
    unit = (x / length, y / length, z / length) if length else (1.0, 0.0, 0.0)
    place = _numbers(path, name, origin, "xyz", "0 0 0")
    return Joint("" if kind == "fixed" else name, place, turn, unit, kind in _SLIDING)


def _numbers(
    path: Path, joint: str, element: ElementTree.Element | None, key: str, default: str
) -> Vector:
    """Return the three numbers of an attribute."""
    text = default if element is None else element.get(key, default)
    try:
        x, y, z = map(float, text.split())
    except ValueError:
        raise BadInput(f"{path}: joint {joint!r}: expected three numbers, got {text!r}") from None
    if not all(map(math.isfinite, (x, y, z))):
        raise BadInput(f"{path}: joint {joint!r}: expected finite numbers, got {text!r}")
    return x, y, z
