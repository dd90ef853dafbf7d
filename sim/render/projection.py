"""Pinhole cameras, casting of rays, and outlines of geoms in pictures."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable
from functools import lru_cache
from itertools import product
from typing import Any, NamedTuple

import mujoco
import numpy as np

from serl.errors import BadInput

Values = np.ndarray[Any, np.dtype[np.float64]]
Rays = np.ndarray[Any, np.dtype[np.float64]]  # (N, 3)
Mask = np.ndarray[Any, np.dtype[np.bool_]]
Integers = np.ndarray[Any, np.dtype[np.int64]]


class Pinhole(NamedTuple):
    """The pinhole model of a camera that looks along -z of its frame, with x right and y up.

    In the picture x points right and y down, in pixels from the upper left.
    """

    width: int
    height: int
    fovy_rad: float

    @property
    def slope(self) -> float:
        """The size of a pixel at a depth of 1 m, in metres."""
        return 2.0 * math.tan(0.5 * self.fovy_rad) / self.height

    def pixel_centers(self) -> tuple[Values, Values]:
        """Return the columns and rows of all pixel centres, (H * W,) each."""
        y, x = np.mgrid[0 : self.height, 0 : self.width] + 0.5
        return x.ravel(), y.ravel()

    def slopes(self, x: Values, y: Values) -> tuple[Values, Values]:
        """Return the offsets right and up, at a depth of 1 m, of rays through columns and rows."""
        return (x - 0.5 * self.width) * self.slope, (0.5 * self.height - y) * self.slope

    def directions(self, x: Values, y: Values) -> Rays:
        """Return unit vectors in the camera's frame through columns and rows, (N,) each."""
        rays = np.stack([*self.slopes(x, y), np.full(len(x), -1.0)], axis=-1)
        unit: Rays = rays / np.linalg.norm(rays, axis=1, keepdims=True)
        return unit


@lru_cache(maxsize=16)
def pixel_directions(pinhole: Pinhole) -> Rays:
    """Return the directions through all pixel centres, row by row.  # (H * W, 3)."""
    return pinhole.directions(*pinhole.pixel_centers())


@lru_cache(maxsize=16)
def pixel_slopes(pinhole: Pinhole) -> tuple[Values, Values]:
    """Return `Pinhole.slopes` of all columns (1, W) and rows (H, 1)."""
    x, y = pinhole.pixel_centers()
    right, up = (slopes.reshape(pinhole.height, -1) for slopes in pinhole.slopes(x, y))
    return right[:1], up[:, :1]


class Eye(NamedTuple):
    """A camera at its pose: base_T_camera and its pinhole model."""

    origin: Values  # (3,)
    rotation: Values  # (3, 3)
    pinhole: Pinhole

    def rays(self, directions: Rays) -> Rays:
        """Rotate directions to the base frame, with the same order of sums on every machine."""
        rays = np.empty_like(directions)
        x, y, z = directions.T
        for axis, (a, b, c) in enumerate(self.rotation.tolist()):
            rays[:, axis] = a * x + b * y + c * z
        return rays


def eye_of(data: mujoco.MjData, index: int, pinhole: Pinhole) -> Eye:
    """Return camera number `index` at its current pose."""
    return Eye(data.cam_xpos[index], data.cam_xmat[index].reshape(3, 3), pinhole)


def camera_index(model: mujoco.MjModel, name: str) -> int:
    """Return the number of a camera; raises `BadInput` with the known names if there is none."""
    known = [model.camera(index).name for index in range(model.ncam)]
    if name not in known:
        raise BadInput(f"unknown camera {name!r}: expected one of {', '.join(known)}")
    return known.index(name)


_FAR_M = 20.0
_ROOM_M = 5.0  # a ray leaves this box before its largest distance, _FAR_M
_OWN_COLOR = np.array([0.5, 0.5, 0.5, 1.0], np.float32)  # the default of MuJoCo
_GROUPS = 3  # MuJoCo draws the geoms of groups 0 to 2; the others are for collisions


class Hits(NamedTuple):
    """First hit of each ray: geom (-1 for a miss), distance, and normal of the surface."""

    geoms: np.ndarray[Any, np.dtype[np.int32]]  # (N,)
    distances: Values  # (N,), in metres
    normals: Rays  # (N, 3)


def colors_of(model: mujoco.MjModel) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return the colour and alpha of each geom as MuJoCo draws it.  # (G, 4).

    A geom has the colour of its material, unless it has a colour of its own. Alpha is 0 for the
    geoms of groups 3 to 5, which MuJoCo does not draw.
    """
    colors: np.ndarray[Any, np.dtype[np.float32]] = model.geom_rgba.copy()
    material = model.geom_matid
    has_no_own = (material >= 0) & (colors == _OWN_COLOR).all(axis=1)
    colors[has_no_own] = model.mat_rgba[material[has_no_own]]
    colors[model.geom_group >= _GROUPS, 3] = 0.0
    return colors


def for_rays(model: mujoco.MjModel) -> mujoco.MjModel:
    """Copy a model so that rays meet every geom that is drawn, in its colour.

    `mj_multiRay` skips a body whose bounding sphere a ray misses, but that sphere encloses only the
    geoms that can collide: the ends of the arm's hand would be cut off.
    """
    copied = copy.copy(model)
    roots = copied.body_bvhadr[copied.body_bvhnum > 0]
    copied.bvh_aabb[roots] = (0.0, 0.0, 0.0, _ROOM_M, _ROOM_M, _ROOM_M)
    copied.geom_rgba[:] = colors_of(model)
    copied.geom_matid[:] = -1  # rays pass through a geom without a material whose alpha is 0
    return copied


def ray_cast(model: mujoco.MjModel, data: mujoco.MjData, origin: Values, rays: Rays) -> Hits:
    """Return the first hit of each ray from `origin` in a model `for_rays`; 20 m for a miss."""
    count = len(rays)
    hits = Hits(np.empty(count, np.int32), np.empty(count), np.zeros((count, 3)))
    mujoco.mj_multiRay(
        model, data, origin, rays.ravel(), None, 1, -1,
        hits.geoms, hits.distances, hits.normals.ravel(), count, _FAR_M,
    )  # fmt: skip
    hits.distances[hits.geoms < 0] = _FAR_M
    return hits


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
    """A selection of the geoms of a model.

    Attributes:
        ids: numbers of the geoms.  # (G,)
    """

    def __init__(self, model: mujoco.MjModel, ids: Integers) -> None:
        self.ids = ids
        boxes = model.geom_aabb[ids]
        self._corners = boxes[:, None, :3] + _SIGNS * boxes[:, None, 3:]  # (G, 8, 3)
        self._radii_m = np.sqrt((self._corners**2).sum(axis=2).max(axis=1))

    def places(self, data: mujoco.MjData) -> bytes:
        """Return the poses of the geoms as bytes, equal as long as none of them moves."""
        position, rotation = data.geom_xpos[self.ids], data.geom_xmat[self.ids]
        return bytes(position.tobytes() + rotation.tobytes())

    def outlines(self, data: mujoco.MjData, eye: Eye) -> dict[int, Outline]:
        """Return the outline of each geom that may be visible, by number.

        No ray outside its outline meets a geom.
        """
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
    """Return the pixels in any of the outlines, row by row.  # (N,)."""
    inside = np.zeros((pinhole.height, pinhole.width), bool)
    for left, top, right, bottom in outlines:
        inside[top:bottom, left:right] = True
    return np.flatnonzero(inside)


def _in_sight(middles: Values, radii_m: Values, pinhole: Pinhole) -> Mask:
    """Return whether spheres, in the camera's frame, reach into its field of view.  # (G,)."""
    up = 0.5 * pinhole.height * pinhole.slope
    right = 0.5 * pinhole.width * pinhole.slope
    x, y, z = middles.T
    sight: Mask = z < radii_m
    sight &= np.abs(x) + right * z < radii_m * math.hypot(1.0, right)
    sight &= np.abs(y) + up * z < radii_m * math.hypot(1.0, up)
    return sight


def _limits_ahead(corners: list[list[float]]) -> list[float]:
    """Return the limits of the slopes of the part of a box that is ahead of the camera."""
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
    """Return the pixels with centres within limits: least slopes left and down, then largest."""
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
