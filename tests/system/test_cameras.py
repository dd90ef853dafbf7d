"""Cameras read frame by frame; films are real ones, which OpenCV writes and reads."""

from __future__ import annotations

import argparse
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
    """Red, with a bar of blue that grows from the left by a pixel a frame."""
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"MJPG"), rate_hz, (64, 48))
    for number in range(frames):
        frame = np.zeros(SHAPE, np.uint8)
        frame[..., 2] = RED[0]
        frame[:, :number] = (200, 0, 0)
        writer.write(frame)
    writer.release()
    return path


class Time:
    """Passes when somebody sleeps."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.slept: list[float] = []

    def sleep(self, duration_s: float) -> None:
        self.slept.append(duration_s)
        self.now_s += duration_s

    def __call__(self) -> float:
        return self.now_s


def test_a_film_shows_its_frames_in_rgb_at_its_own_rate(tmp_path: Path) -> None:
    time = Time()
    film = VideoFileCamera(write_film(tmp_path / "a.avi", 10), now_s=time, sleep=time.sleep)
    frames = [film.read() for _ in range(10)]
    assert {frame.shape for frame in frames} == {SHAPE}
    assert np.abs(frames[0][0, 60].astype(int) - RED).max() < 12, "red comes first"
    assert frames[9][24, 0, 2] > 150, "and blue last"
    assert time.now_s - 100.0 == pytest.approx(9 / 20.0)
    with pytest.raises(VideoEnded, match=r"a\.avi ended"):
        film.read()


def test_a_film_can_begin_anew_and_at_another_rate(tmp_path: Path) -> None:
    time = Time()
    path = write_film(tmp_path / "a.avi", 3)
    film = VideoFileCamera(path, rate_hz=100.0, loop=True, now_s=time, sleep=time.sleep)
    frames = [film.read() for _ in range(7)]
    assert np.array_equal(frames[0], frames[3])
    assert time.now_s - 100.0 == pytest.approx(0.06)
    time.now_s += 5.0  # somebody was slow: nothing is caught up
    film.read()
    film.read()
    assert time.slept[-1] == pytest.approx(0.01)


def test_what_is_no_film_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "a.avi").write_text("no film")
    with pytest.raises(BadInput, match=r"a\.avi: no film that OpenCV can read"):
        VideoFileCamera(tmp_path / "a.avi")
    with pytest.raises(BadInput, match=r"b\.avi: no such file"):
        VideoFileCamera(tmp_path / "b.avi")


class Plug:
    """A device that can be unplugged."""

    name = "/dev/video7"

    def __init__(self) -> None:
        self.plugged, self.opened = True, 0

    def open(self) -> Plug:
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


def test_a_device_that_vanishes_is_told_and_opened_anew() -> None:
    time, plug, said = Time(), Plug(), list[str]()
    camera = ReconnectingCamera(plug.open, said.append, time)
    assert camera.read() is not None
    plug.plugged = False
    for _ in range(50):
        assert camera.read() is None
        time.now_s += 0.1
    assert said == ["/dev/video7 delivers no more frames; retrying every 1 s"]
    plug.plugged = True
    time.now_s += 1.0
    assert camera.read() is not None
    assert said[1:] == ["/dev/video7 is back"]
    assert (camera.losses, plug.opened) == (1, 1)
    camera.close()
    assert plug.opened == 0


def test_a_camera_that_is_not_there_at_first_is_refused() -> None:
    plug = Plug()
    plug.plugged = False
    with pytest.raises(BadInput, match="no such device"):
        ReconnectingCamera(plug.open, print)


def test_devices_are_named_in_the_refusal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_device_that_is_no_camera_gives_no_frame(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is there, and no driver is behind it."""
    monkeypatch.setattr(usb_camera, "_DEVICES", tmp_path)
    (tmp_path / "video97").touch()
    with pytest.raises(BadInput, match="delivers no frame; does another program use it"):
        UsbCamera("97", CaptureConfig())


@pytest.mark.parametrize("name", ["exposure_s", "gain", "white_balance_k"])
def test_a_control_that_a_camera_does_not_take_is_named(tmp_path: Path, name: str) -> None:
    film = write_film(tmp_path / "film.avi", 2)
    capture = cv2.VideoCapture(str(film))  # OpenCV's own, which has no controls
    assert fix_controls(capture, CaptureConfig()) == ""
    value = {"exposure_s": 0.01, "gain": 4.0, "white_balance_k": 4500.0}[name]
    config = CaptureConfig.model_validate({name: value})
    assert fix_controls(capture, config) == f"{name} of {value:g}"


@pytest.mark.parametrize("source", [("--file", "film.avi"), ("--realsense",)])
def test_controls_are_for_usb_cameras(source: tuple[str, ...]) -> None:
    parser = argparse.ArgumentParser()
    camera_options(parser)
    options = parser.parse_args(["front", *source, "--gain", "3"])
    with pytest.raises(BadInput, match="--gain is for a USB camera"):
        camera(options)


def test_a_realsense_needs_its_package() -> None:
    try:
        import pyrealsense2  # type: ignore[import-not-found]  # noqa: F401
    except ImportError:
        with pytest.raises(BadInput, match=r"serl\[realsense\]"):
            RealSense("", CaptureConfig())


def test_frames_of_opencv_are_turned_to_rgb() -> None:
    blue = np.zeros((2, 2, 3), np.uint8)
    blue[..., 0] = 9
    assert rgb_of(blue)[0, 0].tolist() == [0, 0, 9]
    assert rgb_of(np.full((2, 2), 5, np.uint8)).shape == (2, 2, 3)
