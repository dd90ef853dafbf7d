"""Where an actor hears people: it merges all who drive, labels what they say, and holds."""

from __future__ import annotations

from collections import deque
from pathlib import Path

from serl.hold import Hold
from serl.intervention import ENDINGS, Event
from serl.labels import Place, append_labels
from serl.teleop.owner import OneOwner
from serl.types import Action, End, Key, Record, Step

_HUMAN = "human"


class Desk:
    """A `Teleop` of everybody who has a say in an actor, also by services.

    What a person says of an episode counts for the one that runs; between two it is not heard. A
    stop always is.

    Args:
        owner: who drives.
        hold: why the robot holds.
        labels: folder of the actor's episodes, for labels of people.
    """

    def __init__(self, owner: OneOwner, hold: Hold, labels: Path) -> None:
        self.owner = owner
        self.hold = hold
        self._folder = labels
        self._said: deque[tuple[Event, str]] = deque()
        self._by: dict[Event, str] = {}
        self._judged: dict[Key, bool] = {}

    def say(self, event: Event, by: str) -> None:
        """Somebody says something, from any thread; a stop is kept before this returns."""
        if event is Event.STOP:
            self.hold.stop(f"stopped by {by}")
        self._said.append((event, by))

    def begin(self) -> None:
        """An episode starts."""
        self._said.clear()
        self._by.clear()
        self.owner.begin()

    def __call__(self) -> Action | None:
        """The action of whoever drives."""
        return self.owner()

    def events(self) -> tuple[Event, ...]:
        """What was said since the last call; a stop as long as it holds."""
        heard = [*self.owner.heard()]
        while self._said:
            heard.append(self._said.popleft())
        if self.hold.stopped:
            heard.append((Event.STOP, ""))
        self._by |= heard
        return tuple(dict.fromkeys(event for event, _ in heard))

    def watch(self, record: Record) -> None:
        """Take a record that was logged: keep labels, and hold when an episode was cut for it."""
        if isinstance(record, Step):
            if record.terminated and record.reward_provenance == _HUMAN:
                self._judged = {_after(record.key): record.reward > 0}
            return
        if record.reason == ENDINGS[Event.LOST]:
            self.hold.pause(self.owner.trouble or "a device fell silent")
        if record.reason == ENDINGS[Event.STOP]:
            self.hold.stop(f"stopped by {self._by.get(Event.STOP) or 'a person'}")
        self._label(record)

    def resume(self) -> None:
        """Go on, without waiting for silent devices; raises as `Hold.resume`."""
        self.hold.resume()
        self.owner.release()

    def _label(self, end: End) -> None:
        success = self._judged.pop(end.key, None)
        if success is not None:
            place = Place(end.key.epoch, end.key.episode, end.key.index)
            by = self._by.get(Event.SUCCESS if success else Event.FAILURE) or "a person"
            append_labels(self._folder, [(place, int(success))], by)


def _after(key: Key) -> Key:
    return Key(key.run, key.actor, key.epoch, key.episode, key.index + 1)
