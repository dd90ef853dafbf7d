"""Reverse curriculum: episodes start near the goal, and farther away as the policy succeeds.

A scripted expert completes the first part of the task, and the policy takes over for the remaining
share. The expert's steps are a scripted episode of their own, which is not learned from. Trials,
selection and demonstrations always start as the task specifies.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from pydantic import Field

from serl.policy import Policy
from serl.types import FrozenModel

_NEARLY_DONE = 0.9  # progress at which a script hands over, before it has succeeded


class CurriculumConfig(FrozenModel):
    """Settings of the reverse curriculum.

    Attributes:
        start: share of the task left to the policy at first; 1 for all of it, always.
        step: increase of that share after a success rate of `success_rate`.
        success_rate: success rate of the last `window` episodes that increases the share.
        window: number of episodes over which the success rate is taken.
        until: share of the run's steps by which the share has grown to 1 at the latest.
    """

    start: float = Field(1.0, gt=0, le=1)
    step: float = Field(0.1, gt=0, le=1)
    success_rate: float = Field(0.7, gt=0, le=1)
    window: int = Field(10, ge=1, le=100_000)
    until: float = Field(0.5, gt=0, le=1)


class Curriculum:
    """The curriculum of one actor; after a restart it continues from the steps trained on.

    Args:
        trained: returns the share of the run's steps that were trained on.
        progress: returns the present progress of the task, from 0 to 1.
        expert: creates the scripted expert, anew for each episode.
    """

    def __init__(
        self,
        config: CurriculumConfig,
        trained: Callable[[], float],
        progress: Callable[[], float],
        expert: Callable[[], Policy],
    ) -> None:
        self._config, self._trained = config, trained
        self._progress, self._expert = progress, expert
        self._earned = config.start
        self._recent: deque[bool] = deque(maxlen=config.window)
        self._handover = 0.0

    @property
    def share(self) -> float:
        """The share of the task left to the policy."""
        start = self._config.start
        due = start + (1.0 - start) * self._trained() / self._config.until
        return min(1.0, max(self._earned, due))

    def script(self) -> Policy | None:
        """Return the expert that brings the scene nearer to the goal, or None if none is needed."""
        share, start = self.share, self._progress()
        self._handover = start + (1.0 - share) * (_NEARLY_DONE - start)
        return None if share >= 1.0 or self.has_reached() else self._expert()

    def has_reached(self) -> bool:
        """Return whether the scene has reached the progress at which the policy takes over."""
        return self._progress() >= self._handover

    def add(self, success: bool) -> None:
        """Record whether an episode has succeeded, and widen the starts when due."""
        self._recent.append(success)
        full = len(self._recent) == self._config.window
        if full and sum(self._recent) >= self._config.success_rate * self._config.window:
            self._earned = min(1.0, self._earned + self._config.step)
            self._recent.clear()
