"""An arm that follows setpoints as a stiff controller does, and holds by itself when they end."""

from __future__ import annotations

import math

from serl.geometry import between, from_rotation_vector, multiply
from serl.safety import Pose

TIMEOUT_S = 0.1
"""Silence after which a controller holds by itself."""


class FakeArm:
    """A tool without mass, a share of the way behind its setpoint.

    Attributes:
        pose: of the tool in the base frame.
        holding: no setpoint came for too long.
    """

    def __init__(self, pose: Pose, lag: float = 0.5) -> None:
        self.pose = pose
        self.holding = True
        self._target = pose
        self._part = 1.0 - lag  # of the way, in 10 ms
        self._heard_s = -math.inf

    def follow(self, setpoint: Pose, now_s: float) -> None:
        """Take a setpoint."""
        self._target, self._heard_s = setpoint, now_s

    def tick(self, now_s: float) -> Pose:
        """Let 10 ms pass; where the tool is then."""
        self.holding = now_s - self._heard_s > TIMEOUT_S
        if not self.holding:
            place, quaternion = self.pose
            x, y, z = (
                a + self._part * (b - a) for a, b in zip(place, self._target.position, strict=True)
            )
            turn = between(quaternion, self._target.quaternion)
            part = from_rotation_vector(
                (self._part * turn[0], self._part * turn[1], self._part * turn[2])
            )
            self.pose = Pose((x, y, z), multiply(part, quaternion))
        return self.pose
