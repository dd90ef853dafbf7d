"""Taking over: the contract of a teleoperation device, and who drives when."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, Protocol

import numpy as np
from pydantic import BaseModel, ConfigDict

from serl.robot import Truth
from serl.task import SimulatedTask
from serl.types import Action, ActionSource, End, Observation


class Event(StrEnum):
    """What a person says apart from motion."""

    SUCCESS = "success"
    FAILURE = "failure"
    DISCARD = "discard"
    """Nothing is to be learned from this episode."""
    RESET = "reset"
    """Begin again."""
    REWARD = "reward"
    """This step was good: its reward is one more, and the episode goes on."""
    PENALTY = "penalty"
    """This step was bad: its reward is one less."""
    STOP = "stop"
    """Hold still now, until a person allows motion again."""
    LOST = "lost"
    """Said by a device's driver, not by a person: it was silent while a person drove."""


ENDINGS = {
    Event.DISCARD: "discarded",
    Event.STOP: "stopped",
    Event.LOST: "device lost",
    Event.RESET: "operator",
}
"""Why an episode was cut, by what was said; the first one counts."""

_KNOWN = {"success", "failure", "time limit", "interrupted", *ENDINGS.values()}


def is_fault(end: End) -> bool:
    """Nothing was seen after the last action: the observation is that from before it, once more."""
    return end.reason not in _KNOWN


class Teleop(Protocol):
    """A device, or anything that behaves like a person at one."""

    def begin(self) -> None:
        """An episode starts."""
        ...

    def __call__(self) -> Action | None:
        """The person's action, or None while hands are off; never blocks.

        Entries that are not a number are left to whoever would act without the person.
        """
        ...

    def events(self) -> tuple[Event, ...]:
        """Events since the last call."""
        ...


class Seen(Protocol):
    """What a simulated person sees of the simulation."""

    def observe(self) -> Observation:
        """See `serl.robot.Robot`."""
        ...

    def truth(self) -> Truth:
        """See `serl.robot.SimulatedRobot`."""
        ...


class PersonConfig(BaseModel):
    """Settings of every simulated person: none.

    A simulated person with settings of its own subclasses this, and names the subclass `Config`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


@dataclass(frozen=True)
class PersonContext:
    """The training that a simulated person attends, at one actor.

    Attributes:
        task: the task, with its progress and its expert.
        robot: shows the truth of the simulation.
        planned_steps: online steps of the whole training, of all actors.
        seed: of everything random in the person.
        steps_before: online steps that this actor made before it was restarted.
        trained: how many steps of all actors were trained on, as far as this actor knows.
        labels: nothing but the person says of a success that it is one.
    """

    task: SimulatedTask
    robot: Seen
    planned_steps: int
    seed: int
    steps_before: int = 0
    trained: Callable[[], int] = lambda: 0
    labels: bool = False


class Person(Protocol):
    """What a module names as its `person`; a class has `create` as a class method.

    Attributes:
        Config: its settings, `human.*`; without it there are none.
    """

    Config: ClassVar[type[PersonConfig]]

    def create(self, config: PersonConfig, training: PersonContext) -> Teleop:
        """A simulated person for one actor; equal arguments give equal ones."""
        ...


class HandsOff:
    """Nobody is there."""

    def begin(self) -> None:
        """Nothing to prepare."""

    def __call__(self) -> Action | None:
        """Always hands off."""
        return None

    def events(self) -> tuple[Event, ...]:
        """Never any."""
        return ()


def arbitrate(
    proposed: Action, chosen_by: ActionSource, human: Action | None
) -> tuple[Action, ActionSource]:
    """The action to execute and who chose it: a human's hands always win, axis by axis."""
    if human is None:
        return proposed, chosen_by
    return np.where(np.isnan(human), proposed, human).astype(np.float32), ActionSource.HUMAN


STUCK = "the arm does not move"
STUCK_S = 2.0
"""How long it is led on in vain before a guard says so."""

_MORE_S = 0.5
"""Until it was as far behind as it is led, and until it was told."""


def stuck_since_s(end: End) -> float:
    """When the arm of an episode that ended so came to stand, as its steps tell time; else inf."""
    return end.monotonic_s - STUCK_S - _MORE_S if STUCK in end.reason else math.inf
