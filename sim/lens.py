"""What a camera makes of a picture: exposure, colours, noise, motion blur, compression."""

from __future__ import annotations

import math
from typing import Any

import cv2
import numpy as np

from serl.sim.randomization_ranges import Ranges
from serl.types import Image

_KERNEL = 5  # holds a blur of up to 4 px


class Lens:
    """One camera of one world.

    Args:
        ranges: of what is drawn.
        rng: draws it.
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
        """What it makes of one; `rng` draws the noise.  # (H, W, 3) uint8."""
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
    """The kernel of a straight motion while the shutter is open; its sum is 1.  # (5, 5)."""
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
