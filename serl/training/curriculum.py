"""Starts near the goal at first, and farther away with success: a reverse curriculum.

A scripted expert brings the scene to where a share of the way is left, and the policy takes over
from there. The expert's steps are an episode of their own, a script's, from which nothing is
learned. Trials, selection and demonstrations always begin where the task says.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from pydantic import BaseModel, ConfigDict, Field

from serl.policy import Policy

_NEARLY_DONE = 0.9  # a script hands over before it has succeeded


class CurriculumConfig(BaseModel):
    """How starts widen.

    Attributes:
        start: share of the way that is left to the policy at first; 1 for all of it, always.
        step: by which that share grows ...
        success_rate: ... whenever so many of the last `window` episodes have succeeded.
        window: episodes.
        until: share of the run's steps by which it has grown to 1 at the latest.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    start: float = Field(1.0, gt=0, le=1)
    step: float = Field(0.1, gt=0, le=1)
    success_rate: float = Field(0.7, gt=0, le=1)
    window: int = Field(10, ge=1, le=100_000)
    until: float = Field(0.5, gt=0, le=1)


class Curriculum:
    """The curriculum of one actor; one that is started again begins where the steps say.

    Args:
        config: see `CurriculumConfig`.
        trained: share of the run's steps that were trained on.
        progress: of the task now, from 0 to 1.
        expert: makes the scripted expert, anew for each episode.
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
        """Of the way that is left to the policy."""
        start = self._config.start
        due = start + (1.0 - start) * self._trained() / self._config.until
        return min(1.0, max(self._earned, due))

    def script(self) -> Policy | None:
        """What brings the scene nearer to the goal before an episode; None for nothing."""
        share, begun = self.share, self._progress()
        self._handover = begun + (1.0 - share) * (_NEARLY_DONE - begun)
        return None if share >= 1.0 or self.reached() else self._expert()

    def reached(self) -> bool:
        """The scene is as near as it was to be brought."""
        return self._progress() >= self._handover

    def tell(self, success: bool) -> None:
        """An episode has ended."""
        self._recent.append(success)
        full = len(self._recent) == self._config.window
        if full and sum(self._recent) >= self._config.success_rate * self._config.window:
            self._earned = min(1.0, self._earned + self._config.step)
            self._recent.clear()
