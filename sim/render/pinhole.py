"""A pinhole camera: which way its pixels look."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, NamedTuple

import mujoco
import numpy as np

from serl.errors import BadInput

Values = np.ndarray[Any, np.dtype[np.float64]]
Rays = np.ndarray[Any, np.dtype[np.float64]]  # (N, 3)
Mask = np.ndarray[Any, np.dtype[np.bool_]]
Integers = np.ndarray[Any, np.dtype[np.int64]]


class Pinhole(NamedTuple):
    """The picture of a camera that looks along -z of its frame, with x right and y up.

    In the picture x points right and y down, in pixels from the upper left.
    """

    width: int
    height: int
    fovy_rad: float

    @property
    def slope(self) -> float:
        """How far aside a ray is, 1 m ahead, that goes one pixel beside the middle."""
        return 2.0 * math.tan(0.5 * self.fovy_rad) / self.height

    def pixel_centers(self) -> tuple[Values, Values]:
        """Columns and rows of all pixels' centres, (H * W,) each."""
        y, x = np.mgrid[0 : self.height, 0 : self.width] + 0.5
        return x.ravel(), y.ravel()

    def slopes(self, x: Values, y: Values) -> tuple[Values, Values]:
        """How far right and up rays through columns and rows are, 1 m ahead."""
        return (x - 0.5 * self.width) * self.slope, (0.5 * self.height - y) * self.slope

    def directions(self, x: Values, y: Values) -> Rays:
        """Unit vectors in the camera's frame through columns and rows, (N,) each."""
        rays = np.stack([*self.slopes(x, y), np.full(len(x), -1.0)], axis=-1)
        unit: Rays = rays / np.linalg.norm(rays, axis=1, keepdims=True)
        return unit


@lru_cache(maxsize=16)
def pixel_directions(pinhole: Pinhole) -> Rays:
    """Of all pixels' centres, row by row.  # (H * W, 3)."""
    return pinhole.directions(*pinhole.pixel_centers())


@lru_cache(maxsize=16)
def pixel_slopes(pinhole: Pinhole) -> tuple[Values, Values]:
    """Of columns (1, W) and rows (H, 1): see `Pinhole.slopes`."""
    x, y = pinhole.pixel_centers()
    right, up = (slopes.reshape(pinhole.height, -1) for slopes in pinhole.slopes(x, y))
    return right[:1], up[:, :1]


class Eye(NamedTuple):
    """A camera where it is: base_T_camera and its picture."""

    origin: Values  # (3,)
    rotation: Values  # (3, 3)
    pinhole: Pinhole

    def rays(self, directions: Rays) -> Rays:
        """Directions in the base frame, summed in the same order on every machine."""
        rays = np.empty_like(directions)
        x, y, z = directions.T
        for axis, (a, b, c) in enumerate(self.rotation.tolist()):
            rays[:, axis] = a * x + b * y + c * z
        return rays


def eye_of(data: mujoco.MjData, index: int, pinhole: Pinhole) -> Eye:
    """Camera number `index`, now."""
    return Eye(data.cam_xpos[index], data.cam_xmat[index].reshape(3, 3), pinhole)


def camera_index(model: mujoco.MjModel, name: str) -> int:
    """The number of a camera; raises `BadInput`, with the known ones, when there is none."""
    known = [model.camera(index).name for index in range(model.ncam)]
    if name not in known:
        raise BadInput(f"unknown camera {name!r}: expected one of {', '.join(known)}")
    return known.index(name)
