"""Operator input of an actor: merges devices and service calls, and applies labels and stops."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from serl.intervention import Event
from serl.log.annotations import StepKey, append_labels
from serl.loop import Observer
from serl.teleop.mux import SCRIPT, TeleopMux
from serl.teleop.stop import StopLatch
from serl.types import SHAPED, Action, ActionSource, End, EndReason, Key, Observation, Step

TWICE_S = 0.7
"""Seconds after the end of an episode in which labels belong to that episode."""

_HUMAN = "human"
_ANY_TIME = {Event.STOP, Event.LOST}
_TASK_EVENTS = {Event.SUCCESS, Event.FAILURE, Event.REWARD, Event.PENALTY}

logger = logging.getLogger(__name__)


class LastEnd:
    """Time of the last end of an episode, shared by all stages of an actor.

    Args:
        now_s: monotonic clock in seconds, the same for all operators.
    """

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s, self._end_s = now_s, float("-inf")

    def set(self) -> None:
        """Record that an episode ended just now."""
        self._end_s = self._now_s()

    @property
    def age_s(self) -> float:
        """Seconds since the last end of an episode; infinite before the first."""
        return self._now_s() - self._end_s


class HumanInput(Observer):
    """A `Teleop` that combines all operators of an actor, at devices and through services.

    An event applies to the running episode. Between two episodes, during a reset and for `TWICE_S`
    after the end of an episode, events are rejected, and `add_event` returns the reason. A stop is
    always accepted.

    Args:
        mux: arbitrates between the operators.
        hold: the robot's stop and pause state.
        labels: directory of the actor's episodes, for operator labels.
        last_end: time of the last end of an episode of the actor, in any stage.
    """

    def __init__(
        self, mux: TeleopMux, hold: StopLatch, labels: Path, last_end: LastEnd | None = None
    ) -> None:
        self.mux = mux
        self.hold = hold
        self._folder, self._last_end = labels, last_end or LastEnd()
        self._runs = self._resets = False
        self._pending: deque[tuple[Event, str]] = deque()
        self._sources: dict[Event, str] = {}
        self._labelled: Key | None = None  # the end that an operator labelled

    def add_event(self, event: Event, by: str) -> str:
        """Queue an operator event; return why it is rejected, or an empty string. Thread-safe.

        A stop is persisted before this returns. It is queued only for a running episode, which it
        ends: between two episodes it would stop the robot again after its release.
        """
        if event is Event.STOP:
            self.hold.stop(f"stopped by {by}")
            if not self._runs:
                return ""
        if objection := self._objection(event):
            return objection
        self._pending.append((event, by))
        return ""

    def on_begin(self, chosen_by: ActionSource) -> None:
        """Pass on to the operators the source of the actions without their input."""
        self.mux.on_begin(chosen_by)

    def on_reading(self, reading: Observation) -> None:
        """Pass a reading on to the operators."""
        self.mux.on_reading(reading)

    def begin(self) -> None:
        """Start an episode."""
        self._clear()
        self._runs = True

    def rest(self) -> None:
        """Pause between episodes; operators can still take over."""
        self._clear()
        self._runs = False

    def __call__(self) -> Action | None:
        """Return the action of the operator in control."""
        return self.mux()

    def events(self) -> tuple[Event, ...]:
        """Return the events since the last call; a stop is repeated while it holds."""
        found = [
            (event, by)
            for event, by in self.mux.sourced_events()
            if by == SCRIPT or not self._objection(event)
        ]
        while self._pending:
            found.append(self._pending.popleft())
        if self.hold.stopped:
            found.append((Event.STOP, ""))
        self._sources |= found
        return tuple(dict.fromkeys(event for event, _ in found))

    def obey_stops(self, read: bool) -> None:
        """Hold the robot on a stop event; keep events that apply to an episode that runs.

        For use between two episodes, and while the robot is held: stopping twice has no effect.

        Args:
            read: read the devices first, which nothing else does while the robot is held.
        """
        for operator in self.mux.operators:
            if read:
                operator()
            for event in operator.events():
                if event is Event.STOP:
                    self._stop(operator.name)
                elif event not in _ANY_TIME and not self._objection(event):
                    self._pending.append((event, operator.name))

    def on_step(self, step: Step) -> None:
        """Note whether a script acts, as in a reset, and whether an operator's label ends it.

        The last step accepts no further label: the episode has its outcome, though not its end.
        """
        self._resets = step.source is ActionSource.SCRIPT and (self._resets or step.key.index == 0)
        if step.terminated and step.reward_provenance.partition(SHAPED)[0] == _HUMAN:
            self._labelled = replace(step.key, index=step.key.index + 1)
        if step.terminated or step.truncated:
            self._runs = False
            self._last_end.set()

    def on_end(self, end: End) -> None:
        """Store the label; hold the robot after a stop, or if a lost device cut the episode."""
        if end.reason is EndReason.DEVICE_LOST:
            self.hold.pause(self.mux.trouble or "a device fell silent")
        is_stop = Event.STOP in self._sources
        if is_stop and not self.hold.stopped:  # whatever else ended the episode
            self._stop(self._sources[Event.STOP] or "a person")
        if is_stop or end.reason.is_fault:
            self.mux.let_go()
        self._label(end)

    def resume(self) -> None:
        """Resume motion without waiting for silent devices; raises as `StopLatch.resume`."""
        self.hold.resume()
        self.mux.release()

    def _stop(self, by: str) -> None:
        """Hold the robot, until a restart at least: the disk may refuse to store the stop."""
        try:
            self.hold.stop(f"stopped by {by}")
        except OSError as error:
            logger.error("%s, until a restart: %s", self.hold.stopped, error)

    def _clear(self) -> None:
        self._pending.clear()
        self._sources.clear()
        self.mux.begin()

    def _objection(self, event: Event) -> str:
        """Return why an event is rejected now; empty when it is accepted."""
        if event in _ANY_TIME:
            return ""
        if not self._runs:
            return "ignored: no episode runs"
        if self._resets and event in _TASK_EVENTS:
            return "ignored: the scene is being reset"
        if self._last_end.age_s < TWICE_S:
            return "ignored: the last episode has just ended"
        return ""

    def _label(self, end: End) -> None:
        if end.key == self._labelled and not self._resets:
            place = StepKey(end.key.epoch, end.key.episode, end.key.index)
            by = self._sources.get(Event.SUCCESS if end.success else Event.FAILURE) or "a person"
            append_labels(self._folder, [(place, int(end.success))], by)
