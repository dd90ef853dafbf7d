"""Quaternions (xyzw, unit) and rotation vectors (rad) as plain tuples: cheap at 100 Hz."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated

from pydantic import AfterValidator

from serl.errors import BadInput

Vector = tuple[float, float, float]


def add(a: Vector, b: Vector) -> Vector:
    """Return the sum a + b."""
    return a[0] + b[0], a[1] + b[1], a[2] + b[2]


def subtract(a: Vector, b: Vector) -> Vector:
    """Return the difference a - b."""
    return a[0] - b[0], a[1] - b[1], a[2] - b[2]


def nearest_point(v: Vector, centre: Vector, radius: float) -> Vector:
    """Return the point nearest to `v` within `radius` of `centre`; `v` itself if within."""
    x, y, z = centre
    dx, dy, dz = v[0] - x, v[1] - y, v[2] - z
    square = dx * dx + dy * dy + dz * dz
    if square <= radius * radius:
        return v
    part = radius / math.sqrt(square)
    return x + part * dx, y + part * dy, z + part * dz


def length_factor(x: float, y: float, z: float, longest: float) -> float:
    """Return the factor, at most 1, that limits a vector's length to `longest`."""
    square = x * x + y * y + z * z
    return 1.0 if square <= longest * longest else longest / math.sqrt(square)


def limit_length(v: Vector, longest: float) -> Vector:
    """Return `v` scaled to length `longest`, or `v` itself if it is not longer."""
    factor = length_factor(*v, longest)
    return v if factor == 1.0 else (factor * v[0], factor * v[1], factor * v[2])


def is_in_box(point: Vector, low: Vector, high: Vector, reach: float = 0.0) -> bool:
    """Return whether a point is in a box, or nearer to it than `reach` on each axis.

    A point on a face of the box is not inside.
    """
    rows = zip(low, point, high, strict=True)
    return all(a - reach < value < b + reach for a, value, b in rows)


Quaternion = tuple[float, float, float, float]

_NORM_TOLERANCE = 1e-2


def multiply(a: Quaternion, b: Quaternion) -> Quaternion:
    """Return the Hamilton product: the rotation `b` followed by the rotation `a`."""
    ax, ay, az, aw = a
    bx, by, bz, bw = b
    return (
        aw * bx + ax * bw + ay * bz - az * by,
        aw * by - ax * bz + ay * bw + az * bx,
        aw * bz + ax * by - ay * bx + az * bw,
        aw * bw - ax * bx - ay * by - az * bz,
    )


def conjugate(q: Quaternion) -> Quaternion:
    """Return the inverse rotation."""
    return -q[0], -q[1], -q[2], q[3]


def rotate(q: Quaternion, v: Vector) -> Vector:
    """Return the vector `v` rotated by `q`."""
    x, y, z, w = q
    vx, vy, vz = v
    tx, ty, tz = 2 * (y * vz - z * vy), 2 * (z * vx - x * vz), 2 * (x * vy - y * vx)
    return (
        vx + w * tx + y * tz - z * ty,
        vy + w * ty + z * tx - x * tz,
        vz + w * tz + x * ty - y * tx,
    )


def from_rotation_vector(v: Vector) -> Quaternion:
    """Return the quaternion of a rotation by |v| rad about v."""
    angle = math.sqrt(v[0] * v[0] + v[1] * v[1] + v[2] * v[2])
    scale = math.sin(0.5 * angle) / angle if angle > 1e-12 else 0.5
    return v[0] * scale, v[1] * scale, v[2] * scale, math.cos(0.5 * angle)


def to_rotation_vector(q: Quaternion) -> Vector:
    """Return the shortest rotation vector of `q`; its length is at most pi."""
    x, y, z, w = q if q[3] >= 0.0 else (-q[0], -q[1], -q[2], -q[3])
    sine = math.sqrt(x * x + y * y + z * z)
    scale = 2.0 * math.atan2(sine, w) / sine if sine > 1e-12 else 2.0
    return x * scale, y * scale, z * scale


def rotation_between(start: Quaternion, end: Quaternion) -> Vector:
    """Return the shortest rotation vector that turns `start` into `end`, in the base frame."""
    ax, ay, az, aw = end
    bx, by, bz, bw = start
    # end times the conjugate of start
    x = ax * bw - aw * bx - ay * bz + az * by
    y = ay * bw - aw * by - az * bx + ax * bz
    z = az * bw - aw * bz - ax * by + ay * bx
    w = aw * bw + ax * bx + ay * by + az * bz
    sine = math.sqrt(x * x + y * y + z * z)
    scale = 2.0 * math.atan2(sine, abs(w)) / sine if sine > 1e-12 else 2.0
    if w < 0.0:
        scale = -scale
    return x * scale, y * scale, z * scale


def yaw(q: Quaternion) -> float:
    """Return the angle of the rotated x axis about the vertical, rad."""
    x, y, _ = rotate(q, (1.0, 0.0, 0.0))
    return math.atan2(y, x)


def wrap_angle(angle: float, period: float) -> float:
    """Return `angle` modulo `period`, in [-period / 2, period / 2)."""
    return (angle + 0.5 * period) % period - 0.5 * period


def nearest_rotation(q: Quaternion, centre: Quaternion, radius_rad: float) -> Quaternion:
    """Return the rotation nearest to `q` within `radius_rad` of `centre`; `q` itself if within.

    The radius is at most 2 pi; from pi on every rotation is within.
    """
    cx, cy, cz, cw = centre
    x, y, z, w = q
    dot = cx * x + cy * y + cz * z + cw * w  # the cosine of half the angle between them
    cosine = math.cos(0.5 * radius_rad)
    if abs(dot) >= cosine:
        return q
    # On the arc from the centre to q, or to -q where that is nearer.
    b = math.copysign(math.sin(0.5 * radius_rad) / math.sqrt(1.0 - dot * dot), dot)
    a = cosine - b * dot
    return a * cx + b * x, a * cy + b * y, a * cz + b * z, a * cw + b * w


def align_sign(q: Quaternion, reference: Quaternion) -> Quaternion:
    """Return `q` or `-q` (the same rotation), whichever is nearer to `reference`."""
    dot = q[0] * reference[0] + q[1] * reference[1] + q[2] * reference[2] + q[3] * reference[3]
    return q if dot >= 0.0 else (-q[0], -q[1], -q[2], -q[3])


def normalize(q: Sequence[float]) -> Quaternion:
    """Return `q` with unit norm.

    Raises:
        BadInput: not four finite numbers, or the norm is off by more than 0.01, which is not a
            rounding error but a wrong message.
    """
    norm = math.sqrt(sum(c * c for c in q)) if len(q) == 4 else math.nan
    if not abs(norm - 1.0) <= _NORM_TOLERANCE:
        raise BadInput(f"quaternion {[*q]}: expected four finite numbers (xyzw) of norm 1")
    x, y, z, w = (c / norm for c in q)
    return x, y, z, w


def _unit(q: Quaternion) -> Quaternion:
    try:
        return normalize(q)
    except BadInput as error:
        raise ValueError(str(error)) from None


UnitQuaternion = Annotated[Quaternion, AfterValidator(_unit)]
"""Quaternion field of a configuration: normalised, or rejected."""
