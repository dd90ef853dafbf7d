"""Test cameras frame by frame, with video files that OpenCV writes and reads."""

from __future__ import annotations

import argparse
from importlib.util import find_spec
from pathlib import Path

import cv2
import numpy as np
import pytest

from serl.cli.camera import camera, camera_options
from serl.errors import BadInput
from serl.system import cameras as usb_camera
from serl.system.cameras import (
    CameraLost,
    CaptureConfig,
    RealSense,
    ReconnectingCamera,
    UsbCamera,
    VideoEnded,
    VideoFileCamera,
    device_path,
    fix_controls,
    rgb_of,
)
from serl.types import Image

RED = (200, 0, 0)
SHAPE = (48, 64, 3)


def write_film(path: Path, frames: int, rate_hz: float = 20.0) -> Path:
    """Write a red video with a blue bar that grows from the left by one pixel per frame."""
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"MJPG"), rate_hz, (64, 48))
    for number in range(frames):
        frame = np.zeros(SHAPE, np.uint8)
        frame[..., 2] = RED[0]
        frame[:, :number] = (200, 0, 0)
        writer.write(frame)
    writer.release()
    return path


class ManualClock:
    """Clock that advances only when `sleep` is called."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.slept: list[float] = []

    def sleep(self, duration_s: float) -> None:
        self.slept.append(duration_s)
        self.now_s += duration_s

    def __call__(self) -> float:
        return self.now_s


def test_video_file_camera_plays_rgb_frames_at_file_rate(tmp_path: Path) -> None:
    time = ManualClock()
    film = VideoFileCamera(write_film(tmp_path / "a.avi", 10), now_s=time, sleep=time.sleep)
    frames = [film.read() for _ in range(10)]
    assert {frame.shape for frame in frames} == {SHAPE}
    assert np.abs(frames[0][0, 60].astype(int) - RED).max() < 12, "the red channel comes first"
    assert frames[9][24, 0, 2] > 150, "the blue channel comes last"
    assert time.now_s - 100.0 == pytest.approx(9 / 20.0)
    with pytest.raises(VideoEnded, match=r"a\.avi ended"):
        film.read()


def test_video_file_camera_loops_and_plays_at_given_rate(tmp_path: Path) -> None:
    time = ManualClock()
    path = write_film(tmp_path / "a.avi", 3)
    film = VideoFileCamera(path, rate_hz=100.0, loop=True, now_s=time, sleep=time.sleep)
    frames = [film.read() for _ in range(7)]
    assert np.array_equal(frames[0], frames[3])
    assert time.now_s - 100.0 == pytest.approx(0.06)
    time.now_s += 5.0  # a slow reader: missed frames are not caught up
    film.read()
    film.read()
    assert time.slept[-1] == pytest.approx(0.01)


def test_video_file_camera_refuses_invalid_or_missing_file(tmp_path: Path) -> None:
    (tmp_path / "a.avi").write_text("no film")
    with pytest.raises(BadInput, match=r"a\.avi: no film that OpenCV can read"):
        VideoFileCamera(tmp_path / "a.avi")
    with pytest.raises(BadInput, match=r"b\.avi: no such file"):
        VideoFileCamera(tmp_path / "b.avi")


class UnpluggableCamera:
    """Camera that can be unplugged."""

    name = "/dev/video7"

    def __init__(self) -> None:
        self.plugged, self.opened = True, 0

    def open(self) -> UnpluggableCamera:
        if not self.plugged:
            raise BadInput(f"camera {self.name}: no such device")
        self.opened += 1
        return self

    def read(self) -> Image:
        if not self.plugged:
            raise CameraLost(f"{self.name} delivers no more frames")
        return np.zeros(SHAPE, np.uint8)

    def close(self) -> None:
        self.opened -= 1


def test_reconnecting_camera_reports_lost_device_and_reopens_it() -> None:
    time, device, messages = ManualClock(), UnpluggableCamera(), list[str]()
    camera = ReconnectingCamera(device.open, messages.append, time)
    assert camera.read() is not None
    device.plugged = False
    for _ in range(50):
        assert camera.read() is None
        time.now_s += 0.1
    assert messages == ["/dev/video7 delivers no more frames; retrying every 1 s"]
    device.plugged = True
    time.now_s += 1.0
    assert camera.read() is not None
    assert messages[1:] == ["/dev/video7 is back"]
    assert (camera.losses, device.opened) == (1, 1)
    camera.close()
    assert device.opened == 0


def test_reconnecting_camera_refuses_device_missing_at_start() -> None:
    device = UnpluggableCamera()
    device.plugged = False
    with pytest.raises(BadInput, match="no such device"):
        ReconnectingCamera(device.open, print)


def test_device_path_refusal_lists_existing_devices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(usb_camera, "_DEVICES", tmp_path)
    with pytest.raises(BadInput, match="video0: no such device; this machine has no camera"):
        device_path("0")
    (tmp_path / "video2").touch()
    with pytest.raises(BadInput, match=r"video0: no such device; there are .*video2"):
        device_path("0")
    (tmp_path / "by-id").symlink_to(tmp_path / "video2")
    assert device_path(str(tmp_path / "by-id")).resolve().name == "video2"
    (tmp_path / "sound").touch()
    with pytest.raises(BadInput, match="sound: not a camera"):
        device_path(str(tmp_path / "sound"))


def test_usb_camera_refuses_file_without_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The device file exists, but no driver serves it."""
    monkeypatch.setattr(usb_camera, "_DEVICES", tmp_path)
    (tmp_path / "video97").touch()
    with pytest.raises(BadInput, match="delivers no frame; does another program use it"):
        UsbCamera("97", CaptureConfig())


@pytest.mark.parametrize("name", ["exposure_s", "gain", "white_balance_k"])
def test_fix_controls_names_control_that_camera_rejects(tmp_path: Path, name: str) -> None:
    film = write_film(tmp_path / "film.avi", 2)
    capture = cv2.VideoCapture(str(film))  # OpenCV's own file backend, which has no controls
    assert fix_controls(capture, CaptureConfig()) == ""
    value = {"exposure_s": 0.01, "gain": 4.0, "white_balance_k": 4500.0}[name]
    config = CaptureConfig.model_validate({name: value})
    assert fix_controls(capture, config) == f"{name} of {value:g}"


@pytest.mark.parametrize("source", [("--file", "film.avi"), ("--realsense",)])
def test_camera_controls_are_refused_for_other_sources(source: tuple[str, ...]) -> None:
    parser = argparse.ArgumentParser()
    camera_options(parser)
    options = parser.parse_args(["front", *source, "--gain", "3"])
    with pytest.raises(BadInput, match="--gain is for a USB camera"):
        camera(options)


def test_realsense_without_package_names_the_extra() -> None:
    if find_spec("pyrealsense2"):
        pytest.skip("pyrealsense2 is installed")
    with pytest.raises(BadInput, match=r"serl\[realsense\]"):
        RealSense("", CaptureConfig())


def test_rgb_of_converts_bgr_and_grey_frames() -> None:
    blue = np.zeros((2, 2, 3), np.uint8)
    blue[..., 0] = 9
    assert rgb_of(blue)[0, 0].tolist() == [0, 0, 9]
    assert rgb_of(np.full((2, 2), 5, np.uint8)).shape == (2, 2, 3)
