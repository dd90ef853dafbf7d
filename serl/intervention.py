"""Taking over: the contract of a teleoperation device, and who drives when."""

from __future__ import annotations

from enum import StrEnum
from typing import Protocol

import numpy as np

from serl.types import Action, End, Source


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


def arbitrate(proposed: Action, chosen_by: Source, human: Action | None) -> tuple[Action, Source]:
    """The action to execute and who chose it: a human's hands always win, axis by axis."""
    if human is None:
        return proposed, chosen_by
    return np.where(np.isnan(human), proposed, human).astype(np.float32), Source.HUMAN
