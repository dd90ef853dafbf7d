"""Where geoms can be in a picture: rectangles of pixels around their bounding boxes."""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import product
from typing import NamedTuple

import mujoco
import numpy as np

from serl.sim.render.pinhole import Eye, Integers, Mask, Pinhole, Values

_SIGNS = np.array(list(product((-1.0, 1.0), repeat=3)))  # (8, 3)
_EDGES = [(a, b) for a in range(8) for b in range(a) if (a ^ b) in (1, 2, 4)]
_NEAR_M = 1e-6
_SPARE_PX = 1e-3  # against rounding


class Outline(NamedTuple):
    """A rectangle of pixels; right and bottom are excluded."""

    left: int
    top: int
    right: int
    bottom: int


class Geoms:
    """Some geoms of a model.

    Attributes:
        ids: their numbers.  # (G,)
    """

    def __init__(self, model: mujoco.MjModel, ids: Integers) -> None:
        self.ids = ids
        boxes = model.geom_aabb[ids]
        self._corners = boxes[:, None, :3] + _SIGNS * boxes[:, None, 3:]  # (G, 8, 3)
        self._radii_m = np.sqrt((self._corners**2).sum(axis=2).max(axis=1))

    def places(self, data: mujoco.MjData) -> bytes:
        """Equal as long as none of them moves."""
        position, rotation = data.geom_xpos[self.ids], data.geom_xmat[self.ids]
        return bytes(position.tobytes() + rotation.tobytes())

    def outlines(self, data: mujoco.MjData, eye: Eye) -> dict[int, Outline]:
        """Of the geoms that may be seen, by their numbers; no ray outside meets them."""
        middles = (data.geom_xpos[self.ids] - eye.origin) @ eye.rotation  # in the camera's frame
        near = np.flatnonzero(_in_sight(middles, self._radii_m, eye.pinhole))
        ids = self.ids[near]
        turns = data.geom_xmat[ids].reshape(-1, 3, 3).transpose(0, 2, 1)
        points = (self._corners[near] @ turns) @ eye.rotation + middles[near, None]
        slopes = points[..., :2] / np.minimum(points[..., 2:], -_NEAR_M)  # left and down
        least, most = slopes.min(axis=1).tolist(), slopes.max(axis=1).tolist()
        behind = (points[..., 2].max(axis=1) > -_NEAR_M).tolist()
        outlines = {}
        for index, geom in enumerate(ids.tolist()):
            limits = [*least[index], *most[index]]
            if behind[index]:
                limits = _limits_ahead(points[index].tolist())
            outline = _pixels(limits, eye.pinhole)
            if outline.left < outline.right and outline.top < outline.bottom:
                outlines[geom] = outline
        return outlines


def pixels_inside(outlines: Iterable[Outline], pinhole: Pinhole) -> Integers:
    """The pixels in any of the outlines, row by row.  # (N,)."""
    inside = np.zeros((pinhole.height, pinhole.width), bool)
    for left, top, right, bottom in outlines:
        inside[top:bottom, left:right] = True
    return np.flatnonzero(inside)


def _in_sight(middles: Values, radii_m: Values, pinhole: Pinhole) -> Mask:
    """Whether spheres reach into what a camera sees, in its frame.  # (G,)."""
    up = 0.5 * pinhole.height * pinhole.slope
    right = 0.5 * pinhole.width * pinhole.slope
    x, y, z = middles.T
    sight: Mask = z < radii_m
    sight &= np.abs(x) + right * z < radii_m * math.hypot(1.0, right)
    sight &= np.abs(y) + up * z < radii_m * math.hypot(1.0, up)
    return sight


def _limits_ahead(corners: list[list[float]]) -> list[float]:
    """As of a whole box, of the part of one that is ahead of the camera."""
    slopes = []
    for edge in _EDGES:
        (x, y, z), (to_x, to_y, to_z) = (corners[end] for end in edge)
        if z > to_z:
            x, y, z, to_x, to_y, to_z = to_x, to_y, to_z, x, y, z
        if z < -_NEAR_M:
            slopes.append((x / z, y / z))
            share = (-_NEAR_M - z) / (to_z - z) if to_z > -_NEAR_M else 1.0
            z = min(to_z, -_NEAR_M)
            slopes.append(((x + share * (to_x - x)) / z, (y + share * (to_y - y)) / z))
    if not slopes:
        return [math.inf, math.inf, -math.inf, -math.inf]
    left, down = zip(*slopes, strict=True)
    return [min(left), min(down), max(left), max(down)]


def _pixels(limits: list[float], pinhole: Pinhole) -> Outline:
    """The pixels whose centres are within limits: least slopes left and down, then the largest."""
    left, top, right, bottom = limits
    slope, width, height = pinhole.slope, pinhole.width, pinhole.height
    return Outline(
        _clipped(0.5 * width - right / slope + 0.5 - _SPARE_PX, width),
        _clipped(0.5 * height + top / slope + 0.5 - _SPARE_PX, height),
        _clipped(0.5 * width - left / slope + 0.5 + _SPARE_PX, width),
        _clipped(0.5 * height + bottom / slope + 0.5 + _SPARE_PX, height),
    )


def _clipped(place: float, size: int) -> int:
    return int(min(max(place, 0.0), size))
