from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import pytest

from serl import plugins
from serl.sim.arm import SimArm
from serl.sim.render import layers, ray
from serl.sim.render.lighting import (
    FLOOR,
    LOOKS,
    PLAIN,
    SKY,
    TILES_M,
    Colors,
    brightness,
    fading,
    floor_tiles,
)  # fmt: skip
from serl.sim.render.projection import Hits, ray_cast
from serl.types import Image

PUSH_BLOCK = str(Path(__file__).parents[3] / "docs/examples/push_block.py")
TASKS = ("reach", "pick_cube", "peg_insertion", "connector_insertion", PUSH_BLOCK)

# One geom of each kind: static, placed (mocap) and moving.
KINDS = {
    "box": 'type="box" size="0.06 0.03 0.05"',
    "ball": 'type="sphere" size="0.05"',
    "egg": 'type="ellipsoid" size="0.07 0.03 0.05"',
    "pill": 'type="capsule" size="0.03 0.06"',
    "can": 'type="cylinder" size="0.04 0.05"',
    "rock": 'type="mesh" mesh="rock"',
}
SCENE = """
<mujoco>
{looks}
<asset><mesh name="rock" vertex="0 0 0  .1 0 0  0 .08 0  0 0 .09  .07 .07 .07"/></asset>
<worldbody>
  <geom name="table" type="plane" size="2 2 .01" material="tiles"/>
  <geom name="wall" type="plane" pos="-1 0 0" quat=".7 0 .7 .1" size="0.8 0 .01"/>
  <camera name="fixed" pos="1 -.2 .8" xyaxes="0.2 1 0 -.6 .1 .7" fovy="50"/>
  <body name="head" mocap="true" pos="0 0 1"><camera name="free" fovy="70"/></body>
  {geoms}
</worldbody>
</mujoco>
"""


def make_scene() -> tuple[mujoco.MjModel, mujoco.MjData]:
    geoms = []
    for row, around in enumerate(("{}", '<body mocap="true" {}</body>', "<body {}</body>")):
        for column, (name, kind) in enumerate(KINDS.items()):
            place = (
                f'pos="{0.2 * column - 0.3} {0.25 * row - 0.2} 0.1" euler="{40 * column} 20 {row}"'
            )
            geom = f'<geom name="{name}{row}" {kind} {place if row == 0 else ""}/>'
            joint = "<freejoint/>" if row == 2 else ""
            geoms.append(around.format(geom if row == 0 else f"{place}>{joint}{geom}"))
    model = mujoco.MjModel.from_xml_string(SCENE.format(looks=LOOKS, geoms="".join(geoms)))
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    return model, data


def paint(model: mujoco.MjModel, seed: int = 0) -> None:
    """Give each geom its own colour so that images identify geoms."""
    model.geom_rgba[:, :3] = np.random.default_rng(seed).uniform(0.1, 0.9, (model.ngeom, 3))


def cast_everywhere(
    model: mujoco.MjModel, data: mujoco.MjData, camera: str, width: int, height: int
) -> Image:
    """Render by casting one ray per pixel against all geoms (reference implementation)."""
    index = model.camera(camera).id
    scale = 2.0 * math.tan(0.5 * math.radians(model.cam_fovy[index])) / height
    y, x = np.mgrid[0:height, 0:width] + 0.5
    right, up = (x - 0.5 * width) * scale, (0.5 * height - y) * scale
    rays = np.stack([right, up, -np.ones_like(x)], axis=-1).reshape(-1, 3)
    rays /= np.linalg.norm(rays, axis=1, keepdims=True)
    rays = np.ascontiguousarray(rays @ data.cam_xmat[index].reshape(3, 3).T)
    origin, geom, normal = data.cam_xpos[index], np.empty(1, np.int32), np.empty(3)
    geoms, distances, normals = [], [], []
    for direction in rays:
        distances.append(mujoco.mj_ray(model, data, origin, direction, None, 1, -1, geom, normal))
        geoms.append(geom[0])
        normals.append(normal.copy())
    hits = Hits(np.array(geoms), np.array(distances), np.array(normals))
    colors = model.geom_rgba[:, :3].astype(np.float32)
    shaded = shade(origin, rays, hits, colors, model.geom("table").id)
    image: Image = (shaded.clip(0.0, 1.0) * 255.0 + 0.5).astype(np.uint8)
    return image.reshape(height, width, 3)


def shade(origin: Any, rays: Any, hits: Hits, geom_colors: Any, floor: int) -> Colors:
    """Return the colours at the ray hits, under directional light and without shadows."""
    colors: Colors = geom_colors[hits.geoms]
    tiles = np.flatnonzero(hits.geoms == floor)
    x_m, y_m = (origin[:2] + rays[tiles, :2] * hits.distances[tiles, None]).T
    colors[tiles] = FLOOR[floor_tiles(x_m, y_m, TILES_M)]
    colors *= brightness(hits.normals, PLAIN)
    colors[tiles] += fading(x_m, y_m) * (SKY - colors[tiles])
    colors[hits.geoms < 0] = SKY
    return colors


def differing(
    renderer: ray.RayRenderer, model: Any, data: Any, camera: str, size: tuple[int, int] = (48, 40)
) -> int:
    """Count the pixels that differ from full ray casting."""
    drawn = renderer.frame(camera, *size)
    return int((drawn != cast_everywhere(model, data, camera, *size)).any(axis=2).sum())


def turn_free_camera(data: mujoco.MjData, position: Any, rng: np.random.Generator) -> None:
    data.mocap_pos[0] = position
    quaternion = rng.normal(size=4)
    data.mocap_quat[0] = quaternion / np.linalg.norm(quaternion)


@pytest.fixture
def drawn() -> tuple[mujoco.MjModel, mujoco.MjData, ray.RayRenderer]:
    model, data = make_scene()
    paint(model)
    return model, data, ray.RayRenderer(model, data, shadows=False)


def play(name: str, seed: int, steps: int) -> Iterator[SimArm]:
    """Yield the arm at each step of an expert's episode with uniquely coloured geoms."""
    task = plugins.load("task", name)()
    arm: SimArm = plugins.make_simulation(task)  # type: ignore[assignment]
    paint(arm.model)
    task.begin(arm.reset(seed))
    expert = task.expert(arm.truth, seed)
    for _ in range(steps):
        yield arm
        arm.act(expert(task.observation(arm.observe())))
        arm.advance(0.1)


@pytest.mark.parametrize("name", TASKS)
def test_layered_images_of_tasks_match_full_ray_casting(name: str) -> None:
    renderer = None
    bad = total = 0
    for arm in islice(play(name, seed=3, steps=12), 0, None, 4):
        renderer = renderer or ray.RayRenderer(arm.model, arm.data, shadows=False)
        for index in range(arm.model.ncam):
            camera = arm.model.camera(index).name
            bad += differing(renderer, arm.model, arm.data, camera, (64, 64))
            total += 64 * 64
    assert bad <= 1e-4 * total


@pytest.mark.parametrize("size", [(8, 8), (80, 45), (33, 71)])
def test_layered_images_match_ray_casting_at_all_sizes(size: tuple[int, int]) -> None:
    for arm in play("pick_cube", seed=1, steps=2):
        renderer = ray.RayRenderer(arm.model, arm.data, shadows=False)
        for camera in ("front", "field", "wrist"):
            assert differing(renderer, arm.model, arm.data, camera, size) <= 1


def test_all_geom_types_match_ray_casting_from_any_pose(drawn: Any) -> None:
    model, data, renderer = drawn
    rng = np.random.default_rng(0)
    bad = shown = 0
    for _ in range(30):
        turn_free_camera(data, rng.uniform((-0.6, -0.6, -0.1), (1.0, 0.8, 0.6)), rng)
        mujoco.mj_forward(model, data)
        bad += differing(renderer, model, data, "free")
        shown += int(renderer.frame("free", 48, 40).std() > 1)
    assert shown > 20
    assert bad <= 3e-4 * 30 * 48 * 40


def test_geoms_match_ray_casting_from_inside(drawn: Any) -> None:
    model, data, renderer = drawn
    rng = np.random.default_rng(1)
    bad = 0
    for geom in range(2, model.ngeom):
        turn_free_camera(data, data.geom_xpos[geom] + rng.uniform(-0.01, 0.01, 3), rng)
        mujoco.mj_forward(model, data)
        bad += differing(renderer, model, data, "free")
    assert bad <= 3e-4 * model.ngeom * 48 * 40


@pytest.mark.parametrize("camera_px", [(48, 40), (20, 60)])
def test_long_geom_beside_camera_matches_ray_casting(
    drawn: Any, camera_px: tuple[int, int]
) -> None:
    model, data, renderer = drawn
    beam = model.geom("box2").id
    model.geom_size[beam] = model.geom_aabb[beam, 3:] = (0.8, 0.02, 0.03)
    rng = np.random.default_rng(2)
    bad = 0
    for _ in range(30):
        axes = data.geom_xmat[beam].reshape(3, 3)
        beside = axes @ (rng.uniform(-0.4, 0.4), *rng.uniform(-0.08, 0.08, 2))
        turn_free_camera(data, data.geom_xpos[beam] + beside, rng)
        mujoco.mj_forward(model, data)
        bad += differing(renderer, model, data, "free", camera_px)
    assert bad <= 3e-4 * 30 * camera_px[0] * camera_px[1]


def test_placed_and_moving_bodies_are_drawn_at_current_pose(drawn: Any) -> None:
    model, data, renderer = drawn
    before = renderer.frame("fixed", 48, 40)
    data.mocap_pos[1] += (0.1, 0.1, 0.05)
    mujoco.mj_forward(model, data)
    placed = renderer.frame("fixed", 48, 40)
    assert not np.array_equal(before, placed)
    assert differing(renderer, model, data, "fixed") <= 1
    data.qpos[:3] += (0.0, 0.1, 0.1)
    mujoco.mj_forward(model, data)
    assert not np.array_equal(placed, renderer.frame("fixed", 48, 40))
    assert differing(renderer, model, data, "fixed") <= 1


def test_model_changes_are_drawn(drawn: Any) -> None:
    model, data, renderer = drawn
    before = renderer.frame("fixed", 48, 40)
    still, moving = model.geom("box0").id, model.geom("box2").id

    def hide() -> None:
        model.geom_rgba[[still, moving], 3] = 0.0

    def show_again() -> None:
        model.geom_rgba[[still, moving], 3] = 1.0

    def grow() -> None:
        model.geom_size[[still, moving]] *= 1.5
        model.geom_aabb[[still, moving], 3:] *= 1.5

    def shift() -> None:
        model.geom_pos[[still, moving]] += 0.05

    def look_elsewhere() -> None:
        model.cam_pos[model.camera("fixed").id] += 0.1

    def zoom() -> None:
        model.cam_fovy[model.camera("fixed").id] = 35.0

    for change in (paint, hide, show_again, grow, shift, look_elsewhere, zoom):
        change(model, 5) if change is paint else change()  # type: ignore[call-arg]
        mujoco.mj_forward(model, data)
        after = renderer.frame("fixed", 48, 40)
        assert not np.array_equal(before, after), change.__name__
        assert differing(renderer, model, data, "fixed") <= 1, change.__name__
        before = after


def test_layered_images_are_separate_arrays(drawn: Any) -> None:
    _, _, renderer = drawn
    first = renderer.frame("fixed", 48, 40)
    kept = first.copy()
    first[:] = 0
    assert np.array_equal(renderer.frame("fixed", 48, 40), kept)


def test_layered_renderer_casts_few_rays(monkeypatch: pytest.MonkeyPatch) -> None:
    counts: list[int] = []

    def counted(model: Any, data: Any, origin: Any, rays: Any) -> Hits:
        counts.append(len(rays))
        return ray_cast(model, data, origin, rays)

    monkeypatch.setattr("serl.sim.render.layers.ray_cast", counted)
    renderer = None
    for arm in play("pick_cube", seed=0, steps=15):
        renderer = renderer or ray.RayRenderer(arm.model, arm.data, shadows=False)
        for camera in ("field", "wrist"):
            renderer.frame(camera, 84, 84)
    assert sum(counts) < 0.2 * 15 * 2 * 84 * 84


def test_static_geoms_are_drawn_once(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = []
    draw = layers.Layers._draw_still

    def counted(self: Any, eye: Any, outlines: Any) -> Any:
        drawn.append(eye)
        return draw(self, eye, outlines)

    monkeypatch.setattr(layers.Layers, "_draw_still", counted)
    renderer = None
    for arm in play("pick_cube", seed=0, steps=5):
        renderer = renderer or ray.RayRenderer(arm.model, arm.data, shadows=False)
        renderer.frame("field", 32, 32)
    assert len(drawn) == 1
