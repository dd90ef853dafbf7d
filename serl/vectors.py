"""Three numbers as a plain tuple: cheap at 100 Hz."""

from __future__ import annotations

import math

Vector = tuple[float, float, float]


def add(a: Vector, b: Vector) -> Vector:
    """The sum."""
    return a[0] + b[0], a[1] + b[1], a[2] + b[2]


def subtract(a: Vector, b: Vector) -> Vector:
    """The difference a - b."""
    return a[0] - b[0], a[1] - b[1], a[2] - b[2]


def nearest_point(v: Vector, centre: Vector, radius: float) -> Vector:
    """The point nearest to `v` within `radius` of `centre`: `v` itself where it is within."""
    x, y, z = centre
    dx, dy, dz = v[0] - x, v[1] - y, v[2] - z
    square = dx * dx + dy * dy + dz * dz
    if square <= radius * radius:
        return v
    part = radius / math.sqrt(square)
    return x + part * dx, y + part * dy, z + part * dz


def shortening(x: float, y: float, z: float, longest: float) -> float:
    """The factor, at most 1, that makes a vector no longer than `longest`."""
    square = x * x + y * y + z * z
    return 1.0 if square <= longest * longest else longest / math.sqrt(square)


def shortened(v: Vector, longest: float) -> Vector:
    """`v`, or what is left of it at length `longest`; `v` itself where it is not longer."""
    factor = shortening(*v, longest)
    return v if factor == 1.0 else (factor * v[0], factor * v[1], factor * v[2])


def is_between(point: Vector, low: Vector, high: Vector, reach: float = 0.0) -> bool:
    """Whether a point is inside the box of two corners, or nearer to it than `reach` on each axis.

    One on its face is not inside.
    """
    rows = zip(low, point, high, strict=True)
    return all(a - reach < value < b + reach for a, value, b in rows)
