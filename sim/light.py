"""The light and the looks of a scene as MJCF, for OpenGL: near what `sim/shading.py` computes."""

from __future__ import annotations

from collections.abc import Iterable

from serl.sim.shading import FILL, FLOOR, KEY, SKY, SKY_LIGHT, TILES_M, TOWARDS_LIGHT


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
