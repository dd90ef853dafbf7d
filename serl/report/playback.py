"""A recorded episode as robot, task, policy and human, on which the control loop runs again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import numpy as np

from serl.clock import Clock
from serl.errors import BadInput, SerlError
from serl.intervention import ENDINGS, Event
from serl.loop import EpisodeKey, Observer, Result, run
from serl.motion import check_action
from serl.specs import Spec
from serl.types import Action, ActionSource, EndReason, Episode, Observation, Outcome

CUT = "the recording was cut here"


class ReplayRobot:
    """A robot that plays a recording: each `act` returns the recorded action and advances a step.

    Recordings hold the task's observations, so a reading is such an observation. A stopped robot
    stays at its position in the recording.

    Attributes:
        stop_reason: the first reason for a stop; empty while motion is allowed.
        position: number of steps that were executed.

    Raises:
        BadInput: the recording has no step.
    """

    def __init__(self, episode: Episode, spec: Spec) -> None:
        if not episode.steps:
            raise BadInput("a recording without a step cannot be replayed")
        self._steps = episode.steps
        self._end = episode.end
        self.observation_spec, self.action_spec = spec.observation, spec.action
        self.stop_reason = ""
        self.position = 0

    def observe(self) -> Observation:
        """Return the recorded reading; after the last step the final one.

        Raises:
            SerlError: there is no final reading, as a fault or a crash ended the episode; the
                message names the cause.
        """
        if self.position < len(self._steps):
            return self._steps[self.position].observation
        if self._end is None:
            raise SerlError(CUT)
        if self._end.reason.is_fault:
            raise SerlError(self._end.fault)
        return self._end.observation

    def act(self, action: Action) -> Action:
        """Return the recorded executed action and advance; zeros while stopped or at the end."""
        check_action(action, self.action_spec)
        if self.stop_reason or self.position == len(self._steps):
            return np.zeros_like(action)
        executed = self._steps[self.position].action
        self.position += 1
        return executed.copy()

    def stop(self, reason: str) -> None:
        """Stop at the present position; the first reason is kept."""
        self.stop_reason = self.stop_reason or reason

    def recover(self) -> None:
        """Allow motion again."""
        self.stop_reason = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Do nothing: there is nothing to release."""


class RecordedTask:
    """A task with the recorded rewards, reward provenance and endings."""

    def __init__(self, episode: Episode, spec: Spec) -> None:
        self._episode = episode
        self.observation_spec = spec.observation

    def begin(self, reading: Observation) -> None:
        """Do nothing: a recorded task has no state."""

    def observation(self, reading: Observation) -> Observation:
        """Return the reading, which is the recorded observation already."""
        return reading

    def outcome(self, reading: Observation, index: int) -> Outcome:
        """Return the recorded outcome of the step `index`, by the task or a person."""
        step = self._episode.steps[index]
        last = index + 1 == len(self._episode.steps)
        return Outcome(
            reward=step.reward,
            terminated=step.terminated,
            truncated=step.truncated,
            success=last and self._episode.success,
            provenance=step.reward_provenance,
        )


class RecordedPolicy:
    """A policy that requests the recorded actions of the policy or script, step by step.

    Attributes:
        version: version of the weights that computed the last action.
    """

    def __init__(self, episode: Episode) -> None:
        self._steps = iter(episode.steps)
        self.version = 0

    def __call__(self, observation: Observation) -> Action:
        """Return the next requested action.

        Raises:
            SerlError: the recording has no further step.
        """
        step = next(self._steps, None)
        if step is None:
            raise SerlError("the recording has no further step")
        self.version = step.policy_version
        return step.requested


class RecordedHuman:
    """A human that takes over at the recorded steps, with the executed actions."""

    def __init__(self, episode: Episode) -> None:
        self._episode = episode
        self._next = 0

    def begin(self) -> None:
        """Go back to the first step."""
        self._next = 0

    def __call__(self) -> Action | None:
        """Return the human's action of the next step, or None."""
        step = self._episode.steps[self._next]
        self._next += 1
        return step.action if step.source is ActionSource.HUMAN else None

    def events(self) -> tuple[Event, ...]:
        """Return the human event that ended the episode, after its last step; else ()."""
        end = self._episode.end
        if end is None or self._next < len(self._episode.steps):
            return ()
        return tuple(event for event, reason in ENDINGS.items() if reason is end.reason)


def replay(episode: Episode, spec: Spec, clock: Clock, observers: Sequence[Observer]) -> Result:
    """Run the control loop on a recorded episode; the new records differ only in their times.

    An episode cut by a crash has no final observation; it ends as truncated, with its last one.
    """
    robot, policy = ReplayRobot(episode, spec), RecordedPolicy(episode)
    key = episode.steps[0].key
    scripted = episode.count(ActionSource.SCRIPT) > 0
    interrupted = episode.end is not None and episode.end.reason is EndReason.INTERRUPTED
    with robot:
        return run(
            robot,
            RecordedTask(episode, spec),
            policy,
            clock,
            EpisodeKey(key.run, key.actor, key.epoch, key.episode),
            observers,
            teleop=RecordedHuman(episode),
            chosen_by=ActionSource.SCRIPT if scripted else ActionSource.POLICY,
            policy_version=lambda: policy.version,
            interrupted=lambda: interrupted and robot.position == len(episode.steps),
        )
