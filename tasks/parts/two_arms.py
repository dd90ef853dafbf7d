"""Two arms that face each other: bases, downward orientations, cameras and observations."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from serl.bimanual import LEFT, RIGHT
from serl.camera import View
from serl.geometry import Quaternion
from serl.specs import ArraySpec
from serl.task import ViewName
from serl.tasks.parts.arm_task import State
from serl.types import Array

SIDES = (LEFT, RIGHT)

BASES = {LEFT: (0.0, 0.0, 0.0, 0.0), RIGHT: (1.10, 0.0, 0.0, math.pi)}
"""x, y, z and yaw of each arm's base in the frame of both, m and rad."""

TOWARDS_LEFT: Quaternion = (0.0, 1.0, 0.0, 0.0)
"""Orientation of the right tool in the common frame, with the left tool at `DOWN`."""

VIEWS: dict[ViewName, View] = {
    "front": View(camera="field", width=64, height=64),
    "left_wrist": View(camera="left_wrist", width=64, height=64),
    "right_wrist": View(camera="right_wrist", width=64, height=64),
}
"""Views of a camera at each wrist, and of the task's camera `field`."""

Vector64 = np.ndarray[Any, np.dtype[np.float64]]


def arm_spec(side: str, origin: str) -> dict[str, ArraySpec]:
    """Return the specification of the ten numbers of `arm_state`."""
    position = ArraySpec(shape=(3,), unit="m, frame of both")
    return {
        f"{side}from_{origin}": position,
        f"{side}velocity": ArraySpec(shape=(3,), unit="m/s, frame of both"),
        f"{side}gripper": ArraySpec(shape=(1,), unit="opening, 0 to 1"),
        f"{side}lead": position,
    }


def arm_state(state: State, side: str, origin: str, origin_m: Vector64) -> dict[str, Array]:
    """Return the observation of an arm: tool relative to a place, velocity, gripper and lead."""
    tcp = state[f"{side}tcp_pose"][:3]
    return {
        f"{side}from_{origin}": (tcp - origin_m).astype(np.float32),
        f"{side}velocity": state[f"{side}tcp_twist"][:3],
        f"{side}gripper": state[f"{side}gripper"],
        f"{side}lead": state[f"{side}target_pose"][:3] - tcp,
    }


def target(state: State, side: str) -> Vector64:
    """Return the target position of the tool on this side.  # (3,)."""
    return state[f"{side}target_pose"][:3].astype(np.float64)
