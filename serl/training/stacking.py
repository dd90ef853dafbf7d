"""The last frames of each camera as one image, so that a policy sees how things move."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from serl.types import Image, Observation


class FrameStack:
    """Puts the frames of an episode's last observations behind each other, oldest first.

    An episode begins as if its first frame had always been there. So does what replay samples.

    Args:
        frames: how many; 1 changes nothing.
    """

    def __init__(self, frames: int) -> None:
        self._frames = frames
        self._last: dict[str, list[Image]] = {}

    def begin(self) -> None:
        """An episode begins."""
        self._last.clear()

    def __call__(self, observation: Observation) -> Observation:
        """The next observation of the episode, its images (H, W, 3 * frames)."""
        if self._frames == 1 or not observation.images:
            return observation
        stacked = {name: self._stack(name, image) for name, image in observation.images.items()}
        return replace(observation, images=stacked)

    def _stack(self, name: str, image: Image) -> Image:
        last = self._last.setdefault(name, [image] * self._frames)
        last[:] = [*last[1:], image]
        return np.concatenate(last, axis=-1)
