"""What rays meet first in a simulation."""

from __future__ import annotations

from typing import Any, NamedTuple

import mujoco
import numpy as np

from serl.sim.pinhole import Rays, Values

_FAR_M = 20.0


class Hits(NamedTuple):
    """Of each ray: the geom, or -1; how far away; the normal of its surface."""

    geoms: np.ndarray[Any, np.dtype[np.int32]]  # (N,)
    distances: Values  # (N,), in metres
    normals: Rays  # (N, 3)


def cast(model: mujoco.MjModel, data: mujoco.MjData, origin: Values, rays: Rays) -> Hits:
    """The first hit of each ray, all from one point; those that miss go 20 m."""
    count = len(rays)
    hits = Hits(np.empty(count, np.int32), np.empty(count), np.zeros((count, 3)))
    mujoco.mj_multiRay(
        model, data, origin, rays.ravel(), None, 1, -1,
        hits.geoms, hits.distances, hits.normals.ravel(), count, _FAR_M,
    )  # fmt: skip
    hits.distances[hits.geoms < 0] = _FAR_M
    return hits
