"""What rays meet first in a simulation, and its colour."""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import mujoco
import numpy as np

from serl.sim.render.pinhole import Rays, Values

_FAR_M = 20.0
_ROOM_M = 5.0  # a ray leaves it before it has gone as far as it may
_OWN_COLOR = np.array([0.5, 0.5, 0.5, 1.0], np.float32)  # of a geom that names none
_GROUPS = 3  # MuJoCo draws the geoms of groups 0 to 2; the others are for collisions


class Hits(NamedTuple):
    """Of each ray: the geom, or -1; how far away; the normal of its surface."""

    geoms: np.ndarray[Any, np.dtype[np.int32]]  # (N,)
    distances: Values  # (N,), in metres
    normals: Rays  # (N, 3)


def colors_of(model: mujoco.MjModel) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return the colour and alpha of each geom as MuJoCo draws it.  # (G, 4).

    A geom has the colour of its material, unless it names one of its own. Alpha is 0 for the geoms
    of groups 3 to 5, which MuJoCo does not draw.
    """
    colors: np.ndarray[Any, np.dtype[np.float32]] = model.geom_rgba.copy()
    material = model.geom_matid
    has_no_own = (material >= 0) & (colors == _OWN_COLOR).all(axis=1)
    colors[has_no_own] = model.mat_rgba[material[has_no_own]]
    colors[model.geom_group >= _GROUPS, 3] = 0.0
    return colors


def for_rays(model: mujoco.MjModel) -> mujoco.MjModel:
    """Copy a model so that rays meet every geom that is drawn, in its colour.

    `mj_multiRay` passes over a body that is not within its bounding sphere, but that is around the
    geoms that can collide only: of our hand it cuts the ends off.
    """
    copied = copy.copy(model)
    roots = copied.body_bvhadr[copied.body_bvhnum > 0]
    copied.bvh_aabb[roots] = (0.0, 0.0, 0.0, _ROOM_M, _ROOM_M, _ROOM_M)
    copied.geom_rgba[:] = colors_of(model)
    copied.geom_matid[:] = -1  # rays pass through a geom without a material whose alpha is 0
    return copied


def cast(model: mujoco.MjModel, data: mujoco.MjData, origin: Values, rays: Rays) -> Hits:
    """The first hit of each ray, all from one point, in a model `for_rays`; 20 m for a miss."""
    count = len(rays)
    hits = Hits(np.empty(count, np.int32), np.empty(count), np.zeros((count, 3)))
    mujoco.mj_multiRay(
        model, data, origin, rays.ravel(), None, 1, -1,
        hits.geoms, hits.distances, hits.normals.ravel(), count, _FAR_M,
    )  # fmt: skip
    hits.distances[hits.geoms < 0] = _FAR_M
    return hits
