"""`serl reward collect TASK --robot NAME` on a fake Franka with fake cameras, by a joystick."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from serl.camera import REAL
from serl.log.annotations import read_labels
from serl.log.episode_reader import episode_paths
from serl.runs.reward_data import read_samples, read_sight
from serl.system.files import make_folder

from .conftest import Start
from .support.fake_camera import SIDE_PX
from .support.tracked import (
    ARMS,
    FAILURE,
    GOES_ON,
    PATIENT,
    SUCCESS,
    answer_all,
    frankas_beside_goals,
    publish_joystick,
)

pytestmark = [pytest.mark.ros, pytest.mark.xdist_group("moving_arm")]  # not beside each other

CAMERAS = ("field", "wrist")
VIEWS = ",".join(f"{name}: {{width: {SIDE_PX}, height: {SIDE_PX}}}" for name in ("front", "wrist"))
SETTINGS = (
    f"--task_config.views={{{VIEWS}}}",
    "--task_config.time_limit_s=2.0",
    "--reset.kind=person",
    "--task_config.motion.box_low_m=[0.2,-0.3,0.0]",
    "--task_config.motion.box_high_m=[0.7,0.3,0.6]",
    "--log.min_free_bytes=1000000",
    *PATIENT,
)


def test_operator_labels_camera_images_while_driving_arm_by_joystick(
    tmp_path: Path, start: Start
) -> None:
    folder = tmp_path / "images"
    with frankas_beside_goals(tmp_path, None) as (driver, (arm,), node):
        for camera in CAMERAS:
            driver.start(str(Path(__file__).parent / "support/fake_camera.py"), arm, camera)
        words = ("--robot", "mine.py", "--namespace", arm, "--positives", 3, "--negatives", 3)
        command = start("reward", "collect", "pick_cube", *words, "--out", folder, *SETTINGS)
        command.until("normal only at the first start: Enter confirms that it is safe to continue")
        assert "labels the current step as positive" in command.output
        make_folder(folder)

        def pressed(tick: int) -> int | None:
            """Press success and failure in turn, with pauses."""
            return (SUCCESS, FAILURE)[tick // 8 % 2] if tick % 8 < 4 else None

        publish_joystick(node, folder, 60, pressed)
        answer_all(command, (*ARMS, GOES_ON))
    assert command.process.returncode == 0, command.output
    assert f"next: serl reward train {folder}" in command.output
    labels = list(read_labels(folder).values())
    assert min(labels.count(0), labels.count(1)) >= 3
    sight = read_sight(folder)
    assert sight.renderer == REAL
    samples, views = read_samples([folder])
    assert {view.camera for view in views.values()} == set(CAMERAS)
    assert samples.images["wrist"].std() > 10, "a picture with a sensor's noise"
    assert episode_paths(folder)
    assert json.loads((folder / "cameras.json").read_text()).keys() == set(CAMERAS)
