"""A simulated person in a reset: knows the task, and helps in nothing else."""

from __future__ import annotations

from collections.abc import Callable

from serl.intervention import Event, Teleop
from serl.types import Action


class Resting:
    """A `Teleop` whose hands are off in resets, and who does not notice them.

    Args:
        person: in all other episodes.
        resets: the scene is being reset now.
    """

    def __init__(self, person: Teleop, resets: Callable[[], bool]) -> None:
        self._person, self._resets = person, resets

    def begin(self) -> None:
        """An episode starts; one that is none of the task's is not told."""
        if not self._resets():
            self._person.begin()

    def __call__(self) -> Action | None:
        """The person's action, or None."""
        return None if self._resets() else self._person()

    def events(self) -> tuple[Event, ...]:
        """What the person said since the last call."""
        return () if self._resets() else self._person.events()
