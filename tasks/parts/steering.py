"""How scripts steer the tool: what experts and resets of several tasks share."""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from serl.geometry import Quaternion, rotate
from serl.motion import Motion
from serl.types import Action, Array

DOWN: Quaternion = (1.0, 0.0, 0.0, 0.0)
"""The tool points down; its axis y, along which the fingers move, is the base's -y."""

OPEN, CLOSE = 1.0, -1.0


def steer(
    motion: Motion,
    shift_m: np.ndarray[Any, Any] | Sequence[float],
    turn_rad: float = 0.0,
    gripper: float = 0.0,
    noise: np.ndarray[Any, Any] | float = 0.0,
) -> Action:
    """Straight on at the highest speed that an action allows.

    Args:
        motion: what an action means; its axes are x, y, z and perhaps yaw.
        shift_m: from the target to where it is to go, in the base frame.
        turn_rad: from the target's yaw to the wanted one.
        gripper: the last entry, where there is a gripper.
        noise: added to the motion.
    """
    shift = np.asarray(shift_m, np.float64) / motion.translation_m
    shift /= max(1.0, float(np.abs(shift).max()))
    turn = (turn_rad / motion.rotation_rad,) if "yaw" in motion.axes else ()
    moved = (np.array((*shift, *turn)) + noise).clip(-1.0, 1.0)
    return np.array((*moved, *((gripper,) if motion.gripper else ())), np.float32)


def yaw(pose: Array) -> float:
    """Angle about the vertical of the axis x, or of the most level axis of a cube that tipped."""
    x, y, z, w = pose[3:].tolist()
    quaternion: Quaternion = (x, y, z, w)
    axis = rotate(quaternion, (1.0, 0.0, 0.0))
    if abs(axis[2]) > 0.8:
        axis = rotate(quaternion, (0.0, 1.0, 0.0))
    return math.atan2(axis[1], axis[0])


def rng_at(pose: Array) -> np.random.Generator:
    """Another one wherever the tool is, the same again for the same pose."""
    return np.random.default_rng(zlib.crc32(pose.tobytes()))


def scalar(value: float) -> Array:
    """As an array of a state.  # (1,)."""
    return np.array([value], np.float32)
