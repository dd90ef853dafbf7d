"""How fast an arm has to go that takes velocities, so as to be where its setpoint is."""

from __future__ import annotations

from serl.rotations import between
from serl.safety import Limits, Pose
from serl.setpoint import Setpoint
from serl.vectors import Vector, add, shortened, subtract

_GAIN_HZ = 2.0
"""Of what the arm is behind: a tenth of a second late at full speed is 1.5 cm, and 3 cm/s more."""


def velocity_towards(
    setpoint: Setpoint, measured: Pose | None, limits: Limits
) -> tuple[Vector, Vector]:
    """The setpoint's own velocity, and what brings the arm to it; within the limits of speed.

    Args:
        setpoint: where the arm is to be now, and how fast that moves.
        measured: where it is; None when that is not known: then it has to stand.
        limits: of speed.

    Returns:
        Linear (m/s) and angular velocity (rad/s), in the base frame, about the tool.
    """
    if measured is None:
        return (0.0, 0.0, 0.0), (0.0, 0.0, 0.0)
    behind = subtract(setpoint.pose.position, measured.position)
    turned = between(measured.quaternion, setpoint.pose.quaternion)
    linear = add(setpoint.velocity, _scaled(behind))
    angular = add(setpoint.angular_velocity, _scaled(turned))
    return (
        shortened(linear, limits.speed_m_s),
        shortened(angular, limits.angular_speed_rad_s),
    )


def _scaled(v: Vector) -> Vector:
    return _GAIN_HZ * v[0], _GAIN_HZ * v[1], _GAIN_HZ * v[2]
