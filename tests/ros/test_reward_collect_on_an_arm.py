"""`serl reward collect TASK --robot NAME` on a fake Franka with fake cameras, by a joystick."""

from __future__ import annotations

import json
from itertools import count
from pathlib import Path

import pytest
from sensor_msgs.msg import Joy

from serl.camera import REAL
from serl.datasets.person import ACTOR
from serl.log.annotations import read_labels
from serl.log.episode_reader import episode_paths
from serl.ros.node import RosNode, namespace
from serl.ros.people.teleop import joy_topic
from serl.runs.reward_data import read_samples, read_sight
from serl.system.files import make_folder

from .conftest import Start
from .support.fake_camera import SIDE_PX
from .support.tracked import ARMS, GOES_ON, answer_all, frankas_beside_goals

pytestmark = pytest.mark.ros

PERIOD_S, OFF, ON = 0.05, 20, 60
CAMERAS = ("field", "wrist")
VIEWS = ",".join(f"{name}: {{width: {SIDE_PX}, height: {SIDE_PX}}}" for name in ("front", "wrist"))
SETTINGS = (
    f"--task_config.views={{{VIEWS}}}",
    "--task_config.time_limit_s=2.0",
    "--reset.kind=person",
    "--task_config.motion.box_low_m=[0.2,-0.3,0.0]",
    "--task_config.motion.box_high_m=[0.7,0.3,0.6]",
    "--log.min_free_bytes=1000000",
    "--teleop.operator.stale_s=0.5",
    "--teleop.operator.lost_s=8.0",
)


def publish_joystick(node: RosNode, folder: Path) -> None:
    """Publish a joystick that rests, then drives while pressing failure or success in turn."""
    topic, ticks = joy_topic(ACTOR), count()
    sticks = node.publisher(topic._replace(name=f"{namespace(folder)}/{topic.name}"))

    def move() -> None:
        turn = next(ticks) % (OFF + ON)
        drives = turn >= OFF
        buttons = [0] * 12
        buttons[5] = int(drives)
        buttons[turn // 8 % 2] = int(drives and turn % 8 < 4)
        sticks.publish(Joy(axes=[0.0, 1.0 if drives else 0.0, *[0.0] * 6], buttons=buttons))

    node.every(PERIOD_S, move)


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
        publish_joystick(node, folder)
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
