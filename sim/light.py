"""The light and the looks of a scene as MJCF, for OpenGL: near what `sim/shading.py` computes.

The model is what both renderers draw: rays are shaded by what it says as well.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import mujoco
import numpy as np

from serl.sim.shading import (
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
<light directional="true" dir="{_text(-part for part in TOWARDS_LIGHT)}"
  ambient="{_grey(FILL * SKY_LIGHT[0])}" diffuse="{_grey(KEY)}" specular="0 0 0"/>
<light directional="true" dir="0 0 -1" castshadow="false"
  ambient="0 0 0" diffuse="{_grey(FILL * SKY_LIGHT[1])}" specular="0 0 0"/>
"""
"""For the body of the world."""


def looks_of(model: mujoco.MjModel) -> Looks:
    """The lights and the floor of a model as they are now; of one without, as usual."""
    if model.nlight < 2 or model.nmat < 1:
        return PLAIN
    x, y, z = (-_LENGTH * model.light_dir[0]).tolist()
    floor = model.geom("table").matid[0]
    return Looks(
        towards_light=(x, y, z),
        key=float(model.light_diffuse[0, 0]),
        sky=(float(model.light_ambient[0, 0]), float(model.light_diffuse[1, 0])),
        floor=FLOOR * model.mat_rgba[floor, :3],
        tiles_m=float(model.mat_texrepeat[floor, 0]),
    )


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
_LENGTH = math.sqrt(sum(part * part for part in TOWARDS_LIGHT))  # MuJoCo's directions are of norm 1
