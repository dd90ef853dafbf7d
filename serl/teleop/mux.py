"""Several people and a script at one robot: one of them drives at a time."""

from __future__ import annotations

from collections.abc import Sequence

from serl.intervention import Event, Teleop
from serl.teleop.operator import Hands, Operator
from serl.types import Action

SCRIPT = "script"
"""Who says what a script says."""
SIMULATED = "a simulated human"
"""Who drives when a script corrects, for people."""


class TeleopMux:
    """A `Teleop` of many: who takes over first keeps the robot until hands are off.

    Args:
        people: each at a device of their own; of two in the same step the first one wins.
        script: drives while no person does, such as a `ScriptedHuman`.

    Attributes:
        owner: the person who drives; None while nobody does.
        scripted: the script drove the last step.
    """

    def __init__(self, people: Sequence[Operator], script: Teleop | None = None) -> None:
        self.people = tuple(people)
        self.owner: Operator | None = None
        self.scripted = False
        self._script = script

    def begin(self) -> None:
        """An episode starts, for everybody."""
        for teleop in self._all():
            teleop.begin()

    def __call__(self) -> Action | None:
        """The owner's action, else the script's."""
        wanted = [(person, person()) for person in self.people]  # all are heard in every step
        driving = [person for person, action in wanted if action is not None]
        if self.owner not in driving:
            self.owner = driving[0] if driving else None
        self.scripted = False
        for person, action in wanted:
            if person is self.owner:
                return action
        action = self._script() if self._script else None
        self.scripted = action is not None
        return action

    def events(self) -> tuple[Event, ...]:
        """What anybody said since the last call, each once."""
        return tuple(dict.fromkeys(event for event, _ in self.heard()))

    def heard(self) -> list[tuple[Event, str]]:
        """What was said since the last call, and by whom.

        That a device fell silent counts only of the owner's.
        """
        said = [
            (event, person.name)
            for person in self.people
            for event in person.events()
            if event is not Event.LOST or person is self.owner
        ]
        script = self._script.events() if self._script else ()
        return said + [(event, SCRIPT) for event in script]

    def release(self) -> None:
        """The robot need not hold for devices that are silent."""
        for person in self.people:
            person.release()

    @property
    def silence_s(self) -> float:
        """How long the device of who drives has been silent; see `Operator.silence_s`."""
        return 0.0 if self.owner is None else self.owner.silence_s

    @property
    def silent(self) -> str:
        """The device that the robot holds for; empty when there is none."""
        held = self.owner is not None and self.owner.hands is Hands.SILENT
        return self.owner.name if held and self.owner else ""

    @property
    def trouble(self) -> str:
        """Why the robot holds for its owner, in words; empty when it does not."""
        return self.owner.trouble if self.owner and self.silent else ""

    def _all(self) -> tuple[Teleop, ...]:
        return (*self.people, self._script) if self._script else self.people
