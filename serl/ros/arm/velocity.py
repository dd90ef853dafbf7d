"""How fast an arm has to go that takes velocities, so as to be where its setpoint is."""

from __future__ import annotations

import math

from serl.geometry import between
from serl.safety import Limits, Pose, within_lead
from serl.setpoint import PROFILE_PERIOD_S, Setpoint, steer
from serl.vectors import Vector, add, subtract

_GAIN_HZ = 2.0
"""Of what the arm is behind: a tenth of a second late at full speed is 1 cm, and 2 cm/s more."""

_HALTED_S = 0.1
"""Silence after which such an arm stands by itself."""

_STILL: Vector = (0.0, 0.0, 0.0)


class VelocityFollower:
    """The velocities of an arm, one every 10 ms, from that of its setpoint and where it is.

    A stop brakes what was sent last, and then sends zero: whoever stands is not led back, and
    whoever is pushed is not pushed back. What is sent keeps the limits that setpoints keep.

    Args:
        limits: of the stop, and of all motion.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._sent_s = -math.inf
        self._linear = self._angular = (_STILL, _STILL)  # velocity and acceleration

    def follow(
        self, setpoint: Setpoint, measured: Pose | None, pace: Limits | None, now_s: float
    ) -> tuple[Vector, Vector]:
        """The velocity to send now: the setpoint's own, and what brings the arm to it.

        Args:
            setpoint: where the arm is to be now, and how fast that moves.
            measured: where it is; None when that is not known: then it has to stand.
            pace: the limits by which it goes; None when it has to stand.
            now_s: monotonic time; after a pause it begins at rest.

        Returns:
            Linear (m/s) and angular velocity (rad/s), in the base frame, about the tool.
        """
        if now_s - self._sent_s > _HALTED_S:
            self._linear = self._angular = (_STILL, _STILL)
        self._sent_s = now_s
        if measured is None or pace is None:
            self._brake()
        else:
            self._pursue(setpoint, measured, pace)
        return self._linear[0], self._angular[0]

    def _pursue(self, setpoint: Setpoint, measured: Pose, pace: Limits) -> None:
        near = within_lead(setpoint.pose, measured, pace)  # an arm may have been pushed away
        behind = subtract(near.position, measured.position)
        turned = between(measured.quaternion, near.quaternion)
        self._linear = steer(
            *self._linear,
            add(setpoint.velocity, _scaled(behind)),
            pace.speed_m_s,
            pace.acceleration_m_s2,
            pace.jerk_m_s3,
            PROFILE_PERIOD_S,
        )
        self._angular = steer(
            *self._angular,
            add(setpoint.angular_velocity, _scaled(turned)),
            pace.angular_speed_rad_s,
            pace.angular_acceleration_rad_s2,
            pace.angular_jerk_rad_s3,
            PROFILE_PERIOD_S,
        )

    def _brake(self) -> None:
        limits = self._limits
        self._linear = steer(
            *self._linear,
            _STILL,
            limits.speed_m_s,
            limits.stop_acceleration_m_s2,
            limits.stop_jerk_m_s3,
            PROFILE_PERIOD_S,
        )
        self._angular = steer(
            *self._angular,
            _STILL,
            limits.angular_speed_rad_s,
            limits.stop_angular_acceleration_rad_s2,
            limits.stop_angular_jerk_rad_s3,
            PROFILE_PERIOD_S,
        )


def _scaled(v: Vector) -> Vector:
    return _GAIN_HZ * v[0], _GAIN_HZ * v[1], _GAIN_HZ * v[2]
