import numpy as np
import pytest

from serl import plugins
from serl.errors import BadInput
from serl.sim.arm import SimArm
from serl.tasks.pick_cube import PickCube
from serl.types import Image


def make_arm(seed: int = 0) -> SimArm:
    task = PickCube()
    arm = SimArm(task.scene, task.config)
    arm.reset(seed)
    return arm


def orange(image: Image) -> int:
    red, green, blue = (image[..., channel].astype(int) for channel in range(3))
    return int(((red > green + 40) & (red > blue + 60)).sum())


def test_frames_have_the_requested_size() -> None:
    renderer = plugins.make_renderer(make_arm(), name="ray")
    for camera, width, height in (("front", 64, 64), ("wrist", 80, 45)):
        image = renderer.frame(camera, width, height)
        assert image.shape == (height, width, 3)
        assert image.dtype == np.uint8
        assert image.std() > 10, "the image is not uniform"


def test_image_shows_cube_at_its_position() -> None:
    arm = make_arm()
    renderer = plugins.make_renderer(arm, name="ray")
    columns = []
    for seed in range(6):
        y_m = float(arm.reset(seed).state["cube_pose"][1])
        image = renderer.frame("front", 96, 96)
        assert orange(image) > 5
        red = image.astype(int)
        column = np.argwhere((red[..., 0] > red[..., 1] + 40) & (red[..., 0] > red[..., 2] + 60))
        columns.append((y_m, column[:, 1].mean()))
    columns.sort()
    assert columns[0][1] < columns[-1][1] - 5


def test_supersampling_softens_edges_only() -> None:
    arm = make_arm()
    hard = plugins.make_renderer(arm, name="ray").frame("front", 64, 64).astype(int)
    soft = plugins.make_renderer(arm, 3, "ray").frame("front", 64, 64).astype(int)
    changed = np.abs(hard - soft).max(axis=2) > 0
    assert 0.02 < changed.mean() < 0.6
    assert abs(hard.mean() - soft.mean()) < 2.0


def test_ray_renderer_refuses_unknown_camera() -> None:
    with pytest.raises(BadInput, match=r"'back'.*front, field, wrist"):
        plugins.make_renderer(make_arm(), name="ray").frame("back", 8, 8)
