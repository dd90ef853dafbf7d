"""Observations of a solved task, from which a reward is learned instead of programmed."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from serl.specs import ObservationSpec
from serl.types import Array, End, Image, Observation, Record


class Successes(NamedTuple):
    """Observations of success: images if the policy sees any, otherwise state vectors."""

    state: Array  # (N, D), or (N, 0) where there are images
    images: Mapping[str, Image]  # (N, H, W, 3) each

    def __len__(self) -> int:
        """Return the number of observations, N."""
        return len(self.state)


class LastFrames:
    """Collects the last observations of each successful demonstration, as examples of success.

    Args:
        spec: spec of the policy's observations.
        count: observations per demonstration; the last ones are similar, but not equal.
    """

    def __init__(self, spec: ObservationSpec, count: int) -> None:
        self._spec = spec
        self._last: deque[Observation] = deque(maxlen=count)
        self._successes: list[Observation] = []

    def add(self, record: Record) -> None:
        """Add the next record of the demonstrations, in their order."""
        if not record.key.index:
            self._last.clear()
        self._last.append(record.observation)
        if isinstance(record, End) and record.success:
            self._successes += self._last

    def successes(self) -> Successes:
        """Return the collected observations."""
        if self._spec.images:
            images = {
                name: np.array([each.images[name] for each in self._successes], np.uint8).reshape(
                    len(self._successes), *image.shape
                )
                for name, image in self._spec.images.items()
            }
            return Successes(np.zeros((len(self._successes), 0), np.float32), images)
        states = [self._spec.flatten(each) for each in self._successes]
        shape = len(states), self._spec.state_size
        return Successes(np.array(states, np.float32).reshape(shape), {})
