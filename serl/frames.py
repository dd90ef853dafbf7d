"""The images of a replay: each frame once, in memory or in a file, copied out shifted at random.

A frame lies with its edges repeated around it, so that a shifted copy is one window of it.
"""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serl.errors import SerlError
from serl.specs import ArraySpec
from serl.types import Image

Slots = NDArray[np.int64]


class FrameStore:
    """Slots for one frame of each camera.

    Memory is taken as slots are first written, disk at once. A file has no name, so that it is
    gone with the process, however that ends.

    Args:
        cameras: what the images are, by camera.
        capacity: number of slots.
        margin_px: by how much a copy may be shifted.
        folder: where the file lies; None keeps all in memory.

    Raises:
        SerlError: the disk refused.
    """

    def __init__(
        self,
        cameras: Mapping[str, ArraySpec],
        capacity: int,
        margin_px: int = 0,
        folder: Path | None = None,
    ) -> None:
        self._margin_px = margin_px
        self._images: dict[str, Image] = {
            name: stored((capacity, *_around(camera, margin_px)), np.uint8, folder)
            for name, camera in cameras.items()
        }

    def put(self, slot: int, images: Mapping[str, Image]) -> None:
        """Store a frame; what the slot held is gone."""
        for name, frames in self._images.items():
            _put(frames[slot], images[name], self._margin_px)

    def take(self, slots: Slots, rng: np.random.Generator) -> dict[str, Image]:
        """Copies of the frames in `slots`, (B, K), the K of a row behind each other.

        Each image is shifted by itself, its frames alike.  # (B, H, W, 3 K) each
        """
        return {
            name: _windows(frames, slots, self._margin_px, rng)
            for name, frames in self._images.items()
        }


def frame_bytes(cameras: Mapping[str, ArraySpec], margin_px: int = 0) -> int:
    """Bytes of one frame of all cameras."""
    return sum(math.prod(_around(camera, margin_px)) for camera in cameras.values())


def shifted(frames: Image, slots: Slots, most_px: int, rng: np.random.Generator) -> Image:
    """Copies of some frames, each shifted by up to `most_px` along x and y, its edges repeated.

    The random crop of DrQ (Yarats et al. 2021, section 4.1), without the padded copy.

    Args:
        frames: uint8.  # (N, H, W, 3)
        slots: which of them.  # (B,)
        most_px: less than height and width.
        rng: draws the shifts.

    Returns:
        An array of its own.  # (B, H, W, 3)
    """
    sides = ((0, 0), (most_px, most_px), (most_px, most_px), (0, 0))
    padded = np.pad(frames[slots], sides, mode="edge")
    return _windows(padded, np.arange(len(slots))[:, None], most_px, rng)


def _around(camera: ArraySpec, margin_px: int) -> tuple[int, int, int]:
    height, width, channels = camera.shape
    return height + 2 * margin_px, width + 2 * margin_px, channels


def _put(wide: Image, image: Image, margin_px: int) -> None:
    """Write the image into `wide`, its edges repeated around it; a tenth of numpy's `pad`."""
    top = left = margin_px
    bottom, right = top + image.shape[0], left + image.shape[1]
    wide[top:bottom, left:right] = image
    wide[top:bottom, :left] = image[:, :1]
    wide[top:bottom, right:] = image[:, -1:]
    wide[:top] = wide[top]
    wide[bottom:] = wide[bottom - 1]


def _windows(frames: Image, slots: Slots, margin_px: int, rng: np.random.Generator) -> Image:
    """Copies of frames without their margins, each row shifted by up to that much along x and y.

    An image at a time: numpy's fancy index of all windows takes a fifth longer.
    """
    if not margin_px:
        picked: Image = behind_each_other(frames, slots)
        return picked
    height, width = (size - 2 * margin_px for size in frames.shape[1:3])
    out: Image = np.empty((len(slots), height, width, 3 * slots.shape[1]), np.uint8)
    corners = margin_px - rng.integers(-margin_px, margin_px + 1, (len(slots), 2))
    for image, row, (top, left) in zip(out, slots.tolist(), corners.tolist(), strict=True):
        for place, slot in enumerate(row):
            window = frames[slot, top : top + height, left : left + width]
            image[..., 3 * place : 3 * place + 3] = window
    return out


def behind_each_other(frames: Any, slots: Slots) -> Any:
    """Copies of what lies in `slots`, (B, K), the K of a row along the last axis."""
    if slots.shape[1] == 1:
        return frames[slots[:, 0]]
    return np.concatenate([frames[column] for column in slots.T], axis=-1)


def brightened(images: Image, share: float, rng: np.random.Generator) -> Image:
    """Each image brighter or darker by up to `share`.  # (B, H, W, 3)."""
    gains = rng.uniform(1.0 - share, 1.0 + share, (len(images), 1, 1, 1)).astype(np.float32)
    lit: Image = np.clip(images * gains, 0, 255).astype(np.uint8)
    return lit


def stored(shape: tuple[int, ...], dtype: type[np.generic], folder: Path | None) -> Any:
    """An array of zeros in memory, or in a file without a name in `folder`.

    Raises:
        SerlError: the disk refused.
    """
    if folder is None:
        return np.zeros(shape, dtype)
    size = math.prod(shape) * np.dtype(dtype).itemsize
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            # Now, for a full disk under a mapped file later is not an error but the end.
            os.posix_fallocate(file.fileno(), 0, size)
            return np.memmap(file, dtype, "r+", shape=shape)
    except OSError as error:
        raise SerlError(f"replay: {size:,} bytes in {folder}: {error.strerror}") from error
