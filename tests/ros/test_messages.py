"""Images in a log are what ROS 2 itself takes for images."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import cv2
import numpy as np
import pytest
from rclpy.serialization import deserialize_message
from sensor_msgs.msg import CompressedImage, Image

from serl.log.compression import compact
from serl.log.episode_reader import EpisodeFile, Message
from serl.testing.samples import CONFIG, random_records, write_log

pytestmark = pytest.mark.ros

RECORDS = random_records(2)
CAMERAS = ("front", "wrist")  # in the order in which they are stored


def stored(path: Path) -> list[Message]:
    with closing(EpisodeFile(path)) as file:
        return list(file.whole())


def test_raw_images(tmp_path: Path) -> None:
    (path,) = write_log(tmp_path, RECORDS)
    for record, message in zip(RECORDS, stored(path), strict=True):
        for camera, data in zip(CAMERAS, message.images, strict=True):
            image = deserialize_message(bytes(data), Image)
            expected = record.observation.images[camera]
            assert image.header.frame_id == camera
            assert image.header.stamp.sec == int(record.wall_s)
            assert (image.height, image.width, image.encoding) == (*expected.shape[:2], "rgb8")
            assert image.step == expected.strides[0]
            assert bytes(image.data) == expected.tobytes()


@pytest.mark.parametrize("encoding", ["png", "jpeg"])
def test_compressed_images(tmp_path: Path, encoding: str) -> None:
    (path,) = write_log(tmp_path, RECORDS)
    assert compact(path, CONFIG.model_copy(update={"images": encoding}))
    for record, message in zip(RECORDS, stored(path), strict=True):
        for camera, data in zip(CAMERAS, message.images, strict=True):
            image = deserialize_message(bytes(data), CompressedImage)
            assert (image.header.frame_id, image.format) == (camera, encoding)
            pixels = cv2.imdecode(np.frombuffer(bytes(image.data), np.uint8), cv2.IMREAD_COLOR)
            assert pixels is not None
            assert pixels.shape == record.observation.images[camera].shape
