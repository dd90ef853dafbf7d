"""The light and the looks of a scene as MJCF, for OpenGL: near what `sim/shading.py` computes.

The model is what both renderers draw: rays are shaded by what it says as well.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import mujoco
import numpy as np

from serl.sim.render.shading import (
    FILL,
    FLOOR,
    KEY,
    PLAIN,
    SKY,
    SKY_LIGHT,
    TILES_M,
    TOWARDS_LIGHT,
    Looks,
)  # fmt: skip


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
"""For the top level of a model; the material `tiles` is the floor's."""

# What looks down gets a tenth too much of the sky, for no light is negative.
LIGHTS = f"""
<light name="serl_key" directional="true" dir="{_text(-part for part in TOWARDS_LIGHT)}"
  ambient="{_grey(FILL * SKY_LIGHT[0])}" diffuse="{_grey(KEY)}" specular="0 0 0"/>
<light name="serl_sky" directional="true" dir="0 0 -1" castshadow="false"
  ambient="0 0 0" diffuse="{_grey(FILL * SKY_LIGHT[1])}" specular="0 0 0"/>
"""
"""For the body of the world."""


def looks_of(model: mujoco.MjModel) -> Looks:
    """Return the lights and the floor that `LIGHTS` and `LOOKS` gave a model, as they are now.

    A model without these lights or this floor gets the usual ones (`PLAIN`).
    """
    looks, floor = PLAIN, floor_of(model)
    key, sky = (_number(model, _LIGHT, name) for name in ("serl_key", "serl_sky"))
    if key >= 0 and sky >= 0:
        x, y, z = (-_LENGTH * model.light_dir[key]).tolist()
        looks = looks._replace(
            towards_light=(x, y, z),
            key=float(model.light_diffuse[key, 0]),
            sky=(float(model.light_ambient[key, 0]), float(model.light_diffuse[sky, 0])),
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
    """Direction of the light of the lamp, 2 m from the field, once it has been moved.  # (3,)."""
    direction = -(_LAMP_M * np.array(TOWARDS_LIGHT) + shift_m)
    unit: np.ndarray[Any, Any] = direction / np.linalg.norm(direction)
    return unit


def looks_fields(model: mujoco.MjModel) -> tuple[np.ndarray[Any, Any], ...]:
    """The arrays of a model that `looks_of` reads."""
    return (
        model.light_dir, model.light_diffuse, model.light_ambient,
        model.mat_rgba, model.mat_texrepeat,
    )  # fmt: skip


_LAMP_M = 2.0
_LIGHT = mujoco.mjtObj.mjOBJ_LIGHT
_LENGTH = math.sqrt(sum(part * part for part in TOWARDS_LIGHT))  # MuJoCo's directions are of norm 1
