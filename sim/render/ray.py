"""A ray caster on the CPU, without graphics driver and with equal pictures on all machines."""

from __future__ import annotations

import math
from typing import Any

import mujoco
import numpy as np

from serl.sim.render.layers import Layers
from serl.sim.render.lighting import (
    SKY,
    TOWARDS_LIGHT,
    Colors,
    fading,
    floor_of,
    floor_tiles,
    looks_of,
    sky_light,
    to_bytes,
)  # fmt: skip
from serl.sim.render.projection import (
    Eye,
    Pinhole,
    Rays,
    camera_index,
    colors_of,
    eye_of,
    for_rays,
    pixel_directions,
    ray_cast,
)
from serl.types import Image

_LIGHT_M, _AWAY_M = np.array([1.3, -0.9, 1.7]), 2.0  # position, and distance
_SHADOW = 0.35
_EDGE = 0.025


class RayRenderer:
    """Renderer of a simulation by rays: Lambert shading, soft sky light and hard shadows.

    Geoms have the colours of their materials as in MuJoCo, but neither their textures nor partial
    transparency (see `not_drawn`). The background is constant. The light is that of
    `sim/render/lighting.py`: a model's other lights are ignored.

    Args:
        data: live state of the model.
        supersampling: rays per pixel along each axis, at edges, in pictures with shadows.
        shadows: draw shadows and highlights; without them a picture takes a tenth of the time:
            rays are cast only at moving geoms.
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
        self._floor = floor_of(model)
        self._matt = model.geom_bodyid == 0
        self._layers = Layers(model, data)

    def close(self) -> None:
        """Do nothing: there is nothing to release."""

    def frame(self, camera: str, width: int, height: int) -> Image:
        """Return the current view of `camera`.  # (H, W, 3) uint8.

        Raises:
            BadInput: the model has no such camera.
        """
        index = camera_index(self._model, camera)
        pinhole = Pinhole(width, height, math.radians(self._model.cam_fovy[index]))
        if self._shadows:
            self._seen, self._looks = for_rays(self._model), looks_of(self._model)
            moved = np.subtract(self._looks.towards_light, TOWARDS_LIGHT)
            self._light_m = _LIGHT_M + _AWAY_M * moved
            image = to_bytes(self._colors(eye_of(self._data, index, pinhole)))
        else:
            image = self._layers.picture(index, pinhole)
        return image.reshape(height, width, 3)

    def _colors(self, eye: Eye) -> Colors:
        """Return the colours of all pixels, by at least one ray through each.  # (H * W, 3)."""
        colors = self._colors_along(eye, pixel_directions(eye.pinhole))
        if self._supersampling > 1:
            self._smooth(colors, eye)
        return colors

    def _smooth(self, colors: Colors, eye: Eye) -> None:
        """Cast more rays through the edges: pixels that differ from a neighbour."""
        pinhole = eye.pinhole
        x, y = pinhole.pixel_centers()
        edges = np.flatnonzero(_edges(colors.reshape(pinhole.height, pinhole.width, 3)))
        offsets = (np.arange(self._supersampling) + 0.5) / self._supersampling - 0.5
        total = np.zeros((len(edges), 3), np.float32)
        for dx in offsets:
            for dy in offsets:
                total += self._colors_along(eye, pinhole.directions(x[edges] + dx, y[edges] + dy))
        colors[edges] = total / self._supersampling**2

    def _colors_along(self, eye: Eye, directions: Rays) -> Colors:
        """Return the colours, from 0 to 1, seen along directions in the frame of the camera.

        The light is a point, with shadows and highlights.
        """
        origin, rays = eye.origin, eye.rays(directions)
        geoms, distances, normals = ray_cast(self._seen, self._data, origin, rays)
        hit = geoms >= 0
        points = origin + rays * distances[:, None]
        colors: Colors = self._seen.geom_rgba[geoms, :3]
        floor = geoms == self._floor
        x_m, y_m = points[:, 0], points[:, 1]
        looks = self._looks
        colors[floor] = looks.floor[floor_tiles(x_m[floor], y_m[floor], looks.tiles_m)]
        to_light = self._light_m - points
        light_distances = np.linalg.norm(to_light, axis=1)
        to_light /= light_distances[:, None]
        key = np.einsum("ij,ij->i", normals, to_light).clip(0.0, 1.0)
        key *= np.where(self._lit(to_light, light_distances), 1.0, _SHADOW)
        bright = looks.key * key + sky_light(normals, looks)
        shaded = colors * bright[:, None].astype(np.float32)
        shaded += self._highlights(rays, normals, to_light, key, self._matt[geoms])[:, None]
        fade = np.where(floor[:, None], fading(x_m, y_m), np.float32(0.0))
        fade[~hit] = 1.0
        result: Colors = (shaded + fade * (SKY - shaded)).clip(0.0, 1.0)
        return result

    def _lit(self, to_light: Rays, distances: Any) -> Any:
        """Return whether nothing stands between the light and the points."""
        hits = ray_cast(self._seen, self._data, self._light_m, -to_light)
        return hits.distances > distances - 2e-3

    def _highlights(self, rays: Rays, normals: Rays, to_light: Rays, key: Any, matt: Any) -> Any:
        half = to_light - rays
        half /= np.linalg.norm(half, axis=1, keepdims=True)
        shine = np.einsum("ij,ij->i", normals, half).clip(0.0, 1.0) ** 40
        return np.where(matt, 0.0, 0.18 * shine * (key > _SHADOW)).astype(np.float32)


_REMEDY = "expected --task_config.renderer gl, or a scene without"
_SHOWN_GROUPS = 3  # as of geoms: MuJoCo draws the groups 0 to 2


def not_drawn(model: mujoco.MjModel) -> str:
    """Name in one line the first thing that rays cannot draw faithfully; "" if there is none."""
    if soft := _soft(model):
        return f"renderer ray does not draw {soft}: {_REMEDY}"
    alphas, floor = colors_of(model)[:, 3], floor_of(model)
    for geom in np.flatnonzero(alphas > 0.0).tolist():
        name, material = model.geom(geom).name or str(geom), model.geom_matid[geom]
        if geom != floor and material >= 0 and (model.mat_texid[material] >= 0).any():
            what = f"the texture of its material {model.mat(material).name!r}"
        elif alphas[geom] < 1.0:
            what = f"its transparency (alpha {alphas[geom]:g})"
        else:
            continue
        return f"renderer ray does not draw geom {name!r} with {what}: {_REMEDY}"
    return ""


def _soft(model: mujoco.MjModel) -> str:
    """Return the first visible thing that is no geom; "" if there is none."""
    if model.nflex or model.nskin:
        return "cloth and skins"
    for tendon in range(model.ntendon):
        is_path = model.wrap_type[model.tendon_adr[tendon]] != mujoco.mjtWrap.mjWRAP_JOINT
        is_shown = model.tendon_group[tendon] < _SHOWN_GROUPS and model.tendon_rgba[tendon, 3] > 0
        if is_path and is_shown and model.tendon_width[tendon] > 0.0:
            return f"tendon {model.tendon(tendon).name or tendon!r}"
    return ""


def _edges(picture: Colors) -> Any:
    """Return the pixels (H, W) that differ visibly from a neighbour."""
    edges = np.zeros(picture.shape[:2], bool)
    across = np.abs(np.diff(picture, axis=1)).max(axis=2) > _EDGE
    down = np.abs(np.diff(picture, axis=0)).max(axis=2) > _EDGE
    edges[:, 1:] |= across
    edges[:, :-1] |= across
    edges[1:] |= down
    edges[:-1] |= down
    return edges


renderer = RayRenderer
