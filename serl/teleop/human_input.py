"""Where an actor hears people: it merges all who drive, labels what they say, and holds."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from serl.intervention import ENDINGS, Event
from serl.log.annotations import StepKey, append_labels
from serl.teleop.mux import SCRIPT, TeleopMux
from serl.teleop.stop import StopLatch
from serl.types import Action, ActionSource, End, Key, Record, Step

TWICE_S = 0.7
"""A word that comes so soon after another one ended the episode is of that episode as well."""

_HUMAN = "human"
_ANY_TIME = {Event.STOP, Event.LOST}
_ENDING = {Event.SUCCESS, Event.FAILURE, Event.DISCARD, Event.RESET}
_OF_A_TASK = {Event.SUCCESS, Event.FAILURE, Event.REWARD, Event.PENALTY}


class LastWord:
    """When a person's word last ended an episode: one for all desks of an actor.

    Args:
        now_s: monotonic seconds, as people have them.
    """

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s, self._said_s = now_s, float("-inf")

    def said(self) -> None:
        """It did just now."""
        self._said_s = self._now_s()

    @property
    def age_s(self) -> float:
        """How long ago; infinite if never."""
        return self._now_s() - self._said_s


class HumanInput:
    """A `Teleop` of everybody who has a say in an actor, also by services.

    What a person says of an episode counts for the one that runs. Between two episodes, of a reset
    and right after a word that ended one it is not heard, which `say` answers. A stop always is.

    Args:
        owner: who drives.
        hold: why the robot holds.
        labels: folder of the actor's episodes, for labels of people.
        last_word: that ended an episode of the actor, at whichever desk.
    """

    def __init__(
        self, owner: TeleopMux, hold: StopLatch, labels: Path, last_word: LastWord | None = None
    ) -> None:
        self.owner = owner
        self.hold = hold
        self._folder, self._last_word = labels, last_word or LastWord()
        self._runs = self._resets = False
        self._said: deque[tuple[Event, str]] = deque()
        self._by: dict[Event, str] = {}
        self._judged: dict[Key, bool] = {}

    def say(self, event: Event, by: str) -> str:
        """Somebody says something, from any thread; why it is not heard, or nothing.

        A stop is kept before this returns. It is queued for a running episode only, which it ends:
        between two episodes it would stop the robot again after its release.
        """
        if event is Event.STOP:
            self.hold.stop(f"stopped by {by}")
            if not self._runs:
                return ""
        if objection := self._objection(event):
            return objection
        self._said.append((event, by))
        return ""

    def begin(self) -> None:
        """An episode starts."""
        self._clear()
        self._runs = True

    def rest(self) -> None:
        """No episode runs for a while, but whoever takes over is heard."""
        self._clear()
        self._runs = False

    def __call__(self) -> Action | None:
        """The action of whoever drives."""
        return self.owner()

    def events(self) -> tuple[Event, ...]:
        """What was said since the last call; a stop as long as it holds."""
        heard = [
            (event, by)
            for event, by in self.owner.heard()
            if by == SCRIPT or not self._objection(event)
        ]
        while self._said:
            heard.append(self._said.popleft())
        if self.hold.stopped:
            heard.append((Event.STOP, ""))
        self._by |= heard
        return tuple(dict.fromkeys(event for event, _ in heard))

    def obey_stops(self) -> None:
        """Read the devices, and hold if one of them says stop; drop all else that they say.

        For between two episodes, also while the robot is held: a stop that is said twice is one.
        """
        for person in self.owner.people:
            person()
        for event, by in self.owner.heard():
            if event is Event.STOP and by != SCRIPT:
                self.hold.stop(f"stopped by {by}")

    def watch(self, record: Record) -> None:
        """Take a record that was logged: keep labels, and hold when an episode was cut for it."""
        if isinstance(record, Step):
            self._resets = record.source is ActionSource.SCRIPT and (
                self._resets or record.key.index == 0
            )
            if record.terminated and record.reward_provenance == _HUMAN:
                self._judged = {_after(record.key): record.reward > 0}
            return
        self._runs = False
        if any(by != SCRIPT for event, by in self._by.items() if event in _ENDING):
            self._last_word.said()
        if record.reason == ENDINGS[Event.LOST]:
            self.hold.pause(self.owner.trouble or "a device fell silent")
        if record.reason == ENDINGS[Event.STOP]:
            self.hold.stop(f"stopped by {self._by.get(Event.STOP) or 'a person'}")
        self._label(record)

    def resume(self) -> None:
        """Go on, without waiting for silent devices; raises as `StopLatch.resume`."""
        self.hold.resume()
        self.owner.release()

    def _clear(self) -> None:
        self._said.clear()
        self._by.clear()
        self.owner.begin()

    def _objection(self, event: Event) -> str:
        """Why something that is said now is not heard; empty when it is."""
        if event in _ANY_TIME:
            return ""
        if not self._runs:
            return "not heard: no episode runs"
        if self._resets and event in _OF_A_TASK:
            return "not heard: the scene is being reset"
        if self._last_word.age_s < TWICE_S:
            return "not heard: the last episode has just ended by a word"
        return ""

    def _label(self, end: End) -> None:
        success = self._judged.pop(end.key, None)
        if success is not None and not self._resets:
            place = StepKey(end.key.epoch, end.key.episode, end.key.index)
            by = self._by.get(Event.SUCCESS if success else Event.FAILURE) or "a person"
            append_labels(self._folder, [(place, int(success))], by)


def _after(key: Key) -> Key:
    return Key(key.run, key.actor, key.epoch, key.episode, key.index + 1)
