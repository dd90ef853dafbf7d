"""Light and looks of a scene: shading of ray-cast pictures, and MJCF lights for OpenGL.

Both renderers take lights and looks from the model.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import mujoco
import numpy as np

from serl.sim.render.projection import Integers, Rays, Values
from serl.types import Image

Colors = np.ndarray[Any, np.dtype[np.float32]]  # (N, 3), 0 to 1

KEY, FILL = 0.62, 0.46
SKY = np.array([0.955, 0.965, 0.975], np.float32)
FLOOR = np.array([[0.90, 0.915, 0.93], [0.845, 0.865, 0.885]], np.float32)

TOWARDS_LIGHT = (0.52, -0.54, 0.66)  # from the field
SKY_LIGHT = (0.78, 0.22)  # ambient, and more on surfaces that face up
TILES_M = 8.0  # along a metre
# The floor fades into the background between these distances from the middle of the field.
_FADE_M = (1.0, 2.0)
_MIDDLE_M = 0.3


class Looks(NamedTuple):
    """Lights of a scene and looks of its floor."""

    towards_light: tuple[float, float, float]  # from the field
    key: float  # intensity of the light from there
    sky: tuple[float, float]  # ambient light, and more on surfaces that face up
    floor: Colors  # (2, 3), of its tiles
    tiles_m: float  # along a metre


PLAIN = Looks(TOWARDS_LIGHT, KEY, (FILL * SKY_LIGHT[0], FILL * SKY_LIGHT[1]), FLOOR, TILES_M)
"""Looks of a scene without randomisation."""


def brightness(normals: Rays, looks: Looks) -> Colors:
    """Return the brightness of surfaces, without shadows.  # (N, 1)."""
    x, y, z = looks.towards_light
    key = (normals[:, 0] * x + normals[:, 1] * y + normals[:, 2] * z).clip(0.0, 1.0)
    bright = looks.key * key + sky_light(normals, looks)
    shade: Colors = bright[:, None].astype(np.float32)
    return shade


def sky_light(normals: Rays, looks: Looks) -> Values:
    """Return the sky's light on surfaces, more on those that face up.  # (N,)."""
    light: Values = looks.sky[0] + looks.sky[1] * normals[:, 2]
    return light


def floor_tiles(x_m: Values, y_m: Values, tiles_m: float) -> Integers:
    """Return which of two tiles, 0 or 1, the floor has at points of the base frame.  # (N,)."""
    return (np.floor(x_m * tiles_m) + np.floor(y_m * tiles_m)).astype(np.int64) & 1


def fading(x_m: Values, y_m: Values) -> Colors:
    """Return the share of the background in the floor's colour, from 0 to 1.  # (N, 1)."""
    away = np.sqrt((x_m - _MIDDLE_M) ** 2 + y_m**2)
    share = ((away - _FADE_M[0]) / (_FADE_M[1] - _FADE_M[0])).clip(0.0, 1.0)
    result: Colors = share[:, None].astype(np.float32)
    return result


def to_bytes(colors: Colors) -> Image:
    """Convert colours from 0..1 to bytes; changes its argument.  # (N, 3) uint8."""
    colors.clip(0.0, 1.0, out=colors)
    colors *= 255.0
    colors += 0.5
    return colors.astype(np.uint8)


def _text(numbers: Iterable[float]) -> str:
    return " ".join(f"{number:g}" for number in numbers)


def _grey(value: float) -> str:
    return _text((value, value, value))


# The floor does not fade into the background here: it ends 2 m from the base.
LOOKS = f"""
<visual><headlight active="0"/></visual>
<asset>
  <texture type="skybox" builtin="flat" width="8" height="48" rgb1="{_text(SKY)}"/>
  <texture name="tiles" type="2d" builtin="checker" width="64" height="64"
    rgb1="{_text(FLOOR[1])}" rgb2="{_text(FLOOR[0])}"/>
  <material name="tiles" texture="tiles" texuniform="true" texrepeat="{TILES_M} {TILES_M}"/>
</asset>
"""
"""MJCF for the top level of a model; `tiles` is the material of the floor."""

# Surfaces that face down get a tenth too much sky light, because no light can be negative.
LIGHTS = f"""
<light name="serl_key" directional="true" dir="{_text(-part for part in TOWARDS_LIGHT)}"
  ambient="{_grey(FILL * SKY_LIGHT[0])}" diffuse="{_grey(KEY)}" specular="0 0 0"/>
<light name="serl_sky" directional="true" dir="0 0 -1" castshadow="false"
  ambient="0 0 0" diffuse="{_grey(FILL * SKY_LIGHT[1])}" specular="0 0 0"/>
"""
"""MJCF for the body of the world."""


def looks_of(model: mujoco.MjModel) -> Looks:
    """Return the lights and the floor that `LIGHTS` and `LOOKS` gave a model, as they are now.

    For a model without these lights or this floor, those of `PLAIN` are returned.
    """
    looks, floor = PLAIN, floor_of(model)
    key, sky = (_number(model, _LIGHT, name) for name in ("serl_key", "serl_sky"))
    if key >= 0 and sky >= 0:
        x, y, z = (-_LENGTH * model.light_dir[key]).tolist()
        looks = looks._replace(
            towards_light=(x, y, z),
            key=float(model.light_diffuse[key, 0]),
            sky=(
                float(model.light_ambient[[key, sky], 0].sum()),
                float(model.light_diffuse[sky, 0]),
            ),
        )
    if floor >= 0:
        tiles = model.geom_matid[floor]
        looks = looks._replace(
            floor=FLOOR * model.mat_rgba[tiles, :3],
            tiles_m=float(model.mat_texrepeat[tiles, 0]),
        )
    return looks


def floor_of(model: mujoco.MjModel) -> int:
    """Return the number of the plane made of the material `tiles`; -1 without one."""
    tiles = _number(model, mujoco.mjtObj.mjOBJ_MATERIAL, "tiles")
    plane = model.geom_type == mujoco.mjtGeom.mjGEOM_PLANE
    found = np.flatnonzero(plane & (model.geom_matid == tiles)).tolist()
    return int(found[0]) if tiles >= 0 and found else -1


def _number(model: mujoco.MjModel, kind: Any, name: str) -> int:
    """Return the number of a named element, or -1."""
    return int(mujoco.mj_name2id(model, kind, name))


def lamp_light(shift_m: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the light direction of the lamp, 2 m from the field, after a shift.  # (3,)."""
    direction = -(_LAMP_M * np.array(TOWARDS_LIGHT) + shift_m)
    unit: np.ndarray[Any, Any] = direction / np.linalg.norm(direction)
    return unit


def looks_fields(model: mujoco.MjModel) -> tuple[np.ndarray[Any, Any], ...]:
    """Return the arrays of a model that `looks_of` reads."""
    return (
        model.light_dir, model.light_diffuse, model.light_ambient,
        model.mat_rgba, model.mat_texrepeat,
    )  # fmt: skip


_LAMP_M = 2.0
_LIGHT = mujoco.mjtObj.mjOBJ_LIGHT
_LENGTH = math.sqrt(sum(part * part for part in TOWARDS_LIGHT))  # MuJoCo's directions are of norm 1
