from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from serl.camera import View
from serl.errors import BadInput, SerlError
from serl.sim.arm import SimArm
from serl.sim.render import cameras, ray
from serl.tasks.pick_cube import PickCube, PickCubeConfig

SMALL = {"front": View(camera="field", width=16, height=16)}


def make_arm(**settings: Any) -> SimArm:
    task = PickCube(PickCubeConfig.model_validate(settings))
    return SimArm(task.scene, task.config)


def test_reading_has_no_images_with_state_observation() -> None:
    reading = make_arm().observe()
    assert reading.images == {}
    assert list(reading.stamps) == ["robot"]


def test_images_fit_their_spec_and_carry_stamps() -> None:
    views = {**SMALL, "wrist": View(camera="wrist", width=24, height=16, crop=(0.0, 0.0, 0.5, 1.0))}
    arm = make_arm(observe="pixels", views=views)
    reading = arm.observe()
    arm.observation_spec.validate_observation(reading)
    assert reading.images["wrist"].shape == (16, 24, 3)
    assert reading.stamps.keys() == {"robot", "front", "wrist"}
    assert len(set(reading.stamps.values())) == 1


def test_private_views_are_in_readings_but_not_in_observations() -> None:
    task = PickCube(
        PickCubeConfig(observe="pixels", views=SMALL, private_views={"judge": SMALL["front"]})
    )
    arm = SimArm(task.scene, task.config)
    reading = arm.observe()
    task.begin(reading)
    assert set(reading.images) == {"front", "judge"}
    assert set(task.observation(reading).images) == set(task.observation_spec.images) == {"front"}
    alone = make_arm(private_views={"judge": SMALL["front"]}).observe()
    assert set(alone.images) == {"judge"}


def test_views_of_one_camera_share_one_rendered_image(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = []
    frame = ray.RayRenderer.frame

    def counted(self: ray.RayRenderer, camera: str, width: int, height: int) -> Any:
        drawn.append(camera)
        return frame(self, camera, width, height)

    monkeypatch.setattr(ray.RayRenderer, "frame", counted)
    whole = View(camera="field", width=16, height=16, capture=(32, 32))
    views = {"whole": whole, "corner": whole.model_copy(update={"crop": (0.0, 0.0, 0.5, 0.5)})}
    arm = make_arm(observe="pixels", views=views)
    drawn.clear()
    arm.reset(1)
    images = arm.observe().images
    assert drawn == ["field"], "each time step is rendered once, however often it is read"
    assert not np.array_equal(images["whole"], images["corner"])
    arm.advance(0.1)
    arm.observe()
    arm.observe()
    assert drawn == ["field", "field"]


def test_pixels_are_refused_without_a_renderer() -> None:
    arm = make_arm(renderer="none", private_views={"judge": SMALL["front"]})
    assert arm.observation_spec.images == {}
    with pytest.raises(ValueError, match="observe pixels: expected a renderer"):
        make_arm(renderer="none", observe="pixels")


def test_unknown_view_camera_is_refused_with_known_cameras() -> None:
    with pytest.raises(BadInput, match=r"view front: unknown camera 'roof'.*front, field, wrist"):
        make_arm(observe="pixels", views={"front": View(camera="roof")})


@pytest.mark.parametrize("name", ["state", "robot", "Front", "a b", ""])
def test_reserved_or_invalid_view_names_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"pattern|names of other things"):
        make_arm(observe="pixels", views={name: SMALL["front"]})


def test_view_name_cannot_be_used_for_private_view() -> None:
    with pytest.raises(ValueError, match="front"):
        make_arm(observe="pixels", views=SMALL, private_views=SMALL)


def test_ray_renderer_replaces_unusable_opengl(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*arguments: Any) -> Any:
        raise RuntimeError("an OpenGL platform library has not been loaded")

    monkeypatch.setattr("mujoco.Renderer", broken)
    monkeypatch.setattr(cameras, "_has_gpu", lambda: True)
    arm = make_arm(observe="pixels", views=SMALL, renderer="auto")
    assert arm.observe().images["front"].any()
    assert "drawing with rays" in caplog.text
    with pytest.raises(SerlError, match=r"renderer gl: .* renderer ray needs nothing"):
        make_arm(observe="pixels", views=SMALL, renderer="gl")
