"""A ray caster on the CPU: needs no graphics driver and gives the same picture everywhere."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, NamedTuple

import mujoco
import numpy as np

from serl.sim.scene import camera_index
from serl.types import Image

_Values = np.ndarray[Any, np.dtype[np.float64]]  # (N,)
_Rays = np.ndarray[Any, np.dtype[np.float64]]  # (N, 3)
_Colors = np.ndarray[Any, np.dtype[np.float32]]  # (N, 3), 0 to 1

_LIGHT_M = np.array([1.3, -0.9, 1.7])
_LIGHT_DIRECTION = np.array([0.52, -0.54, 0.66])  # towards the light, from the field
_SKY = np.array([0.955, 0.965, 0.975], np.float32)
_KEY, _FILL = 0.62, 0.46
_SHADOW = 0.35
_FLOOR = np.array([[0.90, 0.915, 0.93], [0.845, 0.865, 0.885]], np.float32)
_TILE_M = 0.125
# The floor fades into the background between these distances from the base.
_FADE_M = (1.0, 2.0)
_FAR_M = 20.0
_EDGE = 0.025


class _View(NamedTuple):
    """A pinhole camera's picture; x points right and y down, in pixels from the upper left."""

    width: int
    height: int
    fovy_rad: float

    def pixel_centers(self) -> tuple[_Values, _Values]:
        """Columns and rows of all pixels' centres, (H * W,) each."""
        y, x = np.mgrid[0 : self.height, 0 : self.width] + 0.5
        return x.ravel(), y.ravel()

    def directions(self, x: _Values, y: _Values) -> _Rays:
        """Unit vectors in the camera's frame, which looks along -z."""
        scale = 2.0 * math.tan(0.5 * self.fovy_rad) / self.height
        rays = np.stack(
            [
                (x - 0.5 * self.width) * scale,
                (0.5 * self.height - y) * scale,
                np.full(len(x), -1.0),
            ],
            axis=-1,
        )
        unit: _Rays = rays / np.linalg.norm(rays, axis=1, keepdims=True)
        return unit


@lru_cache(maxsize=16)
def _pixel_directions(view: _View) -> _Rays:
    return view.directions(*view.pixel_centers())


class Renderer:
    """Pictures of a simulation: Lambert shading with a soft sky light and hard shadows.

    Args:
        model: of the scene.
        data: its state, as it changes.
        supersampling: rays per pixel along each axis, at edges; 1 for policies, 3 for people.
        shadows: cast them and highlights; without, a picture takes half the time.
    """

    def __init__(
        self,
        model: mujoco.MjModel,
        data: mujoco.MjData,
        supersampling: int = 1,
        shadows: bool = True,
    ) -> None:
        self._model, self._data = model, data
        self._supersampling, self._shadows = supersampling, shadows
        self._colors = model.geom_rgba[:, :3].astype(np.float32)
        self._floor = model.geom("table").id
        self._matt = model.geom_bodyid == 0

    def frame(self, camera: str, width: int, height: int) -> Image:
        """The view of `camera` now.  # (H, W, 3) uint8.

        Raises:
            BadInput: the model has no such camera.
        """
        index = camera_index(self._model, camera)
        view = _View(width, height, math.radians(self._model.cam_fovy[index]))
        colors = self._colors_along(index, _pixel_directions(view))
        if self._supersampling > 1:
            self._smooth(colors, index, view)
        colors *= 255.0
        colors += 0.5
        image: Image = colors.astype(np.uint8).reshape(height, width, 3)
        return image

    def _smooth(self, colors: _Colors, index: int, view: _View) -> None:
        """Cast more rays through the pixels that differ from a neighbour: the edges."""
        x, y = view.pixel_centers()
        edges = np.flatnonzero(_edges(colors.reshape(view.height, view.width, 3)))
        offsets = (np.arange(self._supersampling) + 0.5) / self._supersampling - 0.5
        total = np.zeros((len(edges), 3), np.float32)
        for dx in offsets:
            for dy in offsets:
                rays = view.directions(x[edges] + dx, y[edges] + dy)
                total += self._colors_along(index, rays)
        colors[edges] = total / self._supersampling**2

    def _colors_along(self, index: int, directions: _Rays) -> _Colors:
        """Of what is seen along directions in the frame of a camera."""
        data = self._data
        rays = directions @ data.cam_xmat[index].reshape(3, 3).T
        shade = self._shade if self._shadows else self._shade_plainly
        return shade(data.cam_xpos[index], rays)

    def _shade_plainly(self, origin: _Rays, rays: _Rays) -> _Colors:
        """As `_shade`, lit from afar, so that nothing but the floor needs to know where it is."""
        geoms, distances, normals = self._cast(origin, rays)
        key = (normals @ _LIGHT_DIRECTION).clip(0.0, 1.0)
        brightness = _KEY * key + _FILL * (0.78 + 0.22 * normals[:, 2])
        shaded: _Colors = self._colors[geoms]
        floor = np.flatnonzero(geoms == self._floor)
        points = origin[:2] + rays[floor, :2] * distances[floor, None]
        shaded[floor] = _floor_colors(points)
        shaded *= brightness[:, None].astype(np.float32)
        shaded[floor] += _fading(points)[:, None] * (_SKY - shaded[floor])
        shaded[geoms < 0] = _SKY
        return shaded.clip(0.0, 1.0, out=shaded)

    def _shade(self, origin: _Rays, rays: _Rays) -> _Colors:
        """Colours along rays from one point."""
        geoms, distances, normals = self._cast(origin, rays)
        hit = geoms >= 0
        points = origin + rays * distances[:, None]
        colors: _Colors = self._colors[geoms]
        floor = geoms == self._floor
        colors[floor] = _floor_colors(points[floor])
        to_light = _LIGHT_M - points
        light_distances = np.linalg.norm(to_light, axis=1)
        to_light /= light_distances[:, None]
        key = np.einsum("ij,ij->i", normals, to_light).clip(0.0, 1.0)
        key *= np.where(self._lit(to_light, light_distances), 1.0, _SHADOW)
        # The sky lights what looks up more than what looks down.
        fill = 0.78 + 0.22 * normals[:, 2]
        shaded = colors * (_KEY * key + _FILL * fill)[:, None].astype(np.float32)
        shaded += self._highlights(rays, normals, to_light, key, self._matt[geoms])[:, None]
        fade = np.where(floor, _fading(points), 0.0)
        fade = np.where(hit, fade, 1.0)[:, None].astype(np.float32)
        result: _Colors = (shaded + fade * (_SKY - shaded)).clip(0.0, 1.0)
        return result

    def _lit(self, to_light: _Rays, distances: Any) -> Any:
        """Whether nothing stands between the light and the points."""
        _, reached, _ = self._cast(_LIGHT_M, -to_light)
        return reached > distances - 2e-3

    def _highlights(self, rays: _Rays, normals: _Rays, to_light: _Rays, key: Any, matt: Any) -> Any:
        half = to_light - rays
        half /= np.linalg.norm(half, axis=1, keepdims=True)
        shine = np.einsum("ij,ij->i", normals, half).clip(0.0, 1.0) ** 40
        return np.where(matt, 0.0, 0.18 * shine * (key > _SHADOW)).astype(np.float32)

    def _cast(self, origin: _Rays, rays: _Rays) -> tuple[Any, Any, _Rays]:
        """Geom (or -1), distance and normal of the first hit of each ray."""
        count = len(rays)
        geoms = np.empty(count, np.int32)
        distances = np.empty(count)
        normals = np.zeros(3 * count)
        mujoco.mj_multiRay(
            self._model, self._data, origin, rays.ravel(), None, 1, -1,
            geoms, distances, normals, count, _FAR_M,
        )  # fmt: skip
        distances[geoms < 0] = _FAR_M
        return geoms, distances, normals.reshape(-1, 3)


def _floor_colors(points: _Rays) -> _Colors:
    tiles = np.floor(points[:, :2] / _TILE_M).astype(np.int64).sum(axis=1) % 2
    colors: _Colors = _FLOOR[tiles]
    return colors


def _fading(points: _Rays) -> Any:
    """How far the floor is on its way to the background, from 0 to 1.  # (N,) float32."""
    away = np.hypot(points[:, 0] - 0.3, points[:, 1])
    return ((away - _FADE_M[0]) / (_FADE_M[1] - _FADE_M[0])).clip(0.0, 1.0).astype(np.float32)


def _edges(picture: _Colors) -> Any:
    """Pixels (H, W) that differ visibly from a neighbour."""
    edges = np.zeros(picture.shape[:2], bool)
    across = np.abs(np.diff(picture, axis=1)).max(axis=2) > _EDGE
    down = np.abs(np.diff(picture, axis=0)).max(axis=2) > _EDGE
    edges[:, 1:] |= across
    edges[:, :-1] |= across
    edges[1:] |= down
    edges[:-1] |= down
    return edges


renderer = Renderer
