"""Cameras that are read frame by frame: USB cameras, RealSense, and video files as a substitute.

Frames are uint8 (H, W, 3) RGB. OpenCV and RealSense's package are loaded when a source is opened,
not before.
"""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from pydantic import Field

from serl.errors import BadInput, SerlError
from serl.types import FrozenModel, Image

RETRY_S = 1.0
_DEVICES = Path("/dev")
_WAIT_MS = 1000


class CameraLost(SerlError):
    """The error for a device that delivers no more frames; it may come back."""


class VideoEnded(SerlError):
    """The error after the last frame of a video file."""


class CaptureConfig(FrozenModel):
    """The requested frame size and rate; a device may deliver another size or rate.

    Attributes:
        width: width of the frames, pixels.
        height: height of the frames, pixels.
        rate_hz: frames per second.
        exposure_s: fixed time of exposure; None leaves it to the camera.
        gain: fixed gain, in the camera's own unit; None leaves it as it is. That of a RealSense
            needs a fixed exposure as well.
        white_balance_k: fixed colour temperature; None leaves it to the camera.
    """

    width: int = Field(640, ge=16, le=4096)
    height: int = Field(480, ge=16, le=4096)
    rate_hz: float = Field(30.0, gt=0, le=240)
    exposure_s: float | None = Field(None, gt=0, le=1)
    gain: float | None = Field(None, ge=0, le=10_000)
    white_balance_k: float | None = Field(None, ge=1000, le=12_000)

    @property
    def controls(self) -> dict[str, float]:
        """The fixed values of the settings of the picture, by name; empty without any."""
        names = ("exposure_s", "gain", "white_balance_k")
        values = {name: getattr(self, name) for name in names}
        return {name: value for name, value in values.items() if value is not None}


class CameraSource(Protocol):
    """A source of consecutive frames.

    Attributes:
        name: name of the source for messages.
    """

    name: str

    def read(self) -> Image:
        """Return the next frame; block until there is one, for at most a second.

        Raises:
            CameraLost: no frame came.
            VideoEnded: the video file has no more frames.
        """
        ...

    def close(self) -> None:
        """Release the device."""
        ...


class UsbCamera:
    """A USB camera of this machine.

    Args:
        device: number of the device, `/dev/videoN`, or a link to one, as in `/dev/v4l/by-id`.
        config: requested frame size and rate.

    Raises:
        BadInput: the device is absent, may not be opened, or delivers no frame.
    """

    def __init__(self, device: str, config: CaptureConfig) -> None:
        path = device_path(device)
        self.name = str(path)
        os.environ.setdefault("OPENCV_VIDEOIO_V4L_SELECT_TIMEOUT", "1")
        cv2 = _quiet_cv2()
        number = int(path.resolve().name.removeprefix("video"))
        self._capture = cv2.VideoCapture(number, cv2.CAP_V4L2)
        for setting, value in (
            (cv2.CAP_PROP_FRAME_WIDTH, config.width),
            (cv2.CAP_PROP_FRAME_HEIGHT, config.height),
            (cv2.CAP_PROP_FPS, config.rate_hz),
            (cv2.CAP_PROP_BUFFERSIZE, 1),
        ):
            self._capture.set(setting, value)
        refused = fix_controls(self._capture, config) if self._capture.isOpened() else ""
        if not self._capture.isOpened() or not self._capture.read()[0]:
            self.close()
            raise BadInput(f"camera {path}: delivers no frame; does another program use it?")
        if refused:
            self.close()
            raise BadInput(f"camera {path}: takes no {refused}")

    def read(self) -> Image:
        """Return the next frame, see `CameraSource.read`."""
        there, frame = self._capture.read()
        if not there:
            raise CameraLost(f"{self.name} delivers no more frames")
        return rgb_of(frame)

    def close(self) -> None:
        """Release the device."""
        self._capture.release()


class VideoFileCamera:
    """A video file in the place of a camera, played at a fixed rate.

    Args:
        path: video file that OpenCV can read.
        rate_hz: frames per second; None for the file's own rate.
        loop: whether to start again at the end.
        now_s, sleep: clock and wait function that keep the rate.

    Raises:
        BadInput: the file is absent, or not a video.
    """

    def __init__(
        self,
        path: Path,
        rate_hz: float | None = None,
        loop: bool = False,
        now_s: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.name = str(path)
        self._path, self._loop, self._now_s, self._sleep = path, loop, now_s, sleep
        self._capture = self._open()
        own_hz = float(self._capture.get(_quiet_cv2().CAP_PROP_FPS))
        self._period_s = 1.0 / (rate_hz or (own_hz if 0.0 < own_hz <= 240.0 else 30.0))
        self._due_s = now_s()

    def read(self) -> Image:
        """Return the next frame, see `CameraSource.read`; block until the frame is due."""
        early_s = self._due_s - self._now_s()
        if early_s > 0.0:
            self._sleep(early_s)
        self._due_s = max(self._due_s, self._now_s() - self._period_s) + self._period_s
        there, frame = self._capture.read()
        if not there and self._loop:
            self.close()
            self._capture = self._open()
            there, frame = self._capture.read()
        if not there:
            raise VideoEnded(f"{self.name} ended")
        return rgb_of(frame)

    def close(self) -> None:
        """Close the video file."""
        self._capture.release()

    def _open(self) -> Any:
        if not self._path.is_file():
            raise BadInput(f"{self._path}: no such file")
        capture = _quiet_cv2().VideoCapture(str(self._path))
        if not capture.isOpened():
            raise BadInput(f"{self._path}: no film that OpenCV can read")
        return capture


class RealSense:
    """The colour camera of an Intel RealSense.

    Args:
        serial: serial number of the device; empty for the only one.
        config: requested frame size and rate.

    Raises:
        BadInput: the package pyrealsense2 or the device is missing, or it refuses a setting of the
            picture.
    """

    def __init__(self, serial: str, config: CaptureConfig) -> None:
        rs = _realsense()
        self.name = f"RealSense {serial}".strip()
        if config.gain is not None and config.exposure_s is None:
            raise BadInput(
                f"camera {self.name}: gain: expected exposure_s as well, as its automatic exposure "
                "sets both"
            )
        self._pipeline, settings = rs.pipeline(), rs.config()
        if serial:
            settings.enable_device(serial)
        size = config.width, config.height
        settings.enable_stream(rs.stream.color, *size, rs.format.rgb8, round(config.rate_hz))
        try:
            device = self._pipeline.start(settings).get_device()
        except RuntimeError as error:
            raise BadInput(f"camera {self.name}: {error}") from None
        if refused := fix_options(rs, device, config):
            self.close()
            raise BadInput(f"camera {self.name}: takes no {refused}")

    def read(self) -> Image:
        """Return the next frame, see `CameraSource.read`."""
        try:
            frames = self._pipeline.wait_for_frames(_WAIT_MS)
            return np.array(frames.get_color_frame().get_data(), np.uint8)
        except RuntimeError as error:
            raise CameraLost(f"{self.name}: {error}") from None

    def close(self) -> None:
        """Release the device."""
        try:
            self._pipeline.stop()
        except RuntimeError:  # the device is gone
            return


class ReconnectingCamera:
    """A camera source that is reopened after a loss, with a try every `RETRY_S` seconds.

    Args:
        open_source: opens the source; raises `BadInput` while this is not possible.
        on_change: called with one line when the source is lost and when it is back.
        now_s: monotonic seconds.

    Attributes:
        name: name of the source for messages.
        losses: number of times that the source was lost.

    Raises:
        BadInput: the source cannot be opened the first time.
    """

    def __init__(
        self,
        open_source: Callable[[], CameraSource],
        on_change: Callable[[str], None],
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.losses = 0
        self._open_source, self._on_change, self._now_s = open_source, on_change, now_s
        self._source: CameraSource | None = (source := open_source())
        self.name, self._again_s = source.name, 0.0

    @property
    def is_open(self) -> bool:
        """Whether the source delivers frames, being neither lost nor closed."""
        return self._source is not None

    def read(self) -> Image | None:
        """Return the next frame, after reopening a closed source; None while the source is lost.

        Raises:
            VideoEnded: the video file has no more frames.
        """
        if self._source is None and not self._reopen():
            return None
        assert self._source is not None
        try:
            return self._source.read()
        except CameraLost as error:
            self.losses += 1
            self._on_change(f"{error}; retrying every {RETRY_S:g} s")
            self.close()
            self._again_s = self._now_s() + RETRY_S
            return None

    def close(self) -> None:
        """Release the device; the next `read` opens it again."""
        if self._source is not None:
            self._source.close()
            self._source = None

    def _reopen(self) -> bool:
        if self._now_s() < self._again_s:
            return False
        self._again_s = self._now_s() + RETRY_S
        try:
            self._source = self._open_source()
        except BadInput:
            return False
        self._on_change(f"{self._source.name} is back")
        return True


def fix_controls(capture: Any, config: CaptureConfig) -> str:
    """Fix exposure, gain and white balance of a capture of OpenCV; return the first one refused.

    Video4Linux counts exposure in 100 us, and has 1 for a manual one.
    """
    cv2 = _quiet_cv2()
    for name, value in config.controls.items():
        settings = {
            "exposure_s": [
                (cv2.CAP_PROP_AUTO_EXPOSURE, 1.0),
                (cv2.CAP_PROP_EXPOSURE, max(1.0, round(1e4 * value))),
            ],
            "gain": [(cv2.CAP_PROP_GAIN, value)],
            "white_balance_k": [
                (cv2.CAP_PROP_AUTO_WB, 0.0),
                (cv2.CAP_PROP_WB_TEMPERATURE, value),
            ],
        }[name]
        if not all(capture.set(*each) for each in settings):
            return f"{name} of {value:g}"
    return ""


def fix_options(rs: Any, device: Any, config: CaptureConfig) -> str:
    """Fix exposure, gain and white balance of a RealSense; return the first one refused.

    Colour modules count exposure in 100 us, up to 10,000; stereo modules in us, and farther
    (librealsense, issues 8243 and 6384).

    Args:
        rs: the package pyrealsense2.
        device: the device, which streams.
        config: the settings.
    """
    colour = [
        sensor
        for sensor in device.query_sensors()
        if any(each.stream_type() == rs.stream.color for each in sensor.get_stream_profiles())
    ]
    options = {
        "exposure_s": (rs.option.enable_auto_exposure, rs.option.exposure),
        "gain": (rs.option.enable_auto_exposure, rs.option.gain),
        "white_balance_k": (rs.option.enable_auto_white_balance, rs.option.white_balance),
    }
    for name, value in config.controls.items():
        (automatic, option), number = options[name], value
        if not colour:
            return f"{name} of {value:g}"
        try:
            for sensor in colour:
                if name == "exposure_s":
                    unit_s = 1e-4 if sensor.get_option_range(option).max <= 10_000 else 1e-6
                    number = max(1.0, round(value / unit_s))
                sensor.set_option(automatic, 0.0)
                sensor.set_option(option, number)
        except RuntimeError:
            return f"{name} of {value:g}"
    return ""


def device_path(device: str) -> Path:
    """Return the device file of a camera.

    Args:
        device: as for `UsbCamera`.

    Raises:
        BadInput: there is no such camera, or it may not be opened; the line names the cameras that
            exist.
    """
    path = _DEVICES / f"video{device}" if device.isdigit() else Path(device)
    known = sorted(str(each) for each in _DEVICES.glob("video[0-9]*"))
    listed = f"there are {', '.join(known)}" if known else "this machine has no camera"
    if not path.exists():
        raise BadInput(f"camera {path}: no such device; {listed}")
    name = path.resolve().name
    if not (name.startswith("video") and name.removeprefix("video").isdigit()):
        raise BadInput(f"camera {path}: not a camera; {listed}")
    if not os.access(path, os.R_OK | os.W_OK):
        raise BadInput(f"camera {path}: may not be opened; is this user in the group 'video'?")
    return path


def rgb_of(frame: Any) -> Image:
    """Return a frame of OpenCV, BGR or grey, as uint8 (H, W, 3) RGB."""
    if frame.ndim == 2:
        return np.repeat(frame[:, :, None], 3, axis=2)
    return np.ascontiguousarray(frame[:, :, 2::-1], np.uint8)


def _quiet_cv2() -> Any:
    """Import OpenCV without the lines that it prints when a device is missing."""
    for name, level in (("OPENCV_LOG_LEVEL", "SILENT"), ("OPENCV_FFMPEG_LOGLEVEL", "-8")):
        os.environ.setdefault(name, level)  # OpenCV reads them when it is loaded
    import cv2  # takes half a second, avoided without a camera

    return cv2


def _realsense() -> Any:
    try:
        return importlib.import_module("pyrealsense2")
    except ImportError:
        raise BadInput(
            'camera: a RealSense needs pyrealsense2: pip install "serl[realsense]"'
        ) from None
