"""Smooth surfaces as triangle meshes: lathed profiles, and lofts through cross-sections."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

Points = np.ndarray[Any, np.dtype[np.float64]]  # (N, 3)
Triangles = np.ndarray[Any, np.dtype[np.int64]]  # (F, 3), counter-clockwise from outside
Numbers = Sequence[float]

_CREASE_RAD = math.radians(40.0)
_WELD_M = 1e-6


class Surface(NamedTuple):
    """A closed triangle mesh with one normal for each vertex."""

    vertices: Points
    normals: Points
    faces: Triangles


class Section(NamedTuple):
    """A cross-section: a superellipse normal to the axis of a loft.

    Attributes:
        at_m: place along the axis.
        x_m: ends along the first axis of the section.
        y_m: ends along the second axis.
        power: exponent of the superellipse: 2 for an ellipse, more for a rounded rectangle.
    """

    at_m: float
    x_m: tuple[float, float]
    y_m: tuple[float, float]
    power: float = 2.0


def lathe(profile: Sequence[tuple[float, float]], segments: int = 40) -> Surface:
    """Return the surface of revolution of (radius, height) points about z, from low to high, m."""
    turns = 2.0 * math.pi * np.arange(segments) / segments
    around = np.stack([np.cos(turns), np.sin(turns), np.zeros(segments)], axis=1)
    radii, heights = np.array(profile, np.float64).T
    rings = radii[:, None, None] * around
    rings[..., 2] += heights[:, None]
    return shaded(*_tube(rings))


def rounded(radius_m: float, low_m: float, high_m: float, edge_m: float) -> Surface:
    """Return a cylinder about z with rounded edges."""
    turns = np.linspace(0.0, 0.5 * math.pi, 4)
    inner = radius_m - edge_m
    low = [(inner + edge_m * math.sin(t), low_m + edge_m * (1.0 - math.cos(t))) for t in turns]
    high = [(inner + edge_m * math.cos(t), high_m - edge_m * (1.0 - math.sin(t))) for t in turns]
    return lathe(low + high)


def loft(stations: Sequence[Section], count: int = 24, segments: int = 40) -> Surface:
    """Return a smooth surface through sections along z, with flat ends.

    Args:
        stations: sections from low to high.
        count: number of sections of the surface.
        segments: number of vertices of a section.
    """
    at = np.array([station.at_m for station in stations])
    values = np.array([(*each.x_m, *each.y_m, each.power) for each in stations])
    places = np.unique(np.concatenate([at, np.linspace(at[0], at[-1], count)]).round(6))
    left, right, low, high, power = _smooth(at, values, places).T[..., None]
    turns = 2.0 * math.pi * np.arange(segments) / segments
    cos, sin = np.cos(turns), np.sin(turns)
    reach = (np.abs(cos) ** power + np.abs(sin) ** power) ** (-1.0 / power)
    x = 0.5 * (left + right) + 0.5 * (right - left) * reach * cos
    y = 0.5 * (low + high) + 0.5 * (high - low) * reach * sin
    z = np.broadcast_to(places[:, None], x.shape)
    return shaded(*_tube(np.stack([x, y, z], axis=-1)))


def block(x_m: Numbers, y_m: Numbers, z_m: Numbers, edge_m: float) -> Surface:
    """Return a box between ends along x, y and z, with rounded edges."""
    (left, right), (low, high), (bottom, top) = x_m, y_m, z_m
    corner = np.linspace(0.0, 0.5 * math.pi, 4)
    turns = np.concatenate([corner + quarter * 0.5 * math.pi for quarter in range(4)])
    signs_x = np.repeat((1.0, -1.0, -1.0, 1.0), len(corner))
    signs_y = np.repeat((1.0, 1.0, -1.0, -1.0), len(corner))
    rings = []
    insets = [(edge_m * (1.0 - math.sin(t)), edge_m * (1.0 - math.cos(t))) for t in corner]
    levels = [(inset, bottom + rise) for inset, rise in insets]
    levels += [(inset, top - rise) for inset, rise in reversed(insets)]
    for inset, z in levels:
        radius = max(edge_m - inset, 1e-5)
        half_x, half_y = 0.5 * (right - left) - edge_m, 0.5 * (high - low) - edge_m
        x = 0.5 * (left + right) + signs_x * half_x + radius * np.cos(turns)
        y = 0.5 * (low + high) + signs_y * half_y + radius * np.sin(turns)
        rings.append(np.stack([x, y, np.full(len(turns), z)], axis=1))
    return shaded(*_tube(np.stack(rings)))


def moved(surface: Surface, axes: Sequence[Numbers], origin: Numbers = (0.0, 0.0, 0.0)) -> Surface:
    """Return a surface whose x, y and z are turned to `axes` (unit vectors), then shifted."""
    turn = np.array(axes, np.float64)
    faces = surface.faces
    if np.linalg.det(turn) < 0.0:  # mirrored
        faces = faces[:, ::-1]
    return Surface(surface.vertices @ turn + np.array(origin), surface.normals @ turn, faces)


def joined(*surfaces: Surface) -> Surface:
    """Return several surfaces as one mesh."""
    firsts = np.cumsum([0, *(len(each.vertices) for each in surfaces[:-1])]).tolist()
    return Surface(
        np.concatenate([each.vertices for each in surfaces]),
        np.concatenate([each.normals for each in surfaces]),
        np.concatenate([each.faces + first for each, first in zip(surfaces, firsts, strict=True)]),
    )


def shaded(vertices: Points, faces: Triangles) -> Surface:
    """Return a mesh with normals that are smooth except across edges sharper than 40 degrees."""
    corners = vertices[faces]  # (F, 3, 3)
    normals = np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0])
    areas = np.linalg.norm(normals, axis=1)
    faces, normals, areas = (each[areas > 1e-12] for each in (faces, normals, areas))
    units = normals / areas[:, None]
    angles = _angles(vertices[faces]).ravel()  # of each corner
    vertex = _welded(vertices)[faces].ravel()  # (3 F,), of each corner
    order = np.argsort(vertex, kind="stable")
    counts = np.bincount(vertex[order])
    first = np.repeat(np.cumsum(counts) - counts, counts)  # of its vertex, for each corner
    count = np.repeat(counts, counts)
    start = np.cumsum(count) - count
    one = np.repeat(order // 3, count)  # all pairs of faces that share a vertex
    which = order[np.arange(count.sum()) - np.repeat(start - first, count)]
    other = which // 3
    near = np.einsum("ij,ij->i", units[one], units[other]) > math.cos(_CREASE_RAD)
    sums = np.add.reduceat(units[other] * (near * angles[which])[:, None], start)
    found = np.empty((3 * len(faces), 3))
    found[order] = sums / np.linalg.norm(sums, axis=1, keepdims=True)
    shared = np.column_stack([vertex, (found * 1000.0).round().astype(np.int64)])
    key = shared @ np.array([2**36, 2**24, 2**12, 1])
    _, some, index = np.unique(key, return_index=True, return_inverse=True)
    return Surface(vertices[faces].reshape(-1, 3)[some], found[some], index.reshape(-1, 3))


def _angles(corners: Points) -> Points:
    """Return the angles of triangles (F, 3, 3), rad.  # (F, 3)."""
    after = np.roll(corners, -1, axis=1) - corners
    before = np.roll(corners, 1, axis=1) - corners
    across = np.linalg.norm(np.cross(after, before), axis=2)
    found: Points = np.arctan2(across, (after * before).sum(axis=2))
    return found


def _welded(vertices: Points) -> Triangles:
    """Return a number for each vertex, equal for vertices at the same place.  # (V,)."""
    x, y, z = (vertices / _WELD_M).round().astype(np.int64).T + 2**20
    _, number = np.unique((x << 42) + (y << 21) + z, return_inverse=True)
    found: Triangles = number.ravel()
    return found


def _tube(rings: Points) -> tuple[Points, Triangles]:
    """Return vertices and faces of rings (R, S, 3), counter-clockwise from above, with caps."""
    count, segments = rings.shape[:2]
    first = np.arange(segments)
    after = (first + 1) % segments
    quads = []
    for ring in range(count - 1):
        low, high = ring * segments, (ring + 1) * segments
        quads += [
            (low + first, low + after, high + after),
            (low + first, high + after, high + first),
        ]
    last = (count - 1) * segments
    bottom, top = np.full(segments, count * segments), np.full(segments, count * segments + 1)
    quads += [(after, first, bottom), (last + first, last + after, top)]
    faces = np.concatenate([np.stack(quad, axis=1) for quad in quads])
    middles = [rings[0].mean(axis=0), rings[-1].mean(axis=0)]
    return np.concatenate([rings.reshape(-1, 3), middles]), faces


def _smooth(at: Points, values: Points, places: Points) -> Points:
    """Interpolate columns by cubics that do not overshoot (Fritsch and Carlson).  # (P, C)."""
    steps = np.diff(at)[:, None]
    slopes = np.diff(values, axis=0) / steps
    before, after = slopes[:-1], slopes[1:]
    same = before * after > 0.0
    inner = np.zeros_like(before)
    inner[same] = 2.0 * (before * after)[same] / (before + after)[same]
    tangents = np.concatenate([slopes[:1], inner, slopes[-1:]])
    index = np.searchsorted(at, places, side="right").clip(1, len(at) - 1) - 1
    step, part = steps[index], ((places - at[index]) / steps[index, 0])[:, None]
    square, cube = part**2, part**3
    result: Points = (
        (2 * cube - 3 * square + 1) * values[index]
        + (cube - 2 * square + part) * step * tangents[index]
        + (3 * square - 2 * cube) * values[index + 1]
        + (cube - square) * step * tangents[index + 1]
    )
    return result
