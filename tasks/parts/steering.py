"""Steering of the tool by scripts, common to experts and resets of several tasks."""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from serl.errors import BadInput
from serl.geometry import Quaternion, conjugate, from_rotation_vector, multiply, rotate
from serl.motion import Motion
from serl.types import Action, Array

DOWN: Quaternion = (1.0, 0.0, 0.0, 0.0)
"""Orientation of a tool that points down; its y, along which fingers move, is the base's -y."""

OPEN, CLOSE = 1.0, -1.0
_AXES = ("x", "y", "z", "yaw")


def steer(
    motion: Motion,
    shift_m: np.ndarray[Any, Any] | Sequence[float],
    turn_rad: float = 0.0,
    gripper: float = 0.0,
    noise: np.ndarray[Any, Any] | float = 0.0,
) -> Action:
    """Return an action straight towards a goal, at the highest speed that an action allows.

    Args:
        motion: meaning of an action; its axes are x, y, z and optionally yaw.
        shift_m: translation from the target to the goal, in the base frame.
        turn_rad: rotation from the target's yaw to that of the goal.
        gripper: last entry of the action, if the motion has a gripper.
        noise: noise added to the motion.

    Raises:
        BadInput: the motion has other axes, or another frame than that of the base.
    """
    if motion.frame != "base" or motion.axes not in (_AXES, _AXES[:3]):
        raise BadInput(
            f"task_config.motion: a script moves {' '.join(_AXES)} in the base frame, "
            f"not {' '.join(motion.axes)} in the {motion.frame} frame"
        )
    shift = np.asarray(shift_m, np.float64) / motion.translation_m
    shift /= max(1.0, float(np.abs(shift).max()))
    turn = (turn_rad / motion.rotation_rad,) if "yaw" in motion.axes else ()
    moved = (np.array((*shift, *turn)) + noise).clip(-1.0, 1.0)
    return np.array((*moved, *((gripper,) if motion.gripper else ())), np.float32)


def about_z(angle_rad: float) -> Quaternion:
    """Return the rotation about the base's z."""
    return from_rotation_vector((0.0, 0.0, angle_rad))


def quaternion_of(pose: Array) -> Quaternion:
    """Return the orientation in a pose of seven numbers."""
    x, y, z, w = pose[3:].tolist()
    return x, y, z, w


def yaw(pose: Array) -> float:
    """Return the yaw of the x axis, rad; of the y axis if x is steep, as for a tipped cube."""
    quaternion = quaternion_of(pose)
    axis = rotate(quaternion, (1.0, 0.0, 0.0))
    if abs(axis[2]) > 0.8:
        axis = rotate(quaternion, (0.0, 1.0, 0.0))
    return math.atan2(axis[1], axis[0])


def tilt_of(pose: Array) -> float:
    """Return the rotation of a tool about the base's y, rad; 0 while it points down."""
    _, y, _, w = multiply(quaternion_of(pose), conjugate(DOWN))
    return math.remainder(2.0 * math.atan2(y, w), 2.0 * math.pi)


def rng_at(pose: Array) -> np.random.Generator:
    """Return a random generator seeded by a pose: equal poses give equal generators."""
    return np.random.default_rng(zlib.crc32(pose.tobytes()))


def scalar(value: float) -> Array:
    """Return a number as an array for a state.  # (1,)."""
    return np.array([value], np.float32)
