"""Colours of what rays meet: Lambert shading under a light from afar and a soft sky."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from serl.sim.render.projection import Hits
from serl.sim.render.pinhole import Integers, Rays, Values
from serl.types import Image

Colors = np.ndarray[Any, np.dtype[np.float32]]  # (N, 3), 0 to 1

KEY, FILL = 0.62, 0.46
SKY = np.array([0.955, 0.965, 0.975], np.float32)
FLOOR = np.array([[0.90, 0.915, 0.93], [0.845, 0.865, 0.885]], np.float32)

TOWARDS_LIGHT = (0.52, -0.54, 0.66)  # from the field
SKY_LIGHT = (0.78, 0.22)  # from all around, and more on what looks up
TILES_M = 8.0  # along a metre
# The floor fades into the background between these distances from the middle of the field.
_FADE_M = (1.0, 2.0)
_MIDDLE_M = 0.3


class Looks(NamedTuple):
    """What lights a scene, and what its floor looks like."""

    towards_light: tuple[float, float, float]  # from the field
    key: float  # light from there
    sky: tuple[float, float]  # light from all around, and more on what looks up
    floor: Colors  # (2, 3), of its tiles
    tiles_m: float  # along a metre


PLAIN = Looks(TOWARDS_LIGHT, KEY, (FILL * SKY_LIGHT[0], FILL * SKY_LIGHT[1]), FLOOR, TILES_M)
"""Of a scene that nobody has changed."""


def brightness(normals: Rays, looks: Looks) -> Colors:
    """Of surfaces, without shadows.  # (N, 1)."""
    x, y, z = looks.towards_light
    key = (normals[:, 0] * x + normals[:, 1] * y + normals[:, 2] * z).clip(0.0, 1.0)
    bright = looks.key * key + sky_light(normals, looks)
    shade: Colors = bright[:, None].astype(np.float32)
    return shade


def sky_light(normals: Rays, looks: Looks) -> Values:
    """The sky lights what looks up more than what looks down.  # (N,)."""
    light: Values = looks.sky[0] + looks.sky[1] * normals[:, 2]
    return light


def floor_tiles(x_m: Values, y_m: Values, tiles_m: float) -> Integers:
    """Which of two tiles the floor has at points of the base frame.  # (N,)."""
    return (np.floor(x_m * tiles_m) + np.floor(y_m * tiles_m)).astype(np.int64) & 1


def fading(x_m: Values, y_m: Values) -> Colors:
    """How far the floor is on its way to the background, from 0 to 1.  # (N, 1)."""
    away = np.sqrt((x_m - _MIDDLE_M) ** 2 + y_m**2)
    share = ((away - _FADE_M[0]) / (_FADE_M[1] - _FADE_M[0])).clip(0.0, 1.0)
    result: Colors = share[:, None].astype(np.float32)
    return result


def shade_plainly(
    origin: Values,
    rays: Rays,
    hits: Hits,
    geom_colors: Colors,
    floor: int,
    looks: Looks = PLAIN,
) -> Colors:
    """What rays meet, lit from afar, so that nothing but the floor needs to know where it is."""
    colors: Colors = geom_colors[hits.geoms]
    tiles = np.flatnonzero(hits.geoms == floor)
    x_m, y_m = (origin[:2] + rays[tiles, :2] * hits.distances[tiles, None]).T
    colors[tiles] = looks.floor[floor_tiles(x_m, y_m, looks.tiles_m)]
    colors *= brightness(hits.normals, looks)
    colors[tiles] += fading(x_m, y_m) * (SKY - colors[tiles])
    colors[hits.geoms < 0] = SKY
    return colors


def to_bytes(colors: Colors) -> Image:
    """Colours as a screen takes them, in place.  # (N, 3) uint8."""
    colors.clip(0.0, 1.0, out=colors)
    colors *= 255.0
    colors += 0.5
    return colors.astype(np.uint8)
