"""Two arms driven by one policy: the file that names them, and the frame that both share.

    left: left.yaml
    right: {profile: right.yaml, namespace: /right, base_m: [1.1, 0.0, 0.0], quarter_turns: 2}

The profile of each arm is in the frame of its own base, as its driver is. Tasks, actions and
readings are in a common frame. Arms are turned against it by quarter turns only, so that a box of
one frame is a box of the other, and an axis of an action one axis of the other.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Self

from pydantic import AfterValidator, Field, model_validator

from serl.bimanual import LEFT, RIGHT
from serl.errors import BadInput
from serl.geometry import (
    Quaternion,
    Vector,
    add,
    from_rotation_vector,
    multiply,
    subtract,
)
from serl.motion import Axis, Box, Motion, Pose
from serl.system.files import expand_home
from serl.system.json_fields import short
from serl.system.settings_file import checked, read_yaml
from serl.types import FrozenModel

SIDES = {"left": LEFT, "right": RIGHT}
"""Prefix of the names of an arm, by its key in the file of a pair."""

_NAMESPACE = r"^(/|(/[A-Za-z][A-Za-z0-9_]*)+)$"
_COSINES, _SINES = (1, 0, -1, 0), (0, 1, 0, -1)
_PLANES: tuple[tuple[Axis, Axis], ...] = (("x", "y"), ("roll", "pitch"))
"""Pairs of axes that a turn about z mixes."""


class PairedArm(FrozenModel):
    """One arm of a pair; in a file, its profile alone stands for it.

    Attributes:
        profile: name of an arm, or path of a .py or .yaml file, from the folder of the pair's file.
        namespace: namespace of its driver, from the root; "/" for the root itself.
        base_m: position of its base in the common frame; None for that of the task's scene.
        quarter_turns: turns of its base about z of the common frame, each by 90 degrees; None for
            those of the task's scene.
    """

    profile: Annotated[str, AfterValidator(expand_home)]
    namespace: str = Field("/", pattern=_NAMESPACE)
    base_m: Vector | None = None
    quarter_turns: int | None = Field(None, ge=0, le=3)

    @model_validator(mode="before")
    @classmethod
    def _of_profile(cls, value: Any) -> Any:
        if not isinstance(value, str | Mapping | PairedArm):
            found = "nothing" if value is None else short(value)
            raise ValueError(f"expected a profile, such as {{profile: left.yaml}}, got {found}")
        return {"profile": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.base_m is None) != (self.quarter_turns is None):
            raise ValueError("base_m and quarter_turns: expected both, or neither")
        return self


class ArmPair(FrozenModel):
    """The file of a pair of arms.

    Attributes:
        left: the arm whose names begin with `left_`.
        right: the arm whose names begin with `right_`.
        clearance_m: least distance between the positions that the guards allow to both tools,
            along the axis that separates them best: half a hand on either side of a plane.
    """

    left: PairedArm
    right: PairedArm
    clearance_m: float = Field(0.07, ge=0.02, le=0.5)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.left.namespace == self.right.namespace:
            raise ValueError(
                f"left and right: both in the namespace {self.left.namespace}, where the guards of "
                "both would obey one actor: give each arm its own"
            )
        return self


def read_pair(robot: str | None) -> ArmPair | None:
    """Return the pair in a file; None for any other arm, also if the file is absent.

    Raises:
        BadInput: the file of a pair is wrong; one line with the name of the key.
    """
    if robot is None or not robot.endswith(".yaml") or not Path(robot).is_file():
        return None
    path = Path(robot)
    values = read_yaml(path)
    if not SIDES.keys() & values.keys():
        return None
    try:
        pair = checked(ArmPair, values)
    except BadInput as error:
        raise BadInput(f"{path}: {error}") from None
    arms = {side: _resolve_profile(path.parent, getattr(pair, side)) for side in SIDES}
    return pair.model_copy(update=arms)


def _resolve_profile(folder: Path, arm: PairedArm) -> PairedArm:
    if not arm.profile.endswith((".yaml", ".py")):
        return arm
    return arm.model_copy(update={"profile": str((folder / arm.profile).resolve())})


class Mount(NamedTuple):
    """The place of an arm's base in the common frame.

    Attributes:
        position: position of the base.
        quarters: quarter turns of the base about z.
    """

    position: Vector
    quarters: int

    @property
    def turn(self) -> Quaternion:
        """The orientation of the base in the common frame."""
        return from_rotation_vector((0.0, 0.0, 0.5 * math.pi * self.quarters))

    @property
    def inverse_turn(self) -> Quaternion:
        """The orientation of the common frame in the frame of the base."""
        return from_rotation_vector((0.0, 0.0, -0.5 * math.pi * self.quarters))

    def to_common(self, v: Vector) -> Vector:
        """Return a vector of the arm's own frame in the common frame; lengths stay exact."""
        return _turn(v, self.quarters)

    def to_own(self, v: Vector) -> Vector:
        """Return a vector of the common frame in the arm's own frame."""
        return _turn(v, -self.quarters)

    def common_pose(self, pose: Pose) -> Pose:
        """Return a pose of the arm's own frame in the common frame."""
        position = add(self.position, self.to_common(pose.position))
        return Pose(position, multiply(self.turn, pose.quaternion))

    def own_pose(self, pose: Pose) -> Pose:
        """Return a pose of the common frame in the arm's own frame."""
        position = self.to_own(subtract(pose.position, self.position))
        return Pose(position, multiply(self.inverse_turn, pose.quaternion))

    def common_motion(self, motion: Motion) -> Motion:
        """Return a motion with its box in the common frame."""
        corners = (add(self.position, self.to_common(v)) for v in _corners(motion))
        return _with_box(motion, *corners)

    def own_motion(self, motion: Motion) -> Motion:
        """Return a motion with its box in the arm's own frame."""
        corners = (self.to_own(subtract(v, self.position)) for v in _corners(motion))
        return _with_box(motion, *corners)

    def common_box(self, box: Box) -> Box:
        """Return a box of the arm's own frame in the common frame."""
        ends = [add(self.position, self.to_common(v)) for v in (box.low_m, box.high_m)]
        low, high = _sort_corners(*ends)
        return Box(low_m=low, high_m=high)

    def own_action(self, motion: Motion, action: Sequence[float]) -> list[float]:
        """Return an action of the common frame in the arm's own frame."""
        return _turn_action(motion, action, -self.quarters)

    def common_action(self, motion: Motion, action: Sequence[float]) -> list[float]:
        """Return an action of the arm's own frame in the common frame."""
        return _turn_action(motion, action, self.quarters)


UNMOVED_BASE = Mount((0.0, 0.0, 0.0), 0)
"""The mount of an arm whose own frame is the common frame."""


def mount_of(side: str, arm: PairedArm, base: tuple[float, float, float, float]) -> Mount:
    """Return the place of an arm's base.

    Args:
        side: the arm's key in the file of its pair.
        arm: the arm.
        base: x y z and yaw of the base in the task's scene, for an arm whose file gives none.

    Raises:
        BadInput: the scene's base is turned by another angle than quarter turns.
    """
    if arm.base_m is not None and arm.quarter_turns is not None:
        return Mount(arm.base_m, arm.quarter_turns)
    x, y, z, yaw = base
    quarters = round(yaw / (0.5 * math.pi))
    if abs(yaw - 0.5 * math.pi * quarters) > 1e-6:
        raise BadInput(f"{side}: its base in the scene is turned by {yaw:g} rad: give base_m")
    return Mount((x, y, z), quarters % 4)


def separate_boxes(left: Motion, right: Motion, clearance_m: float) -> tuple[Motion, Motion]:
    """Return both motions with their boxes at least `clearance_m` apart, either side of a plane.

    The plane is halfway between the boxes, across the axis along which they are farthest apart.

    Raises:
        BadInput: the boxes overlap along each axis, or one has no room left.
    """
    boxes = _corners(left), _corners(right)
    gaps = [max(boxes[1][0][i] - boxes[0][1][i], boxes[0][0][i] - boxes[1][1][i]) for i in range(3)]
    axis = max(range(3), key=gaps.__getitem__)
    if gaps[axis] < 0.0:
        raise BadInput(
            "motion and right_motion: the boxes of both tools overlap along x, y and z; expected "
            "a plane between them"
        )
    if gaps[axis] >= clearance_m:
        return left, right
    (low, high) = (0, 1) if boxes[1][0][axis] >= boxes[0][1][axis] else (1, 0)
    plane_m = 0.5 * (boxes[low][1][axis] + boxes[high][0][axis])
    motions = [left, right]
    for which, name, edge_m in (
        (low, "box_high_m", plane_m - 0.5 * clearance_m),
        (high, "box_low_m", plane_m + 0.5 * clearance_m),
    ):
        corner = list(getattr(motions[which], name))
        corner[axis] = edge_m
        own = boxes[which]
        if not own[0][axis] < edge_m < own[1][axis]:
            side = ("left", "right")[which]
            raise BadInput(f"clearance_m: {clearance_m:g}: leaves the {side} tool no room")
        motions[which] = motions[which].model_copy(update={name: tuple(corner)})
    return motions[0], motions[1]


def check_turnable(name: str, motion: Motion, mount: Mount) -> None:
    """Raise `BadInput` if an action lacks an axis that the arm's own frame needs."""
    if motion.frame == "tool" or mount.quarters % 2 == 0:
        return
    for plane in _PLANES:
        used = [axis for axis in plane if axis in motion.axes]
        if len(used) == 1:
            (missing,) = set(plane) - set(used)
            raise BadInput(
                f"{name}: its base is turned by 90 degrees, and its actions move the tool along "
                f"{used[0]} without {missing}"
            )


def _turn(v: Vector, quarters: int) -> Vector:
    cosine, sine = _COSINES[quarters % 4], _SINES[quarters % 4]
    return cosine * v[0] - sine * v[1], sine * v[0] + cosine * v[1], v[2]


def _corners(motion: Motion) -> tuple[Vector, Vector]:
    return motion.box_low_m, motion.box_high_m


def _with_box(motion: Motion, first: Vector, second: Vector) -> Motion:
    low, high = _sort_corners(first, second)
    return motion.model_copy(update={"box_low_m": low, "box_high_m": high})


def _sort_corners(first: Vector, second: Vector) -> tuple[Vector, Vector]:
    """Return the lowest and the highest corner of a box, from two opposite corners."""
    low = min(first[0], second[0]), min(first[1], second[1]), min(first[2], second[2])
    high = max(first[0], second[0]), max(first[1], second[1]), max(first[2], second[2])
    return low, high


def _turn_action(motion: Motion, action: Sequence[float], quarters: int) -> list[float]:
    """Return an action turned about z; a gripper's entry stays."""
    values = [float(value) for value in action]
    if motion.frame == "tool" or quarters % 4 == 0:
        return values
    given: Mapping[Axis, float] = dict(zip(motion.axes, values, strict=False))
    turned: dict[Axis, float] = dict(given)
    cosine, sine = _COSINES[quarters % 4], _SINES[quarters % 4]
    for first, second in _PLANES:
        a, b = given.get(first, 0.0), given.get(second, 0.0)
        turned[first], turned[second] = cosine * a - sine * b, sine * a + cosine * b
    return [*(turned[axis] for axis in motion.axes), *values[len(motion.axes) :]]
