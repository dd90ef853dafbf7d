"""Observations of a solved task: what a reward is learned from that nobody programmed."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from serl.camera import View
from serl.errors import BadInput
from serl.specs import ObservationSpec
from serl.types import Array, End, Image, Observation, Record


class Successes(NamedTuple):
    """Of images, if the policy sees any, else of the state."""

    state: Array  # (N, D), or (N, 0) where there are images
    images: Mapping[str, Image]  # (N, H, W, 3) each

    def __len__(self) -> int:
        """How many there are, N."""
        return len(self.state)


class LastFrames:
    """Keeps the last observations of each demonstration; each is a success to its end.

    Args:
        spec: what a policy sees.
        count: how many of each; the last ones are alike, but not the same.
    """

    def __init__(self, spec: ObservationSpec, count: int) -> None:
        self._spec = spec
        self._last: deque[Observation] = deque(maxlen=count)
        self._kept: list[Observation] = []

    def add(self, record: Record) -> None:
        """The next record of the demonstrations, in their order."""
        if not record.key.index:
            self._last.clear()
        self._last.append(record.observation)
        if isinstance(record, End) and record.success:
            self._kept += self._last

    def successes(self) -> Successes:
        """What was kept."""
        if self._spec.images:
            images = {
                name: np.array([each.images[name] for each in self._kept], np.uint8).reshape(
                    len(self._kept), *image.shape
                )
                for name, image in self._spec.images.items()
            }
            return Successes(np.zeros((len(self._kept), 0), np.float32), images)
        states = [self._spec.flatten(each) for each in self._kept]
        shape = len(states), self._spec.state_size
        return Successes(np.array(states, np.float32).reshape(shape), {})


def with_labelled(
    successes: Successes, folders: Sequence[Path], views: Mapping[str, View]
) -> Successes:
    """These, and the steps of collections that are labelled as successes.

    In each that is the highest label: it may tell stages on the way as well.

    Args:
        successes: of demonstrations.
        folders: collections, or runs.
        views: what the policy sees.

    Raises:
        BadInput: the policy sees no images, or a folder holds no labelled success.
        CorruptData: an episode or a label is damaged.
        SpecMismatch: the images are of other views.
    """
    from serl.reward_data import episode_folders, read_samples  # make tasks, by what needs this

    if not folders:
        return successes
    if not views:
        raise BadInput("vice.positives: are images, and the policy sees none (--observe pixels)")
    images = {name: [frames] for name, frames in successes.images.items()}
    for folder in folders:
        samples, _ = read_samples(episode_folders([folder]), views)
        if not (highest := samples.labels.max()):
            raise BadInput(
                f"vice.positives: {folder}: none of its {len(samples.labels)} labelled steps is a "
                "success (serl reward label FOLDER ... --label 1)"
            )
        for name, frames in images.items():
            frames.append(samples.images[name][samples.labels == highest])
    joined = {name: np.concatenate(frames) for name, frames in images.items()}
    count = len(next(iter(joined.values())))
    return Successes(np.zeros((count, 0), np.float32), joined)
