"""The two-finger gripper of the simulated arm."""

from __future__ import annotations

from typing import Any

import mujoco
import numpy as np

from serl.sim.physics.franka import MAX_FINGER_M


class Gripper:
    """Commands the fingers and tells which body lies between them."""

    def __init__(self, model: mujoco.MjModel, data: mujoco.MjData, prefix: str = "") -> None:
        self._model, self._data = model, data
        self._actuator = model.actuator(f"{prefix}gripper").id
        joints = [model.joint(f"{prefix}finger_{side}") for side in ("left", "right")]
        (first,), (last,) = (joint.qposadr for joint in joints)
        self._fingers = data.qpos[first : last + 1]  # (2,)
        self._pads = [model.geom(f"{prefix}pad_{side}").id for side in ("left", "right")]

    @property
    def opening(self) -> float:
        """Mean finger position: 0 closed, 1 open."""
        left, right = self._fingers.tolist()
        return float(0.5 * (left + right) / MAX_FINGER_M)

    def reset(self, held_m: float | None = None) -> None:
        """For resets: open at once, or closed on something of this width."""
        self._fingers[:] = MAX_FINGER_M if held_m is None else 0.5 * held_m
        self.command(closed=held_m is not None)

    def command(self, closed: bool) -> None:
        """Set what the fingers go to."""
        self._data.ctrl[self._actuator] = 0.0 if closed else MAX_FINGER_M

    def grasps(self, body: str) -> bool:
        """Whether both pads touch the body of this name."""
        return self.touching(body) == len(self._pads)

    def touching(self, body: str) -> int:
        """How many pads touch the body of this name."""
        held = self._model.body(body).id
        geoms: np.ndarray[Any, Any] = self._data.contact.geom  # (contacts, 2)
        owners = self._model.geom_bodyid
        return len(
            {
                pad
                for pad in self._pads
                for first, second in geoms.tolist()
                if (first == pad and owners[second] == held)
                or (second == pad and owners[first] == held)
            }
        )
