from __future__ import annotations

import dataclasses
from typing import Any

import mujoco
import numpy as np
import pytest

from serl import plugins
from serl.errors import BadInput, SerlError
from serl.sim.arm import SimArm
from serl.sim.render import ray
from serl.sim.render.cameras import Cameras
from serl.sim.render.projection import colors_of
from serl.tasks.pick_cube import PickCube

RED = '<asset><material name="red" rgba="1 0 0 1"/></asset>'
WOOD = (
    '<asset><texture name="grain" type="2d" builtin="checker" width="8" height="8"'
    ' rgb1="1 0 0" rgb2="0 0 1"/><material name="wood" texture="grain"/></asset>'
)
# Each combination of material, own colour and group that MuJoCo distinguishes.
PAINTS = """
<mujoco>
<asset>
  <material name="red" rgba="1 0 0 1"/><material name="glass" rgba="0 0 1 0.4"/>
  <material name="air" rgba="0 1 0 0"/>
</asset>
<worldbody>
  <camera name="above" pos="0 0 3" fovy="60"/>
  <geom size=".1" pos="-.9 0 0"/>
  <geom size=".1" pos="-.6 0 0" rgba="0.2 0.9 0.3 1"/>
  <geom size=".1" pos="-.3 0 0" material="red"/>
  <geom size=".1" pos="0 0 0" material="red" rgba="0.1 0.2 0.9 1"/>
  <geom size=".1" pos=".3 0 0" material="red" rgba="0.5 0.5 0.5 1"/>
  <geom size=".1" pos=".6 0 0" material="glass"/>
  <geom size=".1" pos=".9 0 0" material="glass" rgba="0.5 0.5 0.5 0.7"/>
  <geom size=".1" pos="-.9 .4 0" material="air"/>
  <geom size=".1" pos="-.6 .4 0" material="air" rgba="0.9 0.9 0.1 1"/>
  <geom size=".1" pos="-.3 .4 0" material="red" rgba="0.5 0.5 0.5 0"/>
  <geom size=".1" pos="0 .4 0" rgba="1 1 1 0"/>
  <geom size=".1" pos=".3 .4 0" material="red" group="2"/>
  <geom size=".1" pos=".6 .4 0" material="red" group="3"/>
</worldbody>
</mujoco>
"""


def arm_with(slab: str, extra: str, **settings: Any) -> SimArm:
    """Return a picking arm beside a slab with the given appearance."""
    task = PickCube()
    body = f'<geom name="slab" type="box" pos="0.5 0.2 0.1" size="0.1 0.02 0.1" {slab}/>'
    scene = task.scene
    scene = dataclasses.replace(scene, bodies=scene.bodies + body, extra=scene.extra + extra)
    arm = SimArm(scene, task.config.model_copy(update=settings))
    arm.reset(1)
    return arm


def ready(text: str) -> tuple[Any, Any]:
    model = mujoco.MjModel.from_xml_string(text)
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    return model, data


def test_material_colors_geom_like_its_own_color() -> None:
    arms = [arm_with(look, RED) for look in ('rgba="1 0 0 1"', 'material="red"', "")]
    for shadows in (False, True):
        own, material, grey = (
            ray.RayRenderer(arm.model, arm.data, shadows=shadows).frame("front", 64, 64).astype(int)
            for arm in arms
        )
        assert np.array_equal(own, material)
        red = (material[..., 0] > material[..., 1] + 60) & (material[..., 2] < 60)
        assert red.sum() > 50
        assert (grey != material).any(axis=2).sum() > 50


def test_geom_colors_match_mujoco_rendering() -> None:
    model, data = ready(PAINTS)
    scene = mujoco.MjvScene(model, 100)
    everything = mujoco.mjtCatBit.mjCAT_ALL
    mujoco.mjv_updateScene(
        model, data, mujoco.MjvOption(), None, mujoco.MjvCamera(), everything, scene
    )
    expected = np.zeros((model.ngeom, 4), np.float32)
    for drawn in scene.geoms[: scene.ngeom]:
        if drawn.objtype == mujoco.mjtObj.mjOBJ_GEOM:
            expected[drawn.objid] = drawn.rgba
    assert (expected[:, 3] > 0).sum() == 9
    colors = colors_of(model)
    assert np.array_equal(colors[:, 3], expected[:, 3])
    seen = expected[:, 3] > 0
    assert np.array_equal(colors[seen], expected[seen])


@pytest.mark.parametrize("shadows", [False, True])
def test_geoms_hidden_in_mujoco_are_invisible_to_ray_renderer(shadows: bool) -> None:
    model, data = ready(PAINTS)
    picture = ray.RayRenderer(model, data, shadows=shadows).frame("above", 120, 120)
    background = picture[0, 0]
    seen = (picture != background).any(axis=2)
    slope = 2 * np.tan(np.radians(30)) * 3 / 120  # metres per pixel at the height of the centres
    for geom, alpha in enumerate(colors_of(model)[:, 3].tolist()):
        x, y = data.geom_xpos[geom, :2]
        assert seen[int(60 - y / slope), int(60 + x / slope)] == (alpha > 0), geom


def test_changed_material_color_shows_in_images() -> None:
    arm = arm_with('material="red"', RED)
    renderer = ray.RayRenderer(arm.model, arm.data, shadows=False)
    red = renderer.frame("front", 64, 64)
    arm.model.mat_rgba[arm.model.material("red").id] = (0, 0, 1, 1)
    blue = renderer.frame("front", 64, 64)
    changed = (red != blue).any(axis=2)
    assert changed.sum() > 50
    assert (blue[changed, 2] > blue[changed, 0]).all()


@pytest.mark.parametrize(
    ("slab", "extra", "what"),
    [
        ('material="wood"', WOOD, "the texture of its material 'wood'"),
        ('rgba="1 0 0 0.5"', "", r"its transparency \(alpha 0.5\)"),
    ],
)
def test_materials_unsupported_by_rays_are_refused_for_policy_cameras(
    slab: str, extra: str, what: str
) -> None:
    with pytest.raises(BadInput, match=rf"'slab' with {what}.*renderer gl") as raised:
        arm_with(slab, extra, observe="pixels")
    assert "\n" not in str(raised.value)
    arm_with(slab, extra)  # no policy learns from these images
    arm_with(f'{slab} group="3"', extra, observe="pixels")  # gl does not draw this group either


@pytest.mark.parametrize(
    ("inner", "outer", "missing"),
    [
        (
            '<site name="a"/><site name="b" pos="1 0 0"/>',
            '<tendon><spatial name="rope" width="0.03"><site site="a"/><site site="b"/></spatial>'
            "</tendon>",
            "renderer ray does not draw tendon 'rope': expected --task_config.renderer gl",
        ),
        (
            '<body name="b"><flexcomp name="cloth" type="grid" count="3 3 1" spacing=".1 .1 .1"'
            ' dim="2"/></body>',
            "",
            "renderer ray does not draw cloth and skins: expected --task_config.renderer gl",
        ),
        (
            '<body><joint name="j"/><geom size=".1"/></body>',
            '<tendon><fixed><joint joint="j" coef="1"/></fixed></tendon>',
            "",
        ),
    ],
)
def test_tendons_and_cloth_are_not_drawn_by_rays(inner: str, outer: str, missing: str) -> None:
    model, _ = ready(f"<mujoco><worldbody>{inner}</worldbody>{outer}</mujoco>")
    found = ray.not_drawn(model)
    assert found.startswith(missing)
    assert bool(found) == bool(missing)


def test_textures_are_drawn_with_opengl_in_cameras_and_videos(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    arm = arm_with('material="wood"', WOOD)
    made = []
    monkeypatch.setattr("serl.sim.render.gl.GLRenderer", lambda *_, **__: made.append("gl"))
    Cameras(arm.model, arm.data, PickCube().config.views, "auto")
    assert made == ["gl"]
    plugins.make_renderer(arm, supersampling=2)
    assert made == ["gl", "gl"]

    def unusable(*_: object) -> None:
        raise SerlError("no OpenGL")

    monkeypatch.setattr("serl.sim.render.gl.GLRenderer", unusable)
    with pytest.raises(SerlError, match="no OpenGL"):
        plugins.make_renderer(arm)
    image = plugins.make_renderer(arm_with("", ""), shadows=False).frame("front", 32, 24)
    assert image.std() > 10, "image drawn by the ray renderer"


def test_built_in_scene_needs_no_opengl() -> None:
    assert ray.not_drawn(arm_with("", "").model) == ""
