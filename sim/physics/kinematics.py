"""Poses of frames of the model, and inverse kinematics by damped least squares for resets."""

from __future__ import annotations

from typing import Any

import mujoco
import numpy as np

from serl.errors import BadInput
from serl.geometry import Quaternion, rotation_between
from serl.motion import Pose

Vector64 = np.ndarray[Any, np.dtype[np.float64]]

_MAX_ITERATIONS = 100
_MAX_STEP_RAD = 0.3
_DAMPING = 1e-6
_TOLERANCE = 1e-5
_POSTURE_TOLERANCE_RAD = 1e-3


class Frame:
    """A frame of the model, bound to its arrays because looking them up is slower than reading."""

    def __init__(self, position: Vector64, quaternion: Vector64) -> None:
        self._position, self._quaternion = position, quaternion

    @property
    def pose(self) -> Pose:
        """The current pose base_T_frame."""
        x, y, z = self._position.tolist()
        w, qx, qy, qz = self._quaternion.tolist()
        return Pose((x, y, z), (qx, qy, qz, w))


def body_frame(model: mujoco.MjModel, data: mujoco.MjData, name: str) -> Frame:
    """Return the frame of a body."""
    body = model.body(name).id
    return Frame(data.xpos[body], data.xquat[body])


def site_frame(model: mujoco.MjModel, data: mujoco.MjData, site: int) -> Frame:
    """Return the frame of a site that has the orientation of its body."""
    return Frame(data.site_xpos[site], data.xquat[model.site_bodyid[site]])


def arm_joints(model: mujoco.MjModel, prefix: str = "") -> slice:
    """Return the indices of the seven joints of an arm in qpos, qvel and the joint arrays.

    The indices are the same in all of them, because arms come first in a model and all their
    joints are hinges or slides.
    """
    first = model.joint(f"{prefix}joint1").id
    return slice(first, first + 7)


def solve_ik(
    model: mujoco.MjModel,
    data: mujoco.MjData,
    site: int,
    posture: Vector64,
    target: Pose,
    joints: slice,
) -> None:
    """Move `joints` of `data` until `site` is at `target` within 1e-5 m and rad.

    The solution is the one nearest to `posture`, which has one angle for each joint.

    Raises:
        BadInput: the pose cannot be reached within the joint ranges.
    """
    jacobian, frame = np.zeros((6, model.nv)), site_frame(model, data, site)
    low, high = model.jnt_range[joints].T
    for _ in range(_MAX_ITERATIONS):
        mujoco.mj_kinematics(model, data)
        mujoco.mj_comPos(model, data)
        error = pose_error(target, frame.pose)
        mujoco.mj_jacSite(model, data, jacobian[:3], jacobian[3:], site)
        j = jacobian[:, joints]
        away = posture - data.qpos[joints]
        gram = j @ j.T + _DAMPING * np.eye(6)
        aside = away - j.T @ np.linalg.solve(gram, j @ away)
        reached = np.abs(error).max() < _TOLERANCE
        if reached and np.abs(aside).max() < _POSTURE_TOLERANCE_RAD:
            return
        step = aside + j.T @ np.linalg.solve(gram, error)
        step *= min(1.0, _MAX_STEP_RAD / np.abs(step).max())
        data.qpos[joints] = np.clip(data.qpos[joints] + step, low, high)
    raise BadInput(f"the tool cannot reach {target.position} with quaternion {target.quaternion}")


def pose_error(target: Pose, pose: Pose) -> Vector64:
    """Return the translation and rotation vector (6,) from `pose` to `target`, base frame."""
    turn = rotation_between(pose.quaternion, target.quaternion)
    return np.array([*np.subtract(target.position, pose.position), *turn])


def to_wxyz(quaternion: Quaternion) -> Quaternion:
    """Convert a quaternion from xyzw to MuJoCo's order wxyz."""
    x, y, z, w = quaternion
    return w, x, y, z
