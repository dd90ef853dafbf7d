"""Where geoms can be in a picture: rectangles of pixels around their bounding boxes."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product
from typing import NamedTuple

import mujoco
import numpy as np

from serl.sim.pinhole import Eye, Integers, Pinhole, Values

_SIGNS = np.array(list(product((-1.0, 1.0), repeat=3)))  # (8, 3)
_EDGES = np.array([(a, b) for a in range(8) for b in range(a) if (a ^ b) in (1, 2, 4)])  # (12, 2)
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

    def places(self, data: mujoco.MjData) -> bytes:
        """Equal as long as none of them moves."""
        position, rotation = data.geom_xpos[self.ids], data.geom_xmat[self.ids]
        return bytes(position.tobytes() + rotation.tobytes())

    def outlines(self, data: mujoco.MjData, eye: Eye) -> dict[int, Outline]:
        """Of the geoms that may be seen, by their numbers; no ray outside meets them."""
        turns = data.geom_xmat[self.ids].reshape(-1, 3, 3).transpose(0, 2, 1)
        points = self._corners @ turns + (data.geom_xpos[self.ids] - eye.origin)[:, None]
        points = points @ eye.rotation  # in the camera's frame
        ahead = points[..., 2] < -_NEAR_M
        some, whole = ahead.any(axis=1), ahead.all(axis=1)
        limits = np.zeros((len(points), 4))
        limits[whole] = _limits(points[whole])
        for geom in np.flatnonzero(some & ~whole).tolist():
            limits[geom] = _limits(_part_ahead(points[geom], ahead[geom]))
        seen = zip(
            self.ids.tolist(), _pixels(limits, eye.pinhole).tolist(), some.tolist(), strict=True
        )
        return {
            geom: Outline(*pixels)
            for geom, pixels, shown in seen
            if shown and pixels[0] < pixels[2] and pixels[1] < pixels[3]
        }


def pixels_inside(outlines: Iterable[Outline], pinhole: Pinhole) -> Integers:
    """The pixels in any of the outlines, row by row.  # (N,)."""
    inside = np.zeros((pinhole.height, pinhole.width), bool)
    for left, top, right, bottom in outlines:
        inside[top:bottom, left:right] = True
    return np.flatnonzero(inside)


def _limits(points: Values) -> Values:
    """Least and largest slopes, right and down, of points (..., P, 3) ahead.  # (..., 4)."""
    slopes = points[..., :2] / points[..., 2:]
    slopes[..., 0] *= -1.0
    limits: Values = np.concatenate([slopes.min(axis=-2), slopes.max(axis=-2)], axis=-1)
    return limits


def _part_ahead(points: Values, ahead: Values) -> Values:
    """Corners of the part of a box (8, 3) that is ahead of the camera."""
    a, b = _EDGES[ahead[_EDGES[:, 0]] != ahead[_EDGES[:, 1]]].T
    start, way = points[a], points[b] - points[a]
    cuts = start + way * ((-_NEAR_M - start[:, 2:]) / way[:, 2:])
    cuts[:, 2] = -_NEAR_M
    corners: Values = np.concatenate([points[ahead], cuts])
    return corners


def _pixels(limits: Values, pinhole: Pinhole) -> Integers:
    """The pixels whose centres are within limits (G, 4) of slopes; the end is excluded."""
    ends = np.array((pinhole.width, pinhole.height) * 2)
    places = limits / pinhole.slope + (0.5 * ends - 0.5)
    places[:, :2] = np.ceil(places[:, :2] - _SPARE_PX)
    places[:, 2:] = np.floor(places[:, 2:] + _SPARE_PX) + 1.0
    pixels: Integers = places.clip(0, ends).astype(np.int64)
    return pixels
