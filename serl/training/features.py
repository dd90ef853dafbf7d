"""What a frozen encoder makes of the images of a replay, once for each frame."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from serl.training.frames import Slots, behind_each_other, stored
from serl.types import Features, Image

_WAITING = 500
"""Frames that are kept as images until the next batch is drawn."""


@dataclass(frozen=True)
class FrameEncoder:
    """How an agent sees images, for good.

    Attributes:
        shape: of one image's features.
        encode: features of one frame's images, by camera; the same bits each time.
    """

    shape: tuple[int, ...]
    encode: Callable[[Mapping[str, Image]], Mapping[str, Features]]


class FeatureStore:
    """Slots for the features of one frame of each camera, as `FrameStore` for its images.

    Frames are encoded when the next batch is drawn, not when they come, so that who brings them
    need not wait; and one at a time, so that the same features come of a log as came of a run.

    Args:
        cameras: their names.
        capacity: number of slots.
        encoder: makes the features.
        folder: where a file of them lies; None keeps all in memory.
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
            name: stored((capacity, *encoder.shape), np.float16, folder) for name in cameras
        }
        self._waiting: dict[int, Mapping[str, Image]] = {}

    def put(self, slot: int, images: Mapping[str, Image]) -> None:
        """Store a frame; what the slot held is gone."""
        self._waiting[slot] = {name: images[name] for name in self._features}
        if len(self._waiting) >= _WAITING:
            self._encode()

    def take(self, slots: Slots, rng: np.random.Generator) -> dict[str, Features]:
        """Copies of the features in `slots`, (B, K), behind each other; nothing is drawn."""
        self._encode()
        return {
            name: behind_each_other(features, slots) for name, features in self._features.items()
        }

    def _encode(self) -> None:
        for slot, images in self._waiting.items():
            for name, features in self._encoder.encode(images).items():
                self._features[name][slot] = features
        self._waiting.clear()


def feature_bytes(cameras: Collection[str], encoder: FrameEncoder) -> int:
    """Bytes of the features of one frame of all cameras."""
    return len(cameras) * int(np.prod(encoder.shape)) * np.dtype(np.float16).itemsize
