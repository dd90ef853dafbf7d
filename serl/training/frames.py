"""The images of a replay: each frame once, in memory or in a file, copied out shifted at random.

Frames lie as they came; where a shift leaves an edge bare, the copy repeats what is beside it.
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
        shift_px: by how much a copy is shifted at most, less than the height and width of images.
        folder: where the file lies; None keeps all in memory.

    Raises:
        SerlError: the disk refused.
    """

    def __init__(
        self,
        cameras: Mapping[str, ArraySpec],
        capacity: int,
        shift_px: int = 0,
        folder: Path | None = None,
    ) -> None:
        self._shift_px = shift_px
        self._images: dict[str, Image] = {
            name: np.asarray(stored((capacity, *camera.shape), np.uint8, folder))
            for name, camera in cameras.items()
        }

    def put(self, slot: int, images: Mapping[str, Image]) -> None:
        """Store a frame; what the slot held is gone."""
        for name, frames in self._images.items():
            frames[slot] = images[name]

    def take(self, slots: Slots, rng: np.random.Generator) -> dict[str, Image]:
        """Copies of the frames in `slots`, (B, K), the K of a row behind each other.

        Each image is shifted by itself, its frames alike.  # (B, H, W, 3 K) each
        """
        return {
            name: _copies(frames, slots, self._shift_px, rng)
            for name, frames in self._images.items()
        }


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
    return _copies(frames, slots[:, None], most_px, rng)


def _copies(frames: Image, slots: Slots, most_px: int, rng: np.random.Generator) -> Image:
    """Copies of frames, (B, K), each row shifted by up to `most_px` along x and y."""
    if not most_px:
        picked: Image = behind_each_other(frames, slots)
        return picked
    import cv2  # half a second: not where nothing is shifted

    _, height, width, _ = frames.shape
    out: Image = np.empty((len(slots), height, width, 3 * slots.shape[1]), np.uint8)
    shifts = rng.integers(-most_px, most_px + 1, (len(slots), 2))  # down, to the right
    bare, cut = np.maximum(shifts, 0), np.maximum(-shifts, 0)
    sides = np.concatenate([bare, cut, (height, width) - bare], 1).tolist()
    edges = cv2.BORDER_REPLICATE
    # OpenCV copies and repeats in one call; slices of numpy take a sixth longer. Of the 0.3 ms by
    # which 128 images of 128 px take longer than frames[slots] do (0.7 ms, into memory that was
    # just freed), it copies row by row for 0.1, repeats edges for 0.15, and Python loops for 0.1.
    for image, row, (top, left, bottom, right, low, high) in zip(
        out, slots.tolist(), sides, strict=True
    ):
        if len(row) == 1:
            part = frames[row[0], bottom:low, right:high]
            cv2.copyMakeBorder(part, top, bottom, left, right, edges, image)
            continue
        for place, slot in enumerate(row):
            part = frames[slot, bottom:low, right:high]
            moved = cv2.copyMakeBorder(part, top, bottom, left, right, edges)
            image[..., 3 * place : 3 * place + 3] = moved
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
        raise SerlError(
            f"replay: {size:,} bytes in {folder}: {error.strerror} (less by learner.image_bytes)"
        ) from error
