"""Where everything in a simulation is, to be shown by another one of an equal scene."""

from __future__ import annotations

from typing import Any

import mujoco
import numpy as np

from serl.errors import BadInput

Vector64 = np.ndarray[Any, np.dtype[np.float64]]


def placement(data: mujoco.MjData) -> Vector64:
    """Joints, then mocaps. May be called from any thread, and costs microseconds."""
    return np.concatenate([data.qpos, data.mocap_pos.ravel(), data.mocap_quat.ravel()])


def show(model: mujoco.MjModel, data: mujoco.MjData, where: Vector64) -> None:
    """Put everything where `placement` had it, for pictures; raises `BadInput` if none fits."""
    joints = model.nq
    if where.shape != (joints + 7 * model.nmocap,) or not np.isfinite(where).all():
        raise BadInput(f"placement: expected {joints} joints and mocaps of this scene")
    data.qpos[:] = where[:joints]
    data.mocap_pos[:], data.mocap_quat[:] = _mocaps(model, where[joints:])
    mujoco.mj_kinematics(model, data)
    mujoco.mj_camlight(model, data)


def _mocaps(model: mujoco.MjModel, values: Vector64) -> tuple[Vector64, Vector64]:
    """Positions (N, 3) and quaternions (N, 4)."""
    count = model.nmocap
    return values[: 3 * count].reshape(count, 3), values[3 * count :].reshape(count, 4)
