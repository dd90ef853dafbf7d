"""Arbitration between several operators and a script: one of them drives the robot at a time."""

from __future__ import annotations

from collections.abc import Sequence

from serl.intervention import Event, Teleop
from serl.loop import Observer
from serl.teleop.operator import Hands, Operator
from serl.types import Action, ActionSource, Observation

SCRIPT = "script"
"""Source of events that come from a script."""
SIMULATED = "a simulated human"
"""Name of the active controller shown to operators while a script corrects."""


class TeleopMux(Observer):
    """A `Teleop` of several operators: the first to take over keeps control until it hands back.

    Args:
        operators: operators with their own devices; the first wins if two take over in one step.
        script: acts while no operator does, except in resets; for example a `ScriptedHuman`.

    Attributes:
        owner: the operator in control, or None.
        scripted: True if the script drove the last step.
    """

    def __init__(self, operators: Sequence[Operator], script: Teleop | None = None) -> None:
        self.operators = tuple(operators)
        self.owner: Operator | None = None
        self.scripted = False
        self._script = script
        self._is_reset = False

    def on_begin(self, chosen_by: ActionSource) -> None:
        """Note whether the episode that begins is a reset, in which the script rests."""
        self._is_reset = chosen_by is ActionSource.SCRIPT

    def on_reading(self, reading: Observation) -> None:
        """Pass a reading on to all operators."""
        for operator in self.operators:
            operator.on_reading(reading)

    def begin(self) -> None:
        """Start an episode for all operators and the script."""
        for teleop in self._all():
            teleop.begin()

    def __call__(self) -> Action | None:
        """Return the owner's action, otherwise the script's."""
        # Every device is read in every step.
        wanted = [(operator, operator()) for operator in self.operators]
        driving = [operator for operator, action in wanted if action is not None]
        if self.owner not in driving:
            self.owner = driving[0] if driving else None
        self.scripted = False
        for operator, action in wanted:
            if operator is self.owner:
                return action
        script = self._active_script
        action = script() if script else None
        self.scripted = action is not None
        return action

    def events(self) -> tuple[Event, ...]:
        """Return the events since the last call, without duplicates."""
        return tuple(dict.fromkeys(event for event, _ in self.sourced_events()))

    def sourced_events(self) -> list[tuple[Event, str]]:
        """Return the events since the last call, each with the name of its source.

        A lost device counts only if it is the owner's.
        """
        events = [
            (event, operator.name)
            for operator in self.operators
            for event in operator.events()
            if event is not Event.LOST or operator is self.owner
        ]
        script = self._active_script
        return events + [(event, SCRIPT) for event in (script.events() if script else ())]

    def release(self) -> None:
        """Stop holding the robot for silent devices."""
        for operator in self.operators:
            operator.release()

    def let_go(self) -> None:
        """End the control of all operators: the robot was stopped while they drove."""
        for operator in self.operators:
            operator.let_go()

    @property
    def silence_s(self) -> float:
        """Seconds of silence of the owner's device; see `Operator.silence_s`."""
        return 0.0 if self.owner is None else self.owner.silence_s

    @property
    def silent(self) -> str:
        """Name of the silent device that the robot holds for; empty when there is none."""
        if self.owner is None or self.owner.hands is not Hands.SILENT:
            return ""
        return self.owner.name

    @property
    def trouble(self) -> str:
        """The reason why the robot holds for its owner's device; empty when it does not."""
        return self.owner.trouble if self.owner and self.silent else ""

    def _all(self) -> tuple[Teleop, ...]:
        return (*self.operators, self._active_script) if self._active_script else self.operators

    @property
    def _active_script(self) -> Teleop | None:
        return None if self._is_reset else self._script
