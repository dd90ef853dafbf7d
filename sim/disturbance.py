"""Disturbances of an arm's readings and commands in one world: bias, noise, lag, pushes.

They are a function of the seed and of simulated time: two readings at the same instant are equal,
and an episode can be repeated.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import cv2
import numpy as np

from serl.geometry import Quaternion, Vector, add, from_rotation_vector, multiply, rotate
from serl.sim.randomization_ranges import Ranges
from serl.types import Image

_TICK_S, _STEP_S = 0.01, 0.002
_PUSHED = 0.1  # share of the control periods
_DISTURBED = ("tcp_pose", "target_pose", "wrench")
_FILTER = 0.443  # a mean over T seconds passes half the power at _FILTER / T


class Lags(NamedTuple):
    """Lags of actions, images and state in one control period.

    Attributes:
        action: ticks of 10 ms for which the arm still follows the previous target.
        image: age of images at the end of the period, in ticks; None for a lost image.
        state: age of the rest of a reading, in physics steps.
    """

    action: int
    image: int | None
    state: int


class Disturbance:
    """Disturbances of one arm, or of one car, in one world.

    Args:
        ranges: ranges from which the disturbances are sampled.
        placed: tracked bodies whose measured position has an error.
        prefix: prefix of the names of the arm's readings.
        number: number of the arm; each arm has its own disturbances.
    """

    def __init__(
        self,
        ranges: Ranges,
        seed: int,
        placed: tuple[str, ...],
        prefix: str = "",
        number: int = 0,
    ) -> None:
        self._key = (seed, number) if number else (seed,)
        rng = np.random.default_rng((*self._key, 1))
        self._ranges, self._prefix = ranges, prefix
        self.goal_errors_m = {
            f"{name}_pose": rng.uniform(-ranges.goal_m, ranges.goal_m, 2) for name in placed
        }
        self._bias = _six(rng.uniform(-1.0, 1.0, 6), ranges.wrench_bias)
        self._tool = _vector(rng.uniform(-ranges.tcp_m, ranges.tcp_m, 3))
        turn = _vector(rng.uniform(-1.0, 1.0, 3))
        length = ranges.tcp_rad * rng.uniform() / max(1e-9, math.hypot(*turn))
        self._tool_turn = from_rotation_vector(_vector(length * np.array(turn)))
        self._image_lag_s = rng.uniform(*ranges.image_lag_s)
        self._action_lag = round(rng.uniform(*ranges.action_lag_s) / _TICK_S)
        self._state_lag = round(rng.uniform(*ranges.state_lag_s) / _STEP_S)

    def wrench_period_s(self, period_s: float) -> float:
        """Return the averaging time of the wrench: `period_s`, or more if its filter is slower."""
        return max(period_s, _FILTER / self._ranges.wrench_filter_hz)

    def lags(self, time_s: float, ticks: int) -> Lags:
        """Return the lags of a control period of `ticks` ticks that begins at `time_s`."""
        rng, ranges = self._noise(time_s, 2), self._ranges
        jitter_s = rng.uniform(-ranges.image_jitter_s, ranges.image_jitter_s)
        image = min(ticks - 1, max(0, round((self._image_lag_s + jitter_s) / _TICK_S)))
        lost_image, lost_action = (rng.random(2) < ranges.drop).tolist()
        action = ticks if lost_action else min(ticks - 1, self._action_lag)
        return Lags(action, None if lost_image else image, self._state_lag)

    def push_n(self, time_s: float) -> np.ndarray[Any, Any]:
        """Return the force on the hand in the period that begins at `time_s`, N.  # (3,)."""
        rng = self._noise(time_s, 3)
        force: np.ndarray[Any, Any] = rng.normal(size=3)
        strength = self._ranges.push_n * rng.uniform() * (rng.random() < _PUSHED)
        force *= strength / np.linalg.norm(force)
        return force

    def place_error_m(self, time_s: float) -> np.ndarray[Any, Any]:
        """Return the noise of a position measured at `time_s`, m.  # (3,)."""
        noise = self._noise(time_s, 5).standard_normal(3)
        error: np.ndarray[Any, Any] = self._ranges.pose_noise_m * noise
        return error

    def add_sensor_errors(
        self, numbers: list[float], parts: Mapping[str, slice], time_s: float
    ) -> list[float]:
        """Add the sensor errors at `time_s` to the numbers of a reading, in place; return them."""
        rng, ranges = self._noise(time_s, 4), self._ranges
        tool, target, wrench_name = (f"{self._prefix}{name}" for name in _DISTURBED)
        for name in (tool, target):  # the same error for both
            x, y, z, *quaternion = numbers[parts[name]]
            place, turned = (x, y, z), _quaternion(quaternion)
            place = add(place, rotate(turned, self._tool))
            numbers[parts[name]] = [*place, *multiply(turned, self._tool_turn)]
        first = parts[tool].start
        for axis, error in enumerate((ranges.pose_noise_m * rng.standard_normal(3)).tolist()):
            numbers[first + axis] += error
        wrench = self._bias + _six(rng.standard_normal(6), ranges.wrench_noise)
        numbers[parts[wrench_name]] = (wrench + numbers[parts[wrench_name]]).tolist()
        for name, (dx, dy) in self.goal_errors_m.items():
            numbers[parts[name].start] += float(dx)
            numbers[parts[name].start + 1] += float(dy)
        return numbers

    def _noise(self, time_s: float, purpose: int) -> np.random.Generator:
        return np.random.default_rng((*self._key, purpose, max(0, round(time_s / _STEP_S))))


def _six(values: np.ndarray[Any, Any], scales: tuple[float, float]) -> np.ndarray[Any, Any]:
    """Scale forces and torques by their respective scales.  # (6,)."""
    scaled: np.ndarray[Any, Any] = values * np.repeat(scales, 3)
    return scaled


def _vector(values: np.ndarray[Any, Any]) -> Vector:
    x, y, z = values.tolist()
    return x, y, z


def _quaternion(values: list[float]) -> Quaternion:
    x, y, z, w = values
    return x, y, z, w


_KERNEL = 5  # holds a blur of up to 4 px


class CameraNoise:
    """Image noise of one camera in one world.

    Args:
        ranges: ranges from which the noise parameters are sampled.
        rng: generator for these samples.
    """

    def __init__(self, ranges: Ranges, rng: np.random.Generator) -> None:
        gain = 1.0 + rng.uniform(-ranges.exposure, ranges.exposure)
        channels = gain * (1.0 + rng.uniform(-ranges.white_balance, ranges.white_balance, 3))
        gamma = math.exp(rng.uniform(*np.log(ranges.gamma)))
        levels = (np.arange(256) / 255.0) ** gamma * 255.0
        curves = (channels[:, None] * levels + 0.5).clip(0.0, 255.0)  # (3, 256)
        self._curves: Image = curves.T[None].astype(np.uint8)  # (1, 256, 3), as cv2 takes them
        self._noise = rng.uniform(*ranges.pixel_noise)
        length, angle = rng.uniform(0.0, ranges.blur_px), rng.uniform(0.0, math.pi)
        self._blur = _line(length, angle) if length >= 0.5 else None
        self._quality = int(rng.integers(*ranges.quality, endpoint=True)) if ranges.quality else 0

    def picture(self, picture: Image, rng: np.random.Generator) -> Image:
        """Return a picture with the camera's noise, sampled by `rng`.  # (H, W, 3) uint8."""
        if self._blur is not None:
            picture = cv2.filter2D(picture, -1, self._blur, borderType=cv2.BORDER_REPLICATE)
        picture = cv2.LUT(picture, self._curves)
        if self._noise:
            noise = self._noise * rng.standard_normal(picture.shape, np.float32)
            picture = (picture + noise + 0.5).clip(0.0, 255.0).astype(np.uint8)
        if self._quality:
            how = [cv2.IMWRITE_JPEG_QUALITY, self._quality]
            _, data = cv2.imencode(".jpg", np.ascontiguousarray(picture[..., ::-1]), how)
            decoded: Image = np.asarray(cv2.imdecode(data, cv2.IMREAD_COLOR), np.uint8)
            picture = np.ascontiguousarray(decoded[..., ::-1])
        return picture


def _line(length_px: float, angle_rad: float) -> np.ndarray[Any, Any]:
    """Return the blur kernel of a straight motion, with sum 1.  # (5, 5)."""
    kernel = np.zeros((_KERNEL, _KERNEL))
    middle = _KERNEL // 2
    for along in np.linspace(-0.5 * length_px, 0.5 * length_px, 9).tolist():
        x, y = middle + along * math.cos(angle_rad), middle + along * math.sin(angle_rad)
        left, top = math.floor(x), math.floor(y)
        for column, share_x in ((left, left + 1 - x), (left + 1, x - left)):
            for row, share_y in ((top, top + 1 - y), (top + 1, y - top)):
                if share_x * share_y > 0.0:
                    kernel[row, column] += share_x * share_y
    result: np.ndarray[Any, Any] = kernel / kernel.sum()
    return result
