"""Posture of the arm: control of its elbow in the null space of the tool, and joint moves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mujoco
import numpy as np

from serl.motion import Pose
from serl.setpoint import PROFILE_PERIOD_S
from serl.sim.physics.franka import HOME_RAD
from serl.sim.physics.kinematics import site_frame

# Joint-space posture control in the null space of the tool; holds the elbow to 1e-3 rad.
_STIFFNESS, _DAMPING = 10.0, 2.0
_REGULARIZATION = 1e-6  # smallest pivot, at a singularity
_SPEED_RAD_S = 0.25  # mean speed of the fastest joint in a move
_PEAK = 1.5  # ratio of the peak speed of a move to its mean

Vector64 = np.ndarray[Any, np.dtype[np.float64]]


class Posture:
    """Torque that pulls the joints of an arm towards a posture without moving its tool.

    Args:
        data: state of the model.
        site: number of the tool's site.
        joints: indices of the arm's joints.
    """

    def __init__(
        self, model: mujoco.MjModel, data: mujoco.MjData, site: int, joints: slice
    ) -> None:
        self._model, self._data, self._site, self._joints = model, data, site, joints
        self.target_rad: Vector64 = np.array(HOME_RAD)
        self._q, self._dq = data.qpos[joints], data.qvel[joints]
        self._exerted = data.qfrc_applied[joints]
        self._jacobian, self._torque = np.zeros((6, model.nv)), np.zeros(model.nv)

    def hold(self) -> None:
        """Set the torque towards the posture, projected into the null space of the tool."""
        jacobian, torque = self._jacobian, self._torque
        mujoco.mj_jacSite(self._model, self._data, jacobian[:3], jacobian[3:], self._site)
        away = self.target_rad - self._q
        torque[self._joints] = _STIFFNESS * away - _DAMPING * self._dq
        gram = jacobian @ jacobian.T
        mujoco.mju_cholFactor(gram, _REGULARIZATION)
        force = np.empty(6)
        mujoco.mju_cholSolve(force, gram, jacobian @ torque)
        self._exerted[:] = (torque - force @ jacobian)[self._joints]


class ForwardKinematics:
    """The pose of an arm's tool at given joint angles.

    Args:
        site: number of the tool's site.
        joints: indices of the arm's joints.
    """

    def __init__(self, model: mujoco.MjModel, site: int, joints: slice) -> None:
        self._model, self._scratch, self._joints = model, mujoco.MjData(model), joints
        self._frame = site_frame(model, self._scratch, site)

    def tool(self, joints: Sequence[float] | Vector64) -> Pose:
        """Return the pose of the tool."""
        self._scratch.qpos[self._joints] = joints
        mujoco.mj_kinematics(self._model, self._scratch)
        return self._frame.pose


class HomeMove:
    """Synchronous move of all joints to the home posture, from rest to rest.

    Args:
        start: joint angles at the start of the move.
    """

    def __init__(self, kinematics: ForwardKinematics, start: Vector64) -> None:
        self._kinematics, self._start = kinematics, start.copy()
        self._way = np.array(HOME_RAD) - self._start
        duration_s = float(np.abs(self._way).max()) * _PEAK / _SPEED_RAD_S
        self._ticks, self._tick = max(1, round(duration_s / PROFILE_PERIOD_S)), 0

    @property
    def done(self) -> bool:
        """Whether the home posture has been commanded."""
        return self._tick >= self._ticks

    def advance(self) -> tuple[Pose, Vector64]:
        """Return the target pose of the tool and the target joint angles in 10 ms."""
        self._tick = min(self._ticks, self._tick + 1)
        share = self._tick / self._ticks
        joints = self._start + share**2 * (3.0 - 2.0 * share) * self._way
        return self._kinematics.tool(joints), joints
