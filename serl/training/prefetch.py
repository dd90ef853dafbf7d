"""Draws the batches of a learner, the next one while it learns from the last."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np

from serl.training.replay import Replay
from serl.types import Batch


class Prefetch:
    """Batches of one replay, which nobody may change between `begin` and the next `take`.

    Args:
        replay: what is drawn from.
        rows: transitions of a batch.
        prior_share: see `Replay.sample`.
    """

    def __init__(self, replay: Replay, rows: int, prior_share: float) -> None:
        self._replay, self._rows, self._prior_share = replay, rows, prior_share
        self._beside: ThreadPoolExecutor | None = None
        self._next: Future[Batch] | None = None
        self._state: Mapping[str, np.ndarray[Any, Any]] = {}

    def begin(self) -> None:
        """Have the next batch drawn by a thread."""
        self._beside = self._beside or ThreadPoolExecutor(1, "prefetch")
        self._state = self._replay.sampler_state()
        self._next = self._beside.submit(self._draw)

    def take(self) -> Batch:
        """The next batch; waits for the one that was begun."""
        begun, self._next = self._next, None
        return begun.result() if begun else self._draw()

    def state(self) -> Mapping[str, np.ndarray[Any, Any]]:
        """The sampler's state after the last batch that was taken."""
        return self._state if self._next else self._replay.sampler_state()

    def _draw(self) -> Batch:
        return self._replay.sample(self._rows, self._prior_share)
