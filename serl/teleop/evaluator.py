"""A simulated person that evaluates the policy by the keys = and -, and never takes over.

It watches the progress of the task, and evaluates a change once it has become large enough, as a
person in the training of Deep TAMER does (Warnell et al. 2018), late by a reaction time.
"""

from __future__ import annotations

from collections import deque

from pydantic import Field

from serl.intervention import Event, PersonConfig, PersonContext
from serl.types import Action


class EvaluatorConfig(PersonConfig):
    """Habits of a simulated person that evaluates.

    Attributes:
        progress_step: change of the progress, since the last key, that it evaluates.
        interval_s: shortest time between two keys.
        delay_s: time from a change to the key.
    """

    progress_step: float = Field(0.05, gt=0, le=1000)
    interval_s: float = Field(0.5, ge=0, le=60)
    delay_s: float = Field(0.3, ge=0, le=60)


class Evaluator:
    """A `Teleop` that rewards progress, penalises regress, and never acts.

    Args:
        training: the task, with its measure of progress, and the simulation.
    """

    Config = EvaluatorConfig

    def __init__(self, config: EvaluatorConfig, training: PersonContext) -> None:
        self.config, self._training = config, training
        rate_hz = training.task.config.rate_hz
        self._late_steps = round(config.delay_s * rate_hz)
        self._rest_steps = round(config.interval_s * rate_hz)
        self.begin()

    @classmethod
    def create(cls, config: PersonConfig, training: PersonContext) -> Evaluator:
        """Create a simulated person; see `serl.intervention.Person`."""
        assert isinstance(config, EvaluatorConfig)
        return cls(config, training)

    def begin(self) -> None:
        """Start an episode, with the progress at its start as the first one to compare with."""
        self._seen: deque[float] = deque(maxlen=1 + self._late_steps)
        self._known: float | None = None
        self._resting = 0
        self._events: tuple[Event, ...] = ()

    def __call__(self) -> Action | None:
        """Watch, and return None: it never takes over."""
        training = self._training
        self._seen.append(training.task.progress(training.robot.truth()))
        late = self._seen[0]
        self._known = late if self._known is None else self._known
        self._resting -= 1
        if abs(late - self._known) >= self.config.progress_step and self._resting <= 0:
            self._events = (Event.REWARD if late > self._known else Event.PENALTY,)
            self._known, self._resting = late, self._rest_steps
        return None

    def events(self) -> tuple[Event, ...]:
        """Return the keys since the last call; with `labels` also the success of a solved task."""
        keys, self._events = self._events, ()
        training = self._training
        solved = training.labels and training.task.is_success(training.robot.truth())
        return (*keys, Event.SUCCESS) if solved else keys


person = Evaluator
