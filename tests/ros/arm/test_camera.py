"""Camera images for operators: uncropped, newest, and JPEG data passed through."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from sensor_msgs.msg import CompressedImage

from serl import plugins
from serl.camera import View
from serl.motion import Motion
from serl.ros.arm.camera import WatchedCameras, picture_topic
from serl.ros.arm.camera_settings import camera_settings, note_cameras
from serl.ros.arm.robot import RosArm
from serl.ros.camera import PublishConfig, describe
from serl.ros.conversions import image_message
from serl.ros.node import RosNode
from serl.ros.services import Remote
from serl.ros.testing.processes import eventually
from serl.ros.topics import Topic
from serl.runs.real_arm import CAMERAS, camera_differences, keep_camera_settings
from serl.system.video import encode_image
from serl.task import TaskConfig
from serl.workspace import CellCamera

pytestmark = pytest.mark.ros

IMAGE = np.full((48, 64, 3), 90, np.uint8)


def test_operator_gets_newest_image_of_each_camera_at_its_own_size() -> None:
    callbacks: dict[str, Callable[[Any], None]] = {}

    def subscribe(topic: Topic, callback: Callable[[Any], None]) -> None:
        callbacks[topic.name] = callback

    wrist = CellCamera(topic="/cell/wrist", compressed=True, crop=(0.0, 0.0, 0.5, 0.5), rate_hz=30)
    cameras = WatchedCameras(
        cast("Any", SimpleNamespace(subscribe=subscribe)), "arm", {"front": None, "wrist": wrist}
    )
    assert set(callbacks) == {"arm/front/image_raw", "/cell/wrist/image_raw/compressed"}
    assert cameras.look() == {}
    jpeg = encode_image(IMAGE, ".jpg")
    callbacks["arm/front/image_raw"](image_message(IMAGE // 2, "front", 0))
    callbacks["arm/front/image_raw"](image_message(IMAGE, "front", 1))
    callbacks["/cell/wrist/image_raw/compressed"](CompressedImage(format="jpeg", data=jpeg))
    seen = cameras.look()
    assert seen["wrist"] == jpeg, "a JPEG is passed on uncropped and unchanged"
    assert np.array_equal(cast("Any", seen["front"]), IMAGE), "only the newest image counts"
    assert cameras.look() == {}, "no new image arrived"
    callbacks["/cell/wrist/image_raw/compressed"](CompressedImage(data=b"nonsense"))
    callbacks["arm/front/image_raw"](image_message(IMAGE, "front", 2))
    assert set(cameras.look()) == {"front"}, "a damaged image must not block other cameras"
    callbacks["/cell/wrist/image_raw/compressed"](
        CompressedImage(format="png", data=encode_image(IMAGE))
    )
    assert cast("Any", cameras.look()["wrist"]).shape == IMAGE.shape


MOTION = Motion(
    axes=("x", "y", "z"), translation_m=0.01, box_low_m=(0.3, -0.2, 0.0), box_high_m=(0.6, 0.2, 0.4)
)
ENTRY = CellCamera(topic="/cell/front", compressed=True, crop=(0.0, 0.0, 0.5, 1.0), rate_hz=30.0)


@pytest.fixture
def looker(tmp_path: Path) -> Iterator[RosNode]:
    with RosNode("looker", tmp_path / "run", local=True) as node:
        yield node


def driver(folder: Path, fixed: str) -> RosNode:
    """Return a node with the parameters of `serl camera`."""
    view = View(camera="front", width=64, height=48, crop=(0.25, 0.0, 1.0, 1.0))
    parameters = describe("a film", PublishConfig(frame="front", view=view), fixed)
    return RosNode("camera_front", folder, local=True, parameters=parameters)


def test_camera_settings_combine_driver_parameters_and_profile_crop(
    looker: RosNode, tmp_path: Path
) -> None:
    with driver(tmp_path / "run", "exposure_s 0.01, gain 5") as camera:
        camera.publisher(picture_topic("", "/cell/front", compressed=True))
        remote, cameras = Remote(looker, lambda: None), {"front": ENTRY, "wrist": None}
        found: list[Any] = []

        def is_found() -> bool:
            found.append(camera_settings(looker, remote, "arm", cameras))
            return "fixed" in found[-1]["front"]

        eventually(is_found)
    assert found[-1]["front"] == {
        "crop": "[0.25, 0.0, 1.0, 1.0]",
        "cut": "0, 0, 0.5, 1",
        "fixed": "exposure_s 0.01, gain 5",
        "size": "64x48",
    }
    assert found[-1]["wrist"] == {}, "the wrist camera has no publisher"


def test_start_warns_of_camera_settings_that_differ_from_demonstrations_and_training(
    looker: RosNode, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    profile = plugins.load("robot", "sim").model_copy(update={"cameras": {"front": ENTRY}})
    view = View(camera="front", width=64, height=48)
    config = TaskConfig(motion=MOTION, observe="pixels", views={"front": view})
    arm = RosArm(looker, "arm", profile, config)
    assert arm.cameras == {"front": ENTRY}
    demos, trained, run = (tmp_path / name for name in ("demos", "trained", "run"))
    for folder in (demos, trained):
        folder.mkdir()
        keep_camera_settings(folder, {"front": {"cut": "0, 0, 1, 1", "gain": "3"}})
    made: Any = SimpleNamespace(path=run, config=SimpleNamespace(demo_paths=(demos,)))
    with caplog.at_level(logging.WARNING):
        note_cameras(looker, arm, made)
        note_cameras(looker, arm, made, (tmp_path, trained))
    lines = [f"camera front differs from {each}: cut 0, 0, 0.5, 1, not 0, 0, 1, 1"
             for each in (demos, demos, trained)]  # fmt: skip
    assert [record.message for record in caplog.records] == lines
    assert camera_differences({"front": {"cut": "0, 0, 0.5, 1"}}, run) == []
    keep_camera_settings(run, {"front": {"cut": "0, 0, 0.2, 1", "gain": "5"}, "wrist": {}})
    kept = json.loads((run / CAMERAS).read_text())
    assert kept == {"front": {"cut": "0, 0, 0.5, 1", "gain": "5"}, "wrist": {}}, "overwritten"
    (run / CAMERAS).write_text("{")
    assert "cannot be read" in camera_differences({"front": {}}, run)[0]
