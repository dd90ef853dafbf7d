from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import pytest

from serl import plugins
from serl.errors import SerlError
from serl.runs.config import resolve
from serl.runs.task_setup import make_task
from serl.sim.arm import SimArm
from serl.sim.render import gl
from serl.sim.render.franka_skin import shells
from serl.sim.render.surfaces import block, lathe
from serl.tasks.pick_cube import PickCube


def simulation(name: str, **settings: Any) -> Any:
    robot: Any = plugins.make_simulation(
        make_task(resolve({"task": name, "task_config": settings}))
    )
    robot.reset(1)
    return robot


def picking() -> SimArm:
    task = PickCube()
    arm = SimArm(task.scene, task.config)
    arm.reset(1)
    return arm


@pytest.mark.parametrize("part", shells())
def test_shells_are_closed_with_outward_faces(part: str) -> None:
    for shell in shells()[part]:
        vertices, normals, faces = shell.surface
        places = [tuple(place) for place in (vertices * 1e5).round().astype(int).tolist()]
        edges: Counter[Any] = Counter()
        for a, b, c in faces.tolist():
            edges.update((places[i], places[j]) for i, j in ((a, b), (b, c), (c, a)))
        assert all(edges[b, a] == count for (a, b), count in edges.items())
        corners = vertices[faces]
        crossed = np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0])
        assert (corners[:, 0] * crossed).sum() > 0.0, "a positive volume"
        assert ((normals[faces[:, 0]] * crossed).sum(axis=1) > 0.0).all()
        assert np.allclose(np.linalg.norm(normals, axis=1), 1.0, atol=1e-6)


def test_cylinder_normals_are_smooth_around_and_sharp_at_ends() -> None:
    surface = lathe([(0.1, 0.0), (0.1, 0.3)], segments=32)
    upright = np.abs(surface.normals[:, 2]) > 0.5
    assert set(surface.vertices[upright, 2].round(6).tolist()) == {0.0, 0.3}
    aside = surface.vertices[~upright] * (10.0, 10.0, 0.0)
    assert np.allclose(surface.normals[~upright], aside, atol=1e-3)
    box = block((0.0, 1.0), (0.0, 2.0), (0.0, 3.0), 0.1)
    assert np.allclose(box.vertices.min(axis=0), 0.0, atol=1e-6)
    assert np.allclose(box.vertices.max(axis=0), (1.0, 2.0, 3.0), atol=1e-6)


@pytest.mark.parametrize("name", plugins.names("task"))
def test_appearance_matches_body_and_camera_poses(name: str) -> None:
    robot = simulation(name)
    shown = robot.appearance()
    robot.act(np.ones(robot.action_spec.shape, np.float32))
    robot.advance(0.3)
    shown.update()
    mujoco.mj_kinematics(
        robot.model, robot.data
    )  # otherwise positions are those of the previous step
    mujoco.mj_camlight(robot.model, robot.data)
    assert np.array_equal(shown.data.xpos, robot.data.xpos)
    cameras = [robot.model.camera(index).name for index in range(robot.model.ncam)]
    for name, place in zip(cameras, robot.data.cam_xpos, strict=True):
        assert np.array_equal(shown.data.camera(name).xpos, place)
    for link in (body for body in range(robot.model.nbody) if _is_link(robot.model, body)):
        assert shown.model.body_geomnum[link] == len(shells()["link3"]), "no simple geom remains"


def _is_link(model: mujoco.MjModel, body: int) -> bool:
    return bool(model.body(body).name.endswith("link3"))


def test_displayed_finger_pads_match_collision_pads() -> None:
    arm = picking()
    pad = arm.model.geom("pad_left")
    low = pad.pos - pad.size
    high = pad.pos + pad.size
    parts = [shell.surface.vertices for shell in shells()["finger"]]
    shown_low = np.min([part.min(axis=0) for part in parts], axis=0)
    shown_high = np.max([part.max(axis=0) for part in parts], axis=0)
    assert abs(shown_low[1] - low[1]) < 1e-6, "the grasping face matches"
    assert abs(shown_high[2] - high[2]) < 1e-3, "the finger tip matches"


def test_appearance_shows_randomized_colors_and_sizes() -> None:
    robot = simulation("pick_cube", randomize="full")
    shown = robot.appearance()
    cube = robot.model.body("cube").geomadr[0]
    drawn = shown.model.body("cube").geomadr[0]
    for seed in range(3):
        robot.reset(seed)
        shown.update()
        for name in ("geom_rgba", "geom_size"):
            assert np.array_equal(
                getattr(shown.model, name)[drawn], getattr(robot.model, name)[cube]
            )
        front = shown.model.camera("front").id
        own = robot.model.camera("front").id
        assert np.array_equal(shown.model.cam_pos[front], robot.model.cam_pos[own])


@pytest.mark.parametrize(
    "name", ["peg_insertion", "peg_insertion_6d", "connector_insertion_6d", "dashboard"]
)
def test_insertion_image_has_inset_of_the_hole(name: str) -> None:
    robot = simulation(name)
    cameras = [robot.model.camera(index).name for index in range(robot.model.ncam)]
    assert "detail" not in cameras, "the simulation itself has the camera"
    renderer = plugins.make_renderer(robot, shadows=False)
    large, near = renderer.frame("front", 480, 360), renderer.frame("detail", 180, 135)
    assert np.array_equal(large[:135, -180:], near)
    assert (large[136, -100] == 255).all(), "the inset has a border"
    blue = (near[..., 2].astype(int) > near[..., 0].astype(int) + 30).mean()
    assert blue > 0.2, "the inset shows the block"
    renderer.close()


def test_ray_renderer_draws_detailed_arm_without_opengl(monkeypatch: pytest.MonkeyPatch) -> None:
    arm = picking()
    with_gl = plugins.make_renderer(arm).frame("front", 96, 72).astype(int)

    def unusable(*_: object) -> None:
        raise SerlError("no OpenGL")

    monkeypatch.setattr(gl, "GLRenderer", unusable)
    with_rays = plugins.make_renderer(arm).frame("front", 96, 72).astype(int)
    with pytest.raises(SerlError, match="no OpenGL"):
        plugins.make_renderer(arm, name="gl")
    table = (slice(50, 70), slice(10, 30))
    assert np.abs(with_gl[table] - with_rays[table]).max() < 40
    live = plugins.make_renderer(arm, shadows=False).frame("front", 96, 72).astype(int)
    assert np.abs(live - with_rays).mean() > 3.0, "the live view draws the simple arm"


@pytest.mark.parametrize(
    ("name", "settings", "renderer"),
    [
        ("pick_cube", {"observe": "pixels"}, ""),
        ("pick_cube", {"observe": "pixels", "randomize": "full"}, ""),
        ("pick_cube", {"observe": "pixels", "randomize": "full"}, "ray"),
        ("handover", {}, ""),
        ("racing_car", {}, ""),
    ],
)
def test_drawing_for_people_changes_neither_physics_nor_observations(
    name: str, settings: dict[str, Any], renderer: str
) -> None:
    drawn, plain = (simulation(name, **settings) for _ in range(2))
    # Rays without shadows draw the simulation's own model, not a copy of it.
    people = plugins.make_renderer(drawn, name=renderer, shadows=renderer != "ray")
    pictures, rng = [], np.random.default_rng(0)
    for step in range(5):
        action = rng.uniform(-1.0, 1.0, drawn.action_spec.shape).astype(np.float32)
        for robot in (drawn, plain):
            robot.act(action)
            robot.advance(0.1)
        pictures.append(people.frame("front", 64, 48))
        seen, expected = drawn.observe(), plain.observe()
        assert bool(seen.images) == ("observe" in settings)
        for values, others in ((seen.state, expected.state), (seen.images, expected.images)):
            assert values.keys() == others.keys()
            for key, value in values.items():
                assert np.array_equal(value, others[key]), f"step {step}: {key}"
        assert np.array_equal(drawn.data.qpos, plain.data.qpos), f"step {step}"
        assert np.array_equal(drawn.data.qvel, plain.data.qvel), f"step {step}"
    assert not np.array_equal(pictures[0], pictures[-1]), "the pictures do not show the motion"
    people.close()


class Bare:
    """Simulation without an `appearance` method, as third-party code may provide."""

    def __init__(self, model: mujoco.MjModel) -> None:
        self.model, self.data = model, mujoco.MjData(model)
        mujoco.mj_forward(self.model, self.data)


def wedge(path: Path) -> Path:
    """Write a right-angled wedge of 0.4 m as a binary STL file."""
    corners = 0.4 * np.array([(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1)], np.float32)
    faces = np.zeros(4, [("normal", "<f4", 3), ("corners", "<f4", (3, 3)), ("flags", "<u2")])
    faces["corners"] = corners[[(0, 2, 1), (0, 1, 3), (0, 3, 2), (1, 2, 3)]]
    path.write_bytes(bytes(80) + np.uint32(4).tobytes() + faces.tobytes())
    return path


def from_urdf(folder: Path) -> mujoco.MjModel:
    """Load a URDF with one mesh link and add the camera used for rendering."""
    path = folder / "wedge.urdf"
    path.write_text(
        '<robot name="wedge"><mujoco><compiler discardvisual="false"/></mujoco><link name="base">'
        f'<visual><geometry><mesh filename="{wedge(folder / "wedge.stl")}"/></geometry>'
        '<material name="blue"><color rgba="0 0 1 1"/></material></visual></link></robot>'
    )
    spec = mujoco.MjSpec.from_file(str(path))
    spec.worldbody.add_camera(name="front", pos=(0.1, -1.5, 0.1), xyaxes=(1, 0, 0, 0, 0, 1))
    spec.worldbody.add_light(pos=(0, -2, 2), dir=(0, 1, -1))
    return spec.compile()


def test_foreign_model_is_drawn_unchanged(tmp_path: Path) -> None:
    for model in (picking().model, from_urdf(tmp_path)):
        other: Any = Bare(model)
        image = plugins.make_renderer(other, shadows=False).frame("front", 64, 48)
        own = gl.GLRenderer(other.model, other.data, shadows=False).frame("front", 64, 48)
        assert np.array_equal(image, own)
    colours = image.reshape(-1, 3).astype(int)
    blue = colours[:, 2] > colours[:, :2].max(axis=1) + 100
    assert 0.01 < blue.mean() < 0.3, "the image shows the URDF's mesh"


def test_scene_meshes_are_drawn_with_the_arm(tmp_path: Path) -> None:
    asset = f'<asset><mesh name="wedge" file="{wedge(tmp_path / "wedge.stl")}"/></asset>'
    scene = replace(PickCube().scene, extra=asset)
    scene = replace(scene, bodies=scene.bodies + '<geom name="wedge" type="mesh" mesh="wedge"/>')
    arm = SimArm(scene, PickCube().config)
    shown, own = arm.appearance(), arm.model.geom("wedge")
    drawn = shown.model.geom("wedge")
    places = [model.mesh_vert[model.mesh_vertadr[int(geom.dataid[0])] :][:4]
              for model, geom in ((shown.model, drawn), (arm.model, own))]  # fmt: skip
    assert np.array_equal(*places)
    assert np.array_equal(shown.data.geom("wedge").xpos, arm.data.geom("wedge").xpos)
