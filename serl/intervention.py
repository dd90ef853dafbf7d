"""Interventions: the contract of a teleoperation device, and its arbitration with the policy."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, Protocol

import numpy as np

from serl.robot import Truth
from serl.task import SimulatedTask
from serl.types import Action, ActionSource, EndReason, FrozenModel, Observation


class Event(StrEnum):
    """An event reported by the operator or the device, besides motion."""

    SUCCESS = "success"
    FAILURE = "failure"
    DISCARD = "discard"
    """Exclude this episode from training."""
    RESET = "reset"
    """End this episode and start a new one."""
    REWARD = "reward"
    """Add 1 to this step's reward, or evaluate the recent steps as good; the episode goes on."""
    PENALTY = "penalty"
    """Subtract 1 from this step's reward, or evaluate them as bad; the episode goes on."""
    STOP = "stop"
    """Hold still immediately, until a person allows motion again."""
    LOST = "lost"
    """Reported by a device's driver: the device timed out while the operator controlled the arm."""


ENDINGS = {
    Event.DISCARD: EndReason.DISCARDED,
    Event.STOP: EndReason.STOPPED,
    Event.LOST: EndReason.DEVICE_LOST,
    Event.RESET: EndReason.RESET,
}
"""Reasons to cut an episode, by event; the first matching one applies."""


class Teleop(Protocol):
    """A teleoperation device with its operator, real or simulated."""

    def begin(self) -> None:
        """Begin an episode."""
        ...

    def __call__(self) -> Action | None:
        """Return the operator's action, or None without operator input; never blocks.

        NaN entries keep the value of the policy or script that acts otherwise.
        """
        ...

    def events(self) -> tuple[Event, ...]:
        """Return the events since the last call."""
        ...


class SimulationView(Protocol):
    """The parts of a simulated robot that a simulated operator observes."""

    def observe(self) -> Observation:
        """Return the newest reading; see `serl.robot.Robot`."""
        ...

    def truth(self) -> Truth:
        """Return the privileged state; see `serl.robot.SimulatedRobot`."""
        ...


class PersonConfig(FrozenModel):
    """Settings common to all simulated operators: none.

    A simulated operator with settings subclasses this model as its `Config`.
    """


@dataclass(frozen=True)
class PersonContext:
    """Context of a simulated operator: the training run and the actor that it attends.

    Attributes:
        task: the task, with its progress and its expert.
        robot: source of the simulation's readings and ground truth.
        planned_steps: online steps of the whole training, of all actors.
        seed: seed of all random numbers of the operator.
        steps_before: online steps made by this actor before it was restarted.
        takeovers_before: takeovers in these steps.
        trained: returns the number of steps of all actors that were trained on, as known here.
        labels: successes are labelled by the operator only.
    """

    task: SimulatedTask
    robot: SimulationView
    planned_steps: int
    seed: int
    steps_before: int = 0
    takeovers_before: int = 0
    trained: Callable[[], int] = lambda: 0
    labels: bool = False


class Person(Protocol):
    """Factory that a module exports as `person`; in a class, `create` is a class method.

    Attributes:
        Config: model of the settings `human.*`; if absent, there are none.
    """

    Config: ClassVar[type[PersonConfig]]

    def create(self, config: PersonConfig, training: PersonContext) -> Teleop:
        """Return a simulated operator for one actor; equal arguments give equal operators."""
        ...


class NoOperator:
    """A teleoperation device that never gives input."""

    def begin(self) -> None:
        """Do nothing at the start of an episode."""

    def __call__(self) -> Action | None:
        """Return None: no operator input."""
        return None

    def events(self) -> tuple[Event, ...]:
        """Return no events."""
        return ()


def arbitrate(
    proposed: Action, chosen_by: ActionSource, human: Action | None
) -> tuple[Action, ActionSource]:
    """Return the action to execute and its source; operator input takes precedence per axis."""
    if human is None:
        return proposed, chosen_by
    return np.where(np.isnan(human), proposed, human).astype(np.float32), ActionSource.HUMAN


STUCK_S = 2.0
"""Time without motion, despite a leading setpoint, after which the guard reports a stuck arm."""

_MARGIN_S = 0.5
"""Time for the build-up of the lead before `STUCK_S`, and for the delay of the report."""


def stuck_since_s(reason: EndReason, ended_s: float) -> float:
    """Return when the arm got stuck, in the monotonic time of the end; inf for other ends."""
    return ended_s - STUCK_S - _MARGIN_S if reason is EndReason.STUCK else math.inf
