"""Pixel observations of tasks: object positions are visible in images only."""

from __future__ import annotations

import numpy as np
import pytest

from serl import plugins
from serl.runs.config import resolve
from serl.runs.task_setup import make_spec, make_task
from serl.task import SimulatedTask
from serl.testing.samples import episode
from serl.types import Step

SEEN = (
    "pick_cube",
    "peg_insertion",
    "connector_insertion",
    "drawer",
    "bin_relocation",
    "cable_routing",
    "object_flip",
    "handover",
    "timing_belt",
    "peg_insertion_6d",
    "dashboard",
    "whip_block",
)
HIDDEN = (
    "cube", "hole", "peg", "handle", "opening", "part", "cable", "end", "patty", "turned", "bar",
    "passed", "around", "card", "socket", "switch", "lever",
    "loose", "top", "stand",
)  # fmt: skip


def make(name: str) -> SimulatedTask:
    views = plugins.load("task", name)().config.views
    small = {view: {"width": 16, "height": 16} for view in views}
    return make_task(resolve({"task": name, "observe": "pixels", "task_config": {"views": small}}))


@pytest.mark.parametrize("name", SEEN)
def test_pixel_observation_shows_scene_only_through_cameras(name: str) -> None:
    task = make(name)
    spec = make_spec(task).observation
    assert len({view.camera for view in task.config.policy_views.values()}) >= 2
    assert not any(hidden in key for key in spec.state for hidden in HIDDEN)
    robot = plugins.make_simulation(task)
    one, other = robot.reset(0).images, robot.reset(1).images
    for camera, image in robot.reset(1).images.items():
        assert np.array_equal(image, other[camera])
        assert np.abs(image.astype(int) - one[camera]).max() > 30, "it shows where objects are"
    records = episode(robot, task, task.expert(robot.truth, 0))
    steps = [record for record in records if isinstance(record, Step)]
    for step in steps:
        spec.validate_observation(step.observation)
    assert steps[-1].terminated, "the expert solves the task from the truth"
    for camera in spec.images:
        pictures = {step.observation.images[camera].tobytes() for step in steps}
        assert len(pictures) > len(steps) // 2, camera
    first = steps[0].observation
    for name in {"tcp_from_start", "yaw_from_start"} & first.state.keys():
        assert not first.state[name].any()
