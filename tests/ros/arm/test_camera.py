"""Pictures of cameras for people: whole, the newest, and a JPEG as it came."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from sensor_msgs.msg import CompressedImage

from serl.ros.arm.camera import WatchedCameras
from serl.ros.conversions import image_message
from serl.ros.topics import Topic
from serl.system.video import encode_image
from serl.workspace import CellCamera

pytestmark = pytest.mark.ros

IMAGE = np.full((48, 64, 3), 90, np.uint8)


def test_a_person_sees_each_camera_at_its_own_size() -> None:
    heed: dict[str, Callable[[Any], None]] = {}

    def subscribe(topic: Topic, callback: Callable[[Any], None]) -> None:
        heed[topic.name] = callback

    wrist = CellCamera(topic="/cell/wrist", compressed=True, crop=(0.0, 0.0, 0.5, 0.5), rate_hz=30)
    cameras = WatchedCameras(
        cast("Any", SimpleNamespace(subscribe=subscribe)), "arm", {"front": None, "wrist": wrist}
    )
    assert set(heed) == {"arm/front/image_raw", "/cell/wrist/image_raw/compressed"}
    assert cameras.look() == {}
    jpeg = encode_image(IMAGE, ".jpg")
    heed["arm/front/image_raw"](image_message(IMAGE // 2, "front", 0))
    heed["arm/front/image_raw"](image_message(IMAGE, "front", 1))
    heed["/cell/wrist/image_raw/compressed"](CompressedImage(format="jpeg", data=jpeg))
    seen = cameras.look()
    assert seen["wrist"] == jpeg, "whole, and not compressed again"
    assert np.array_equal(cast("Any", seen["front"]), IMAGE), "the newest"
    assert cameras.look() == {}, "nothing is new"
    heed["/cell/wrist/image_raw/compressed"](CompressedImage(data=b"nonsense"))
    heed["arm/front/image_raw"](image_message(IMAGE, "front", 2))
    assert set(cameras.look()) == {"front"}, "a damaged picture hides no other"
    heed["/cell/wrist/image_raw/compressed"](
        CompressedImage(format="png", data=encode_image(IMAGE))
    )
    assert cast("Any", cameras.look()["wrist"]).shape == IMAGE.shape
