"""What rays meet first in a simulation."""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import mujoco
import numpy as np

from serl.sim.pinhole import Rays, Values

_FAR_M = 20.0
_ROOM_M = 5.0  # a ray leaves it before it has gone as far as it may


class Hits(NamedTuple):
    """Of each ray: the geom, or -1; how far away; the normal of its surface."""

    geoms: np.ndarray[Any, np.dtype[np.int32]]  # (N,)
    distances: Values  # (N,), in metres
    normals: Rays  # (N, 3)


def for_rays(model: mujoco.MjModel) -> mujoco.MjModel:
    """A copy of a model in which rays meet every geom.

    `mj_multiRay` passes over a body that is not within its bounding sphere, but that is around the
    geoms that can collide only: of our hand it cuts the ends off.
    """
    copied = copy.copy(model)
    roots = copied.body_bvhadr[copied.body_bvhnum > 0]
    copied.bvh_aabb[roots] = (0.0, 0.0, 0.0, _ROOM_M, _ROOM_M, _ROOM_M)
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
