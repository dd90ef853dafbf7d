from __future__ import annotations

import math
from contextlib import closing
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from rclpy.serialization import deserialize_message
from sensor_msgs.msg import CompressedImage, Image, JointState
from std_msgs.msg import Float64MultiArray

from serl.camera import WHOLE, View
from serl.errors import BadInput, CorruptData, SpecMismatch
from serl.log.compression import compact
from serl.log.episode_reader import EpisodeFile, Message
from serl.motion import Pose
from serl.ros.arm.camera import compressed_picture_of, cut_any, picture_of
from serl.ros.conversions import (
    camera_info_message,
    gripper_of,
    image_message,
    joints_message,
    joints_of,
    nanoseconds_of,
    number_of,
    pose_message,
    pose_of,
    rotate_to_base,
    stamp_of,
    truth_message,
    truth_of,
    twist_between,
    twist_message,
    twist_of,
    wrench_message,
    wrench_of,
)
from serl.sim.render.projection import Pinhole
from serl.testing.samples import CONFIG, random_records, write_log

pytestmark = pytest.mark.ros

VALUES = [0.1, 0.2, 1 / 3, math.sqrt(0.5), 0.0, 0.0, math.sqrt(0.5)]


def test_pose_and_stamp_survive_conversion_exactly() -> None:
    message = pose_message(VALUES, "base", 1_700_000_000_123_456_789)
    pose = pose_of(message, "base")
    assert [*pose.position, *pose.quaternion] == VALUES
    assert nanoseconds_of(message.header.stamp) == 1_700_000_000_123_456_789
    assert nanoseconds_of(stamp_of(999_999_999)) == 999_999_999


@pytest.mark.parametrize(
    ("index", "value", "frame", "complaint"),
    [
        (0, math.nan, "base", "position not finite"),
        (1, math.inf, "base", "position not finite"),
        (6, math.nan, "base", "quaternion"),
        (3, 0.0, "base", "quaternion"),
        (0, 0.1, "world", "in the frame 'world', expected 'base'"),
    ],
)
def test_invalid_poses_are_rejected(index: int, value: float, frame: str, complaint: str) -> None:
    values = [*VALUES]
    values[index] = value
    if complaint == "quaternion":
        values[6] = value
    with pytest.raises(BadInput, match=complaint):
        pose_of(pose_message(values, frame, 0), "base")


def test_joints_are_found_by_name_among_other_joints() -> None:
    message = joints_message(["g", "b", "a"], [9.0, 2.0, 1.0], [0.9, 0.2, 0.1], 0)
    assert joints_of(message, ["a", "b"]) == ([1.0, 2.0], [0.1, 0.2])
    assert joints_of(message, ["x", "y"]) is None
    assert gripper_of(message, "g") == 9.0
    assert gripper_of(message, None) == 9.0
    assert gripper_of(message, "x") is None


@pytest.mark.parametrize(
    "message",
    [
        JointState(name=["a"], position=[1.0], velocity=[1.0]),
        JointState(name=["a", "b"], position=[1.0, 2.0]),
        JointState(name=["a", "b"], position=[1.0], velocity=[1.0, 1.0]),
        JointState(name=["a", "b"], position=[1.0, math.nan], velocity=[1.0, 1.0]),
        JointState(name=["a", "b"], position=[1.0, 2.0], velocity=[1.0, -math.inf]),
    ],
)
def test_incomplete_or_nonfinite_joint_states_are_rejected(message: Any) -> None:
    with pytest.raises(BadInput):
        joints_of(message, ["a", "b"])


def test_wrench_is_rotated_to_base_without_mixing_force_and_torque() -> None:
    quarter = Pose((5.0, 5.0, 5.0), (0.0, 0.0, math.sqrt(0.5), math.sqrt(0.5)))
    wrench = wrench_of(wrench_message([1.0, 0.0, 0.0, 0.0, 2.0, 0.0], "tool", 0), ["tool"])
    assert rotate_to_base(wrench, quarter) == pytest.approx([0.0, 1.0, 0.0, -2.0, 0.0, 0.0])


@pytest.mark.parametrize(
    ("message", "decode"),
    [(twist_message, twist_of), (wrench_message, wrench_of)],
)
def test_twist_and_wrench_in_another_frame_are_rejected(message: Any, decode: Any) -> None:
    numbers = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    for frame in ("base", "link0", ""):  # some drivers omit it
        assert decode(message(numbers, frame, 0), ["base", "link0"]) == numbers
    with pytest.raises(BadInput, match="in the frame 'tool', expected 'base' or 'link0'"):
        decode(message(numbers, "tool", 0), ["base", "link0"])


def test_twist_is_derived_from_two_poses() -> None:
    before = Pose((0.0, 0.0, 0.0), (0.0, 0.0, 0.0, 1.0))
    after = Pose((0.1, 0.0, 0.0), (0.0, 0.0, math.sin(0.05), math.cos(0.05)))
    assert twist_between(before, after, 0.1) == pytest.approx([1.0, 0, 0, 0, 0, 1.0])


def test_gripper_command_must_be_one_finite_number() -> None:
    assert number_of(Float64MultiArray(data=[0.04])) == 0.04
    for values in ([], [1.0, 2.0], [math.nan]):
        with pytest.raises(BadInput):
            number_of(Float64MultiArray(data=values))


def test_truth_survives_conversion_and_wrong_sizes_are_rejected() -> None:
    arrays = {"a": np.array([1 / 3, 2], np.float32), "b": np.array([3], np.float32)}
    message = truth_message(arrays)
    found = truth_of(message)
    assert found.keys() == arrays.keys()
    assert all(np.array_equal(found[name], arrays[name]) for name in arrays)
    message.layout.dim[0].size = 7
    with pytest.raises(CorruptData):
        truth_of(message)


PICTURE = np.random.default_rng(0).integers(0, 256, (24, 32, 3), dtype=np.uint8)


def raw(encoding: str = "rgb8", padding: int = 0) -> Any:
    message = image_message(PICTURE, "camera", 0)
    channels = {"mono8": PICTURE[:, :, :1], "bgr8": PICTURE[:, :, ::-1]}.get(encoding, PICTURE)
    rows = np.ascontiguousarray(channels).reshape(24, -1)
    rows = np.pad(rows, ((0, 0), (0, padding)))
    message.encoding, message.step = encoding, rows.shape[1]
    message.data = rows.tobytes()
    return message


def test_images_of_every_known_encoding_convert_to_rgb() -> None:
    for encoding in ("rgb8", "bgr8"):
        for padding in (0, 5):
            assert np.array_equal(picture_of(raw(encoding, padding)), PICTURE)
    assert np.array_equal(picture_of(raw("mono8")), np.repeat(PICTURE[:, :, :1], 3, 2))


@pytest.mark.parametrize(
    "change",
    [
        {"encoding": "16UC1"},
        {"height": 23},
        {"height": 0},
        {"width": 1 << 20},
        {"step": 3},
        {"data": b"\0" * 10},
    ],
)
def test_images_with_inconsistent_sizes_are_rejected(change: dict[str, Any]) -> None:
    message = raw()
    for name, value in change.items():
        setattr(message, name, value)
    with pytest.raises(CorruptData):
        picture_of(message)


@pytest.mark.parametrize("kind", [".png", ".jpg"])
def test_compressed_images_decode_to_rgb_and_damaged_ones_are_rejected(kind: str) -> None:
    smooth = np.zeros((24, 32, 3), np.uint8)
    smooth[:, :, 0] = 200
    data = cv2.imencode(kind, smooth[:, :, ::-1])[1].tobytes()
    found = compressed_picture_of(CompressedImage(format=kind, data=data))
    assert np.abs(found.astype(int) - smooth).max() < 6
    for bad in (b"", b"GIF89a", data[:10], data[: len(data) // 4], b"\xff\xd8\xff\xff"):
        with pytest.raises(CorruptData):
            compressed_picture_of(CompressedImage(format=kind, data=bad))


def test_oversized_compressed_image_is_rejected_before_decoding() -> None:
    data = bytearray(cv2.imencode(".png", PICTURE)[1].tobytes())
    data[16:24] = (1 << 20).to_bytes(4, "big") * 2
    with pytest.raises(CorruptData, match="1048576 x 1048576"):
        compressed_picture_of(CompressedImage(data=bytes(data)))


def test_view_crops_image_of_any_size_unless_capture_size_is_set() -> None:
    view = View(camera="a", width=8, height=8, crop=(0.0, 0.0, 0.5, 1.0))
    assert cut_any(view, PICTURE).shape == (8, 8, 3)
    with pytest.raises(SpecMismatch, match="camera a: expected a picture"):
        cut_any(view.model_copy(update={"capture": (64, 64)}), PICTURE)


RECORDS = random_records(2)
CAMERAS = ("front", "wrist")  # in the order in which they are stored


def stored(path: Path) -> list[Message]:
    with closing(EpisodeFile(path)) as file:
        return list(file.whole())


def test_raw_logged_images_are_ros_images(tmp_path: Path) -> None:
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
def test_compressed_logged_images_are_ros_compressed_images(tmp_path: Path, encoding: str) -> None:
    (path,) = write_log(tmp_path, RECORDS)
    assert compact(path, CONFIG.model_copy(update={"images": encoding}))
    for record, message in zip(RECORDS, stored(path), strict=True):
        for camera, data in zip(CAMERAS, message.images, strict=True):
            image = deserialize_message(bytes(data), CompressedImage)
            assert (image.header.frame_id, image.format) == (camera, encoding)
            pixels = cv2.imdecode(np.frombuffer(bytes(image.data), np.uint8), cv2.IMREAD_COLOR)
            assert pixels is not None
            assert pixels.shape == record.observation.images[camera].shape


PART = View(camera="c", width=84, height=64, crop=(0.25, 0.5, 0.75, 1.0), capture=(320, 240))


@pytest.mark.parametrize("view", [None, PART])
def test_camera_info_of_view_matches_simulated_camera(view: View | None) -> None:
    width, height = (view.width, view.height) if view else (320, 240)
    image = image_message(np.zeros((height, width, 3), np.uint8), "c", 0)
    info = camera_info_message(image, 0.7, view)
    right_m, down_m = 0.1, -0.05
    column, row, _ = info.k.reshape(3, 3) @ (right_m, down_m, 1.0)
    left, top, right, bottom = view.crop if view else WHOLE
    x = 320 * (left + (right - left) * (column + 0.5) / width)  # in the whole image
    y = 240 * (top + (bottom - top) * (row + 0.5) / height)
    assert np.allclose(Pinhole(320, 240, 0.7).slopes(x, y), (right_m, -down_m))
    assert np.array_equal(info.p.reshape(3, 4)[:, :3], info.k.reshape(3, 3))
    assert not camera_info_message(image).k.any(), "the intrinsics are unknown"
