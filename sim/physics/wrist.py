"""The force-torque sensor at the wrist of the simulated arm."""

from __future__ import annotations

from typing import Any

import mujoco
import numpy as np

Vector64 = np.ndarray[Any, np.dtype[np.float64]]

# MuJoCo samples by itself every 10 ms, in the last 2 ms step of each: a reading of every step
# would cost 8 % of the physics.
SAMPLES = 10


def sensors_mjcf(prefix: str = "") -> str:
    """Of an arm whose names have a prefix: force, then torque."""
    return "".join(
        f'<{kind} site="{prefix}ft" name="{prefix}{kind}" nsample="{SAMPLES}"'
        ' interval="0.01 -0.003"/>'
        for kind in ("force", "torque")
    )


class Wrist:
    """Means of what the sensor measured lately, with its weight at rest taken off."""

    def __init__(self, model: mujoco.MjModel, data: mujoco.MjData, prefix: str = "") -> None:
        self._data = data
        self._rotation: Vector64 = data.site_xmat[model.site(f"{prefix}ft").id].reshape(3, 3)
        # The ring buffers of both, each with two cursors, the times, and a vector a time.
        start = model.sensor_historyadr[model.sensor(f"{prefix}force").id]
        buffers = data.history[start : start + 2 * (2 + 4 * SAMPLES)].reshape(2, -1)
        self._times = buffers[0, 2 : 2 + SAMPLES]
        self._values = buffers[:, 2 + SAMPLES :].reshape(2, SAMPLES, 3)
        self._weight = np.zeros(6)

    def tare(self) -> None:
        """Take what is measured now, over 10 ms, as the weight at rest."""
        self._weight = self._mean(0.01)

    def wrench(self, period_s: float) -> Vector64:
        """What the surroundings exert, the mean over the last period, in the base frame.  # (6,).

        Only the last 100 ms are known.
        """
        return self._weight - self._mean(period_s)

    def _mean(self, period_s: float) -> Vector64:
        recent = self._times > self._data.time - period_s
        mean = recent @ self._values / np.count_nonzero(recent)  # (2, 3)
        turned: Vector64 = (mean @ self._rotation.T).ravel()
        return turned
