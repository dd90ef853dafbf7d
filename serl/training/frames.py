"""Images of a replay: each frame stored once, in memory or in a file; copies shifted at random.

Frames are stored unchanged; where a shift exposes an edge, the copy repeats the adjacent pixels.
"""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serl.errors import SerlError
from serl.specs import ArraySpec
from serl.types import Features, Image, Observation

Slots = NDArray[np.int64]


class FrameStore:
    """Slots for one frame of each camera.

    Memory is allocated as slots are first written, disk space at once. The file is unnamed, so that
    it is freed when the process ends, in any way.

    Args:
        cameras: spec of the images, by camera.
        capacity: number of slots.
        shift_px: largest shift of a copy, less than the height and width of images.
        folder: directory of the file; None keeps all in memory.

    Raises:
        SerlError: the file could not be allocated.
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
            name: np.asarray(allocate((capacity, *camera.shape), np.uint8, folder))
            for name, camera in cameras.items()
        }

    def put(self, slot: int, images: Mapping[str, Image]) -> None:
        """Store a frame, replacing the one in its slot."""
        for name, frames in self._images.items():
            frames[slot] = images[name]

    def take(self, slots: Slots, rng: np.random.Generator) -> dict[str, Image]:
        """Return copies of the frames in `slots`, (B, K), stacking the K frames of a row.

        Cameras are shifted independently; the K frames of a row share a shift.  # (B, H, W, 3 K)
        """
        return {
            name: _shift_copies(frames, slots, self._shift_px, rng)
            for name, frames in self._images.items()
        }


def frame_bytes(cameras: Mapping[str, ArraySpec]) -> int:
    """Return the bytes of one frame of all cameras."""
    return sum(math.prod(camera.shape) for camera in cameras.values())


def random_shift(frames: Image, slots: Slots, most_px: int, rng: np.random.Generator) -> Image:
    """Return copies of frames, each shifted by up to `most_px` along x and y, edges repeated.

    The random crop of DrQ (Yarats et al. 2021, section 4.1), without the padded copy.

    Args:
        frames: uint8 images.  # (N, H, W, 3)
        slots: indices of the frames to copy.  # (B,)
        most_px: largest shift, less than height and width.
        rng: draws the shifts.

    Returns:
        A new array.  # (B, H, W, 3)
    """
    return _shift_copies(frames, slots[:, None], most_px, rng)


def _shift_copies(frames: Image, slots: Slots, most_px: int, rng: np.random.Generator) -> Image:
    """Return copies of frames, (B, K), each row shifted by up to `most_px` along x and y."""
    if not most_px:
        picked: Image = stack_frames(frames, slots)
        return picked
    import cv2  # takes half a second: only where images are shifted

    _, height, width, _ = frames.shape
    out: Image = np.empty((len(slots), height, width, 3 * slots.shape[1]), np.uint8)
    shifts = rng.integers(-most_px, most_px + 1, (len(slots), 2))  # down, to the right
    bare, cut = np.maximum(shifts, 0), np.maximum(-shifts, 0)
    sides = np.concatenate([bare, cut, (height, width) - bare], 1).tolist()
    edges = cv2.BORDER_REPLICATE
    # OpenCV copies and repeats edges in one call; NumPy slices take a sixth longer. 128 images of
    # 128 px take 0.3 ms longer than frames[slots] (0.7 ms, into memory that was just freed): 0.1 ms
    # for copying row by row, 0.15 ms for repeating edges, 0.1 ms for the Python loop.
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


def stack_frames(frames: Any, slots: Slots) -> Any:
    """Return copies of the entries in `slots`, (B, K), concatenating a row along the last axis."""
    if slots.shape[1] == 1:
        return frames[slots[:, 0]]
    return np.concatenate([frames[column] for column in slots.T], axis=-1)


def random_brightness(images: Image, share: float, rng: np.random.Generator) -> Image:
    """Return the images, each scaled in brightness by a factor of 1 ± `share`.  # (B, H, W, 3)."""
    gains = rng.uniform(1.0 - share, 1.0 + share, (len(images), 1, 1, 1)).astype(np.float32)
    lit: Image = np.clip(images * gains, 0, 255).astype(np.uint8)
    return lit


def allocate(shape: tuple[int, ...], dtype: type[np.generic], folder: Path | None) -> Any:
    """Allocate an array of zeros in memory, or in an unnamed file in `folder`.

    Raises:
        SerlError: the file could not be allocated.
    """
    if folder is None:
        return np.zeros(shape, dtype)
    size = math.prod(shape) * np.dtype(dtype).itemsize
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            # Allocate now: a disk that fills up under a mapped file kills the process.
            os.posix_fallocate(file.fileno(), 0, size)
            return np.memmap(file, dtype, "r+", shape=shape)
    except OSError as error:
        raise SerlError(
            f"replay: {size:,} bytes in {folder}: {error.strerror} (less by learner.image_bytes)"
        ) from error


_WAITING = 500
"""Number of frames at which waiting images are encoded."""


@dataclass(frozen=True)
class FrameEncoder:
    """Fixed image encoder of an agent.

    Attributes:
        shape: shape of one image's features.
        encode: returns the features of one frame's images, by camera; the same bits each time.
    """

    shape: tuple[int, ...]
    encode: Callable[[Mapping[str, Image]], Mapping[str, Features]]


class FeatureStore:
    """Slots for the features of one frame of each camera, as `FrameStore` for images.

    Frames are encoded when the next batch is drawn, not when they are added, so that adding does
    not block; and one at a time, so that replaying a log gives the same features as the run did.

    Args:
        capacity: number of slots.
        encoder: computes the features.
        folder: directory of a file for the features; None keeps all in memory.
    """

    def __init__(
        self,
        cameras: Collection[str],
        capacity: int,
        encoder: FrameEncoder,
        folder: Path | None = None,
    ) -> None:
        self._encoder = encoder
        self._features: dict[str, Features] = {
            name: allocate((capacity, *encoder.shape), np.float16, folder) for name in cameras
        }
        self._waiting: dict[int, Mapping[str, Image]] = {}

    def put(self, slot: int, images: Mapping[str, Image]) -> None:
        """Store a frame, replacing the one in its slot."""
        self._waiting[slot] = {name: images[name] for name in self._features}
        if len(self._waiting) >= _WAITING:
            self._encode()

    def take(self, slots: Slots, rng: np.random.Generator) -> dict[str, Features]:
        """Return stacked copies of the features in `slots`, (B, K); `rng` is not used."""
        self._encode()
        return {name: stack_frames(features, slots) for name, features in self._features.items()}

    def _encode(self) -> None:
        for slot, images in self._waiting.items():
            for name, features in self._encoder.encode(images).items():
                self._features[name][slot] = features
        self._waiting.clear()


def feature_bytes(cameras: Collection[str], encoder: FrameEncoder) -> int:
    """Return the bytes of the features of one frame of all cameras."""
    return len(cameras) * int(np.prod(encoder.shape)) * np.dtype(np.float16).itemsize


class FrameStack:
    """Stacks the images of an episode's last observations, oldest first.

    An episode starts as if its first frame had always been present; replay samples likewise.

    Args:
        frames: number of images to stack; 1 changes nothing.
    """

    def __init__(self, frames: int) -> None:
        self._frames = frames
        self._last: dict[str, list[Image]] = {}

    def begin(self) -> None:
        """Start an episode."""
        self._last.clear()

    def __call__(self, observation: Observation) -> Observation:
        """Return the next observation of the episode with stacked images (H, W, 3 * frames)."""
        if self._frames == 1 or not observation.images:
            return observation
        stacked = {name: self._stack(name, image) for name, image in observation.images.items()}
        return replace(observation, images=stacked)

    def _stack(self, name: str, image: Image) -> Image:
        last = self._last.setdefault(name, [image] * self._frames)
        last[:] = [*last[1:], image]
        return np.concatenate(last, axis=-1)
