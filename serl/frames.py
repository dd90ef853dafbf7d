"""The images of a replay: each frame once, in memory or in a file, copied out shifted at random."""

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
        folder: where the file lies; None keeps all in memory.

    Raises:
        SerlError: the disk refused.
    """

    def __init__(
        self, cameras: Mapping[str, ArraySpec], capacity: int, folder: Path | None = None
    ) -> None:
        self._images: dict[str, Image] = {
            name: _array((capacity, *camera.shape), folder) for name, camera in cameras.items()
        }

    def put(self, slot: int, images: Mapping[str, Image]) -> None:
        """Store a frame; what the slot held is gone."""
        for name, frames in self._images.items():
            frames[slot] = images[name]

    def take(self, slots: Slots, crop_px: int, rng: np.random.Generator) -> dict[str, Image]:
        """Copies of the frames in `slots`, each image shifted by itself.  # (B, H, W, 3) each."""
        return {name: shifted(frames, slots, crop_px, rng) for name, frames in self._images.items()}


def frame_bytes(cameras: Mapping[str, ArraySpec]) -> int:
    """Bytes of one frame of all cameras."""
    return sum(math.prod(camera.shape) for camera in cameras.values())


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
    if not most_px:
        picked: Image = frames[slots]
        return picked
    out: Image = np.empty((len(slots), *frames.shape[1:]), np.uint8)
    shifts = rng.integers(-most_px, most_px + 1, (len(slots), 2)).tolist()
    height, width = frames.shape[1:3]
    for image, slot, (dy, dx) in zip(out, slots.tolist(), shifts, strict=True):
        top, bottom, left, right = max(dy, 0), height + min(dy, 0), max(dx, 0), width + min(dx, 0)
        image[top:bottom, left:right] = frames[slot, top - dy : bottom - dy, left - dx : right - dx]
        image[top:bottom, :left] = image[top:bottom, left : left + 1]
        image[top:bottom, right:] = image[top:bottom, right - 1 : right]
        image[:top] = image[top]
        image[bottom:] = image[bottom - 1]
    return out


def brightened(images: Image, share: float, rng: np.random.Generator) -> Image:
    """Each image brighter or darker by up to `share`.  # (B, H, W, 3)."""
    gains = rng.uniform(1.0 - share, 1.0 + share, (len(images), 1, 1, 1)).astype(np.float32)
    lit: Image = np.clip(images * gains, 0, 255).astype(np.uint8)
    return lit


def _array(shape: tuple[int, ...], folder: Path | None) -> Any:
    if folder is None:
        return np.zeros(shape, np.uint8)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            # Now, for a full disk under a mapped file later is not an error but the end.
            os.posix_fallocate(file.fileno(), 0, math.prod(shape))
            return np.memmap(file, np.uint8, "r+", shape=shape)
    except OSError as error:
        size = math.prod(shape)
        raise SerlError(f"replay: {size:,} bytes in {folder}: {error.strerror}") from error
