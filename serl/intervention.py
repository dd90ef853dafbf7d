"""Taking over: the contract of a teleoperation device, and who drives when."""

from __future__ import annotations

from enum import StrEnum
from typing import Protocol

from serl.types import Action, Source


class Event(StrEnum):
    """What a person says apart from motion."""

    SUCCESS = "success"
    FAILURE = "failure"
    DISCARD = "discard"
    """Nothing is to be learned from this episode."""
    RESET = "reset"
    """Begin again."""
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


class Teleop(Protocol):
    """A device, or anything that behaves like a person at one."""

    def begin(self) -> None:
        """An episode starts."""
        ...

    def __call__(self) -> Action | None:
        """The person's action, or None while hands are off; never blocks."""
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
    """The action to execute and who chose it: a human's hands always win."""
    return (proposed, chosen_by) if human is None else (human, Source.HUMAN)
