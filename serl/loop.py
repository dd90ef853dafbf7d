"""The only control loop: its arguments select training, demos, evaluation, reset or dry run.

Each step reaches the observers before the next action is issued; the episode's `End` follows last.
A robot that is silent when it has to act, a failed reading, a reading that does not fit its spec
(NaN, wrong shape, missing camera) or that an observer refuses, and an unusable reward (NaN, beyond
1e6) stop the robot and truncate the episode; `End` then repeats the last good observation. An
episode whose first reading does not fit never begins. A stop by the operator, and a device that
times out while the operator controls the arm, stop the robot as well. A robot stopped for any other
reason ends the episode, as actions have no effect.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from serl.clock import Clock
from serl.errors import SerlError, Silent
from serl.intervention import ENDINGS, Event, NoOperator, Teleop, arbitrate
from serl.policy import Policy
from serl.robot import GuardedRobot, Robot
from serl.specs import check_reward
from serl.task import TaskView
from serl.types import (
    UNJUDGED,
    Action,
    ActionSource,
    End,
    EndReason,
    Key,
    Observation,
    Outcome,
    Record,
    Step,
    parse_reason,
    reason_text,
)

LIVE = "human, live"
"""Provenance of a reward that the operator changed during the episode."""


@dataclass(frozen=True, slots=True)
class EpisodeKey:
    """The part of a step's key that is the same for all steps of an episode."""

    run: str
    actor: str
    epoch: int
    episode: int

    def at(self, index: int) -> Key:
        """Return the key of the step `index`."""
        return Key(self.run, self.actor, self.epoch, self.episode, index)


@dataclass(frozen=True, slots=True)
class Result:
    """Result of an episode: number of steps, return, success, human steps and reason of its end.

    `fault` is the description of the fault, if one ended the episode.
    """

    steps: int
    reward: float
    success: bool
    human_steps: int
    reason: EndReason
    fault: str = ""

    @property
    def text(self) -> str:
        """The reason of the end as it is recorded and shown."""
        return reason_text(self.reason, self.fault)


class Observer:
    """A receiver of the readings and records of episodes; the base class ignores them all.

    The loop calls its observers in the order of their list, which is the same everywhere: first the
    log, so that a step is durable before anything else uses it and before the next action; then
    checks of readings, so that no other observer receives a bad one; then all others.
    """

    def on_begin(self, chosen_by: ActionSource) -> None:
        """Begin an episode whose actions have this source, without operator input.

        An error raised here keeps the episode from beginning.
        """

    def on_reading(self, reading: Observation) -> None:
        """Receive a reading of the robot, before it is compared with its spec.

        An error raised here stops the robot, as a fault.
        """

    def on_step(self, step: Step) -> None:
        """Receive a completed step."""

    def on_end(self, end: End) -> None:
        """Receive the end of the episode."""


class RecordCallback(Observer):
    """An observer that passes each record to a function."""

    def __init__(self, callback: Callable[[Record], object]) -> None:
        self._callback = callback

    def on_step(self, step: Step) -> None:
        """Pass on a step."""
        self._callback(step)

    def on_end(self, end: End) -> None:
        """Pass on the end."""
        self._callback(end)


def run(
    robot: Robot,
    task: TaskView,
    policy: Policy,
    clock: Clock,
    key: EpisodeKey,
    observers: Sequence[Observer],
    *,
    teleop: Teleop | None = None,
    chosen_by: ActionSource = ActionSource.POLICY,
    policy_version: Callable[[], int] = lambda: 0,
    interrupted: Callable[[], bool] = lambda: False,
    evaluates: bool = False,
) -> Result:
    """Run one episode from the current state, until the task, time, a person or a fault ends it.

    `policy` acts, as `chosen_by`, unless `teleop` takes over. `interrupted` is called once per
    step, and may block; True ends the episode. With `evaluates`, rewards and penalties of the
    operator are recorded as evaluations of the recent steps, and change no reward. The module's
    docstring describes faults.

    Raises:
        SpecMismatch: the first reading does not fit its spec; the robot was stopped.
    """
    teleop = teleop or NoOperator()
    for observer in observers:
        observer.on_begin(chosen_by)
    clock.start()
    reading = read_robot(robot, observers)
    task.begin(reading)
    teleop.begin()
    observation = _observation(task, reading)
    total, human_steps, index, reason = 0.0, 0, 0, None
    while reason is None:
        requested = policy(observation)
        chosen, source = arbitrate(requested, chosen_by, teleop())
        version, issued_s, wall_s = policy_version(), clock.now_s(), time.time()
        executed, silence = _act(robot, chosen, source)
        clock.wait()
        halted = interrupted()  # first, as it may block: the next action answers a new reading
        successor, outcome, error = _observe(robot, task, index, observers, silence)
        events = teleop.events()
        if Event.STOP in events or Event.LOST in events:
            robot.stop(", ".join(ENDINGS[event] for event in events if event in ENDINGS))
        outcome, reason = _apply(outcome, events, halted, error, evaluates)
        outcome = outcome.shaped()  # after the operator, who may terminate the episode
        step = Step(
            key=key.at(index),
            observation=observation,
            requested=np.asarray(requested, np.float32),
            action=executed,
            reward=outcome.reward,
            reward_provenance=outcome.provenance,
            terminated=outcome.terminated,
            truncated=outcome.truncated,
            source=source,
            policy_version=version,
            monotonic_s=issued_s,
            wall_s=wall_s,
        )
        for observer in observers:
            observer.on_step(step)
        index += 1
        total += outcome.reward
        human_steps += source is ActionSource.HUMAN
        observation = successor or observation
    if source is ActionSource.HUMAN and isinstance(robot, GuardedRobot):
        robot.drive_as(ActionSource.SCRIPT)  # closing the log takes time, and misses no person
    fault, now_s = _description(error) if error else "", clock.now_s()
    end = End(key.at(index), observation, outcome.success, reason, now_s, time.time(), fault)
    for observer in observers:
        observer.on_end(end)
    return Result(index, total, outcome.success, human_steps, reason, fault)


def read_robot(robot: Robot, observers: Sequence[Observer]) -> Observation:
    """Return the newest reading; stop the robot and raise if it does not fit or is refused."""
    reading = robot.observe()
    try:
        for observer in observers:
            observer.on_reading(reading)
        robot.observation_spec.validate_observation(reading)
    except SerlError as error:
        robot.stop(str(error))
        raise
    return reading


def _observation(task: TaskView, reading: Observation) -> Observation:
    observation = task.observation(reading)
    task.observation_spec.validate_observation(observation)
    return observation


def _act(robot: Robot, action: Action, source: ActionSource) -> tuple[Action, Silent | None]:
    """Return the executed action; of a silent robot zeros and the error, which stops it."""
    try:
        if isinstance(robot, GuardedRobot):
            robot.drive_as(source)
        return robot.act(action), None
    except Silent as error:
        robot.stop(_description(error))
        return np.zeros_like(action), error


def _observe(
    robot: Robot,
    task: TaskView,
    index: int,
    observers: Sequence[Observer],
    silence: Silent | None,
) -> tuple[Observation | None, Outcome, SerlError | None]:
    """Return the next observation and its outcome; of a fault the error, which stops the robot."""
    try:
        if silence:
            raise silence
        reading = read_robot(robot, observers)
        observation, outcome = _observation(task, reading), task.outcome(reading, index)
        check_reward(outcome.reward)
        if robot.stop_reason and not outcome.terminated:
            raise SerlError(f"the robot was stopped: {robot.stop_reason}")
        return observation, outcome, None
    except SerlError as error:
        robot.stop(_description(error))
        return None, Outcome(truncated=True, provenance=UNJUDGED), error


def _description(error: SerlError) -> str:
    return str(error) or type(error).__name__


def _apply(
    outcome: Outcome,
    events: tuple[Event, ...],
    interrupted: bool,
    error: SerlError | None,
    evaluates: bool,
) -> tuple[Outcome, EndReason | None]:
    """Return the outcome after the operator's events, and the reason if the episode ends."""
    if error is not None:
        reason, _ = parse_reason(_description(error))
        return outcome, reason if reason.is_fault else EndReason.FAULT
    if given := (Event.REWARD in events) - (Event.PENALTY in events):
        live = replace(outcome, reward=outcome.reward + given, provenance=LIVE)
        outcome = outcome.evaluated(given) if evaluates else live
    cut = [reason for event, reason in ENDINGS.items() if event in events]
    ended = replace(outcome, terminated=False, truncated=True, success=False)
    labelled = replace(ended, terminated=True, truncated=False, provenance="human")
    if Event.DISCARD in events:
        return ended, cut[0]
    if Event.SUCCESS in events:
        return replace(labelled, reward=1.0, success=True), EndReason.SUCCESS
    if Event.FAILURE in events:
        return replace(labelled, reward=0.0), EndReason.FAILURE
    if outcome.terminated:
        return outcome, EndReason.SUCCESS if outcome.success else EndReason.FAILURE
    if cut or interrupted:
        return ended, cut[0] if cut else EndReason.INTERRUPTED
    return outcome, EndReason.TIME_LIMIT if outcome.truncated else None
