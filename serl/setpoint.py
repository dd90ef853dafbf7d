"""Setpoint generation: a commanded pose follows its target within motion limits, at 100 Hz.

Speed, acceleration and jerk are limited, for translation and rotation by the same law. Scalar
Python, about 10 us per call.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from serl.geometry import (
    Vector,
    from_rotation_vector,
    length_factor,
    limit_length,
    multiply,
    rotation_between,
    subtract,
)
from serl.motion import Limits, Pose

PROFILE_PERIOD_S = 0.01
"""Period in which the setpoint advances, s."""

_REST_TOLERANCE = 1e-9
_REST: tuple[Vector, Vector] = ((0.0, 0.0, 0.0), (0.0, 0.0, 0.0))


class Setpoint(NamedTuple):
    """A commanded pose with its velocity and acceleration, in the base frame."""

    pose: Pose
    velocity: Vector = (0.0, 0.0, 0.0)
    acceleration: Vector = (0.0, 0.0, 0.0)
    angular_velocity: Vector = (0.0, 0.0, 0.0)
    angular_acceleration: Vector = (0.0, 0.0, 0.0)


def advance_setpoint(state: Setpoint, target: Pose, limits: Limits, dt_s: float) -> Setpoint:
    """Move the setpoint towards the target for `dt_s`, limited in speed, acceleration and jerk."""
    position, quaternion = state.pose
    velocity, acceleration = _track(
        subtract(target.position, position),
        state.velocity,
        state.acceleration,
        limits.speed_m_s,
        limits.acceleration_m_s2,
        limits.jerk_m_s3,
        dt_s,
    )
    angular_velocity, angular_acceleration = _REST
    if target.quaternion != quaternion or any(state.angular_velocity):
        angular_velocity, angular_acceleration = _track(
            rotation_between(quaternion, target.quaternion),
            state.angular_velocity,
            state.angular_acceleration,
            limits.angular_speed_rad_s,
            limits.angular_acceleration_rad_s2,
            limits.angular_jerk_rad_s3,
            dt_s,
        )
    return _integrate(
        state.pose, velocity, acceleration, angular_velocity, angular_acceleration, dt_s
    )


def brake_setpoint(state: Setpoint, limits: Limits, dt_s: float) -> Setpoint:
    """Move the setpoint towards rest for `dt_s`, with the stopping profile."""
    velocity, acceleration = _brake(
        state.velocity,
        state.acceleration,
        limits.stop_acceleration_m_s2,
        limits.stop_jerk_m_s3,
        dt_s,
    )
    angular_velocity, angular_acceleration = _brake(
        state.angular_velocity,
        state.angular_acceleration,
        limits.stop_angular_acceleration_rad_s2,
        limits.stop_angular_jerk_rad_s3,
        dt_s,
    )
    return _integrate(
        state.pose, velocity, acceleration, angular_velocity, angular_acceleration, dt_s
    )


def steer(
    velocity: Vector,
    acceleration: Vector,
    target: Vector,
    speed: float,
    peak: float,
    jerk: float,
    dt_s: float,
) -> tuple[Vector, Vector]:
    """Return velocity and acceleration after `dt_s` of changing to a target velocity.

    Reaches that velocity exactly, within limits of speed, acceleration (`peak`) and jerk.
    """
    target = limit_length(target, speed)
    dx, dy, dz = subtract(target, velocity)
    last, reach = (dx / dt_s, dy / dt_s, dz / dt_s), min(jerk * dt_s, peak)
    size = math.hypot(*last)
    lands = size <= reach and math.dist(last, acceleration) <= reach
    if lands and _peak(target, last, size, jerk) <= speed * speed:
        return target, last
    # Per period, half of the difference that remains once the acceleration is ramped to zero.
    h, k = 0.5 * math.hypot(*acceleration) / jerk, 0.5 / dt_s
    ax, ay, az = acceleration
    change = limit_length((k * (dx - ax * h), k * (dy - ay * h), k * (dz - az * h)), peak)
    return _limit_jerk(velocity, acceleration, change, math.hypot(*velocity), speed, jerk, dt_s)


def at_rest(state: Setpoint) -> bool:
    """Return whether the setpoint neither moves nor accelerates, apart from rounding errors.

    A setpoint that has reached its target keeps correcting the last bit of its value.
    """
    return all(abs(value) < _REST_TOLERANCE for vector in state[1:] for value in vector)


def _integrate(
    pose: Pose,
    velocity: Vector,
    acceleration: Vector,
    angular_velocity: Vector,
    angular_acceleration: Vector,
    dt_s: float,
) -> Setpoint:
    x, y, z = pose.position
    vx, vy, vz = velocity
    quaternion = pose.quaternion
    if any(angular_velocity):
        wx, wy, wz = angular_velocity
        turn = from_rotation_vector((wx * dt_s, wy * dt_s, wz * dt_s))
        qx, qy, qz, qw = multiply(turn, quaternion)
        # One Newton step towards norm 1 undoes the rounding.
        unit = 1.5 - 0.5 * (qx * qx + qy * qy + qz * qz + qw * qw)
        quaternion = qx * unit, qy * unit, qz * unit, qw * unit
    moved = Pose((x + vx * dt_s, y + vy * dt_s, z + vz * dt_s), quaternion)
    return Setpoint(moved, velocity, acceleration, angular_velocity, angular_acceleration)


def _track(
    error: Vector,
    velocity: Vector,
    acceleration: Vector,
    speed: float,
    peak: float,
    jerk: float,
    dt_s: float,
) -> tuple[Vector, Vector]:
    """Return velocity and acceleration after `dt_s` of moving to a target at distance `error`.

    The wanted velocity follows the square-root braking curve v(d) = sqrt(2 peak (d - d0)), linear
    within the last 2 d0; it is compared with the state predicted for when the acceleration has
    been ramped to that of the curve, so that the limited jerk does not lead to overshoot.
    """
    ex, ey, ez = error
    vx, vy, vz = velocity
    ax, ay, az = acceleration
    distance = math.sqrt(ex * ex + ey * ey + ez * ez)
    now = math.sqrt(vx * vx + vy * vy + vz * vz)
    calm = 0.125 * jerk * dt_s
    if (
        distance < calm * dt_s * dt_s
        and now < calm * dt_s
        and ax * ax + ay * ay + az * az < 9.0 * calm * calm
    ):
        # Close enough to land exactly on the target within the jerk limit.
        if distance < 1e-9 and not (any(velocity) or any(acceleration)):
            return _REST
        wx, wy, wz = ex / dt_s, ey / dt_s, ez / dt_s
        return (wx, wy, wz), ((wx - vx) / dt_s, (wy - vy) / dt_s, (wz - vz) / dt_s)

    gain = jerk / peak
    # Braking from full speed must begin half a ramp before the curve is met.
    slope = _slope(distance - 0.5 * now / gain, speed, peak, gain)
    fall = slope if slope * now <= peak else peak / now  # the curve's acceleration is -fall v
    bx, by, bz = ax + fall * vx, ay + fall * vy, az + fall * vz
    # A ramp from the acceleration a to b at full jerk takes t and moves v t + (2 a + b) t^2 / 6.
    t = math.sqrt(bx * bx + by * by + bz * bz) / jerk
    h, k = 0.5 * t, t * t / 6.0
    of_v, of_a = t - fall * k, 2.0 * k
    px = ex - of_v * vx - of_a * ax
    py = ey - of_v * vy - of_a * ay
    pz = ez - of_v * vz - of_a * az
    distance = math.sqrt(px * px + py * py + pz * pz)
    of_p = gain * _approach(distance, speed, peak, gain) / distance if distance > 1e-12 else 0.0
    of_v, of_a = fall + gain * (1.0 - fall * h), gain * h
    wx = of_p * px - of_v * vx - of_a * ax
    wy = of_p * py - of_v * vy - of_a * ay
    wz = of_p * pz - of_v * vz - of_a * az
    f = length_factor(wx, wy, wz, peak)
    target = f * wx, f * wy, f * wz
    return _limit_jerk(velocity, acceleration, target, now, speed, jerk, dt_s)


def _approach(distance: float, speed: float, peak: float, gain: float) -> float:
    """Return the target speed at a distance; `gain` is the slope of the linear part, in 1/s."""
    knee = peak / (gain * gain)
    if distance <= knee:
        return min(speed, gain * distance)
    return min(speed, math.sqrt(2.0 * peak * (distance - 0.5 * knee)))


def _slope(distance: float, speed: float, peak: float, gain: float) -> float:
    """Return the derivative of the target speed with respect to the distance, in 1/s."""
    target = _approach(distance, speed, peak, gain)
    if target == speed:
        return 0.0
    return gain if target * gain <= peak else peak / target


def _limit_jerk(
    velocity: Vector,
    acceleration: Vector,
    target: Vector,
    now: float,
    speed: float,
    jerk: float,
    dt_s: float,
) -> tuple[Vector, Vector]:
    """Approach the target acceleration at limited jerk, unless this would break the speed limit.

    Returns the new velocity and acceleration. `now` is the length of the velocity.

    Invariant: ramping the acceleration a to zero from here never exceeds `speed`, that is
    |v + a |a| / (2 jerk)| <= speed. Ramping down preserves the invariant, so it is always possible.
    Above a limit that was lowered meanwhile, any change towards the limit is accepted.
    """
    vx, vy, vz = velocity
    ax, ay, az = acceleration
    dx, dy, dz = target[0] - ax, target[1] - ay, target[2] - az
    f = length_factor(dx, dy, dz, jerk * dt_s)
    nx, ny, nz = ax + f * dx, ay + f * dy, az + f * dz
    size = math.sqrt(nx * nx + ny * ny + nz * nz)
    reserve = dt_s + 0.5 * size / jerk
    if now + size * reserve > speed:  # the exact test is needed near the limit only
        rx, ry, rz = vx + nx * reserve, vy + ny * reserve, vz + nz * reserve
        peak = rx * rx + ry * ry + rz * rz
        size = math.sqrt(ax * ax + ay * ay + az * az)
        if peak > speed * speed and peak > _peak(velocity, acceleration, size, jerk):
            scale = max(0.0, 1.0 - jerk * dt_s / size) if size > 0.0 else 0.0
            nx, ny, nz = ax * scale, ay * scale, az * scale
    return (vx + nx * dt_s, vy + ny * dt_s, vz + nz * dt_s), (nx, ny, nz)


def _peak(velocity: Vector, acceleration: Vector, size: float, jerk: float) -> float:
    """Return the square of the speed once the acceleration, of length `size`, is ramped to zero."""
    h = 0.5 * size / jerk
    x, y, z = (v + h * a for v, a in zip(velocity, acceleration, strict=True))
    return x * x + y * y + z * z


def _brake(
    velocity: Vector, acceleration: Vector, peak: float, jerk: float, dt_s: float
) -> tuple[Vector, Vector]:
    """Return velocity and acceleration after `dt_s` of stopping; ends at exactly zero velocity."""
    if not (any(velocity) or any(acceleration)):
        return _REST
    vx, vy, vz = velocity
    ax, ay, az = acceleration
    reach = jerk * dt_s
    wx, wy, wz = -vx / dt_s, -vy / dt_s, -vz / dt_s
    dx, dy, dz = wx - ax, wy - ay, wz - az
    if wx * wx + wy * wy + wz * wz <= reach * reach >= dx * dx + dy * dy + dz * dz:
        return (0.0, 0.0, 0.0), (wx, wy, wz)
    # Per period, half of the difference that remains once the acceleration is ramped to zero.
    h = 0.5 * math.sqrt(ax * ax + ay * ay + az * az) / jerk
    k = 0.5 / dt_s
    target = limit_length((-k * (vx + ax * h), -k * (vy + ay * h), -k * (vz + az * h)), peak)
    dx, dy, dz = limit_length(subtract(target, acceleration), reach)
    nx, ny, nz = ax + dx, ay + dy, az + dz
    return (vx + nx * dt_s, vy + ny * dt_s, vz + nz * dt_s), (nx, ny, nz)
