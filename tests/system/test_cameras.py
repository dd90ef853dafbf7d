"""Test cameras frame by frame, with video files that OpenCV writes and reads."""

from __future__ import annotations

import argparse
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import cv2
import numpy as np
import pytest

from serl.cli.camera import _fixed, camera, camera_options
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


def test_fix_controls_ends_automatic_modes_first_and_counts_exposure_in_100_us() -> None:
    made: list[tuple[int, float]] = []

    def put(setting: int, value: float) -> bool:
        made.append((setting, value))
        return True

    config = CaptureConfig(exposure_s=0.01, gain=20.0, white_balance_k=4500.0)
    assert fix_controls(SimpleNamespace(set=put), config) == ""
    assert made == [
        (cv2.CAP_PROP_AUTO_EXPOSURE, 1.0),
        (cv2.CAP_PROP_EXPOSURE, 100.0),
        (cv2.CAP_PROP_GAIN, 20.0),
        (cv2.CAP_PROP_AUTO_WB, 0.0),
        (cv2.CAP_PROP_WB_TEMPERATURE, 4500.0),
    ]


@pytest.mark.parametrize(("option", "value"), [("--gain", "3"), ("--size", "320x240")])
def test_camera_settings_are_refused_for_a_film(option: str, value: str) -> None:
    parser = argparse.ArgumentParser()
    camera_options(parser)
    options = parser.parse_args(["front", "--file", "film.avi", option, value])
    with pytest.raises(BadInput, match=f"{option} is for a camera, not for a film"):
        camera(options)


def test_gain_of_zero_is_described_as_fixed() -> None:
    parser = argparse.ArgumentParser()
    camera_options(parser)
    assert _fixed(parser.parse_args(["front", "--gain", "0"])) == "gain 0"
    assert _fixed(parser.parse_args(["front"])) == "the camera's own"


class ScriptedSensor:
    """Sensor of a RealSense with the options `most`, and the largest value of each.

    It refuses values that its automatic exposure and white balance would overwrite.
    """

    def __init__(self, stream: str, **most: float) -> None:
        self._stream, self._most = stream, most
        self.values = dict.fromkeys(("enable_auto_exposure", "enable_auto_white_balance"), 1.0)

    def get_stream_profiles(self) -> list[SimpleNamespace]:
        return [SimpleNamespace(stream_type=lambda: self._stream)]

    def get_option_range(self, option: str) -> SimpleNamespace:
        return SimpleNamespace(max=self._most[option])

    def set_option(self, option: str, value: float) -> None:
        automatic = "enable_auto_" + ("white_balance" if "white" in option else "exposure")
        if option != automatic and (self.values[automatic] or value > self._most.get(option, 0.0)):
            raise RuntimeError(f"{option}: not supported, or out of range")
        self.values[option] = value


class ScriptedRealSense:
    """The package pyrealsense2, with one device; a stand-in, as no wheel runs without a camera."""

    stream = SimpleNamespace(color="color")
    format = SimpleNamespace(rgb8="rgb8")

    def __init__(self, *sensors: ScriptedSensor) -> None:
        self.option = SimpleNamespace(
            **{
                name: name
                for name in (
                    *("exposure", "enable_auto_exposure", "gain"),
                    *("white_balance", "enable_auto_white_balance"),
                )
            }
        )
        self.device = SimpleNamespace(query_sensors=lambda: sensors)
        self.running = False

    def config(self) -> SimpleNamespace:
        return SimpleNamespace(enable_stream=lambda *stream: None)

    def pipeline(self) -> ScriptedRealSense:
        return self

    def start(self, settings: object) -> SimpleNamespace:
        self.running = True
        return SimpleNamespace(get_device=lambda: self.device)

    def stop(self) -> None:
        self.running = False


@pytest.mark.parametrize(("most", "exposure"), [(10_000.0, 100.0), (165_000.0, 10_000.0)])
def test_realsense_fixes_exposure_gain_and_white_balance_of_its_colour_sensor(
    most: float, exposure: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    colour = ScriptedSensor("color", exposure=most, gain=128.0, white_balance=6500.0)
    stereo = ScriptedSensor("infrared", exposure=165_000.0, gain=248.0)
    rs, untouched = ScriptedRealSense(stereo, colour), dict(stereo.values)
    monkeypatch.setattr(usb_camera, "_realsense", lambda: rs)
    config = CaptureConfig(exposure_s=0.01, gain=20.0, white_balance_k=4500.0)
    RealSense("", config)
    assert rs.running
    assert stereo.values == untouched
    assert colour.values == {
        **{"enable_auto_exposure": 0.0, "exposure": exposure, "gain": 20.0},
        **{"enable_auto_white_balance": 0.0, "white_balance": 4500.0},
    }


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"white_balance_k": 9000.0}, "takes no white_balance_k of 9000"),
        ({"exposure_s": 1.0, "gain": 400.0}, "takes no gain of 400"),
        ({"gain": 20.0}, "gain: expected exposure_s as well"),
    ],
)
def test_realsense_names_setting_that_it_refuses_and_stops(
    settings: dict[str, float], complaint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rs = ScriptedRealSense(
        ScriptedSensor("color", exposure=10_000.0, gain=128.0, white_balance=6500.0)
    )
    monkeypatch.setattr(usb_camera, "_realsense", lambda: rs)
    with pytest.raises(BadInput, match=complaint):
        RealSense("", CaptureConfig.model_validate(settings))
    assert not rs.running


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
