"""Simulated operator who takes over at a fixed interval."""

from __future__ import annotations

from pydantic import Field

from serl.intervention import Event, PersonConfig, PersonContext
from serl.types import Action, Observation


class LazyConfig(PersonConfig):
    """Settings of the simulated operator.

    Attributes:
        every: interval of takeovers in steps; each takeover lasts one step.
    """

    every: int = Field(5, ge=2, le=1000)


class Lazy:
    """Simulated operator; see `serl.intervention.Teleop`."""

    Config = LazyConfig

    def __init__(self, config: LazyConfig, training: PersonContext) -> None:
        self._config, self._training = config, training
        self._steps = 0
        self.begin()

    @classmethod
    def create(cls, config: PersonConfig, training: PersonContext) -> Lazy:
        assert isinstance(config, LazyConfig)
        return cls(config, training)

    def begin(self) -> None:
        training = self._training
        self._expert = training.task.expert(training.robot.truth, training.seed)

    def __call__(self) -> Action | None:
        self._steps += 1
        return None if self._steps % self._config.every else self._expert(Observation({}))

    def events(self) -> tuple[Event, ...]:
        return ()


person = Lazy
