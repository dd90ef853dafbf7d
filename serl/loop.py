"""The only control loop: training, demonstration, evaluation, reset and dry run are arguments."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from serl.clock import Clock
from serl.errors import SerlError, SpecMismatch
from serl.intervention import ENDINGS, Event, HandsOff, Teleop, arbitrate
from serl.policy import Policy
from serl.robot import Guarded, Robot
from serl.specs import check_reward
from serl.task import TaskView
from serl.types import ActionSource, End, Key, Observation, Outcome, Record, Step

Sink = Callable[[Record], None]

LIVE = "human, live"
"""Provenance of a reward that a person has changed while the episode went on."""


@dataclass(frozen=True, slots=True)
class EpisodeKey:
    """What the keys of an episode's steps share."""

    run: str
    actor: str
    epoch: int
    episode: int

    def at(self, index: int) -> Key:
        """The key of the step `index`."""
        return Key(self.run, self.actor, self.epoch, self.episode, index)


@dataclass(frozen=True, slots=True)
class Result:
    """How an episode went: number of steps, return, success, human steps, and why it ended."""

    steps: int
    reward: float
    success: bool
    human_steps: int
    reason: str


def run(
    robot: Robot,
    task: TaskView,
    policy: Policy,
    clock: Clock,
    key: EpisodeKey,
    sink: Sink,
    *,
    teleop: Teleop | None = None,
    chosen_by: ActionSource = ActionSource.POLICY,
    policy_version: Callable[[], int] = lambda: 0,
    interrupted: Callable[[], bool] = lambda: False,
) -> Result:
    """Run one episode from where the robot is, until the task, time, a person or a fault ends it.

    Each step reaches `sink` before the next action is issued; the episode's `End` closes it.
    A robot that cannot be read, a reading that does not fit its spec (NaN, wrong shape, missing
    camera) or a reward that nothing can be learned from (NaN, beyond 1e6) stops the robot and
    truncates the episode; the last good observation then closes it. An episode whose first reading
    does not fit never begins. A person's stop, and a device that fell silent in a person's hand,
    stop the robot as well. Whoever else stops it ends the episode: no action would have any effect.

    Args:
        robot: what is driven.
        task: what is seen, and what counts as done.
        policy: what acts while hands are off.
        clock: keeps the control rate.
        key: identity of the episode.
        sink: takes every record.
        teleop: a person, who may take over at any step.
        chosen_by: the source that `policy` stands for.
        policy_version: version of the weights in use.
        interrupted: asked once a step; True ends the episode as truncated.

    Raises:
        SpecMismatch: the first reading does not fit its spec; the robot was stopped.
    """
    teleop = teleop or HandsOff()
    drive_as = robot.drive_as if isinstance(robot, Guarded) else lambda source: None
    clock.start()
    reading = _checked(robot)
    task.begin(reading)
    teleop.begin()
    observation = _seen(task, reading)
    total, human_steps, index = 0.0, 0, 0
    while True:
        requested = policy(observation)
        chosen, source = arbitrate(requested, chosen_by, teleop())
        version, issued_s, wall_s = policy_version(), clock.now_s(), time.time()
        drive_as(source)
        executed = robot.act(chosen)
        clock.wait()
        successor, outcome, fault = _observe(robot, task, index)
        halted, said = interrupted(), teleop.events()  # in this order, for it may wait
        if Event.STOP in said or Event.LOST in said:
            robot.stop(", ".join(ENDINGS[event] for event in said if event in ENDINGS))
        outcome, reason = _ending(outcome, said, halted, fault)
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
        sink(step)
        index += 1
        total += outcome.reward
        human_steps += source is ActionSource.HUMAN
        observation = successor or observation
        if outcome.terminated or outcome.truncated:
            end = End(
                key.at(index), observation, outcome.success, reason, clock.now_s(), time.time()
            )
            sink(end)
            return Result(index, total, outcome.success, human_steps, reason)


def _checked(robot: Robot) -> Observation:
    """The newest reading, once it is known to fit; the robot is stopped when it does not."""
    reading = robot.observe()
    try:
        robot.observation_spec.validate_observation(reading)
    except SpecMismatch as error:
        robot.stop(str(error))
        raise
    return reading


def _seen(task: TaskView, reading: Observation) -> Observation:
    observation = task.observation(reading)
    task.observation_spec.validate_observation(observation)
    return observation


def _observe(robot: Robot, task: TaskView, index: int) -> tuple[Observation | None, Outcome, str]:
    """The successor and its outcome, or the fault that made the reading useless."""
    try:
        reading = _checked(robot)
        observation, outcome = _seen(task, reading), task.outcome(reading, index)
        check_reward(outcome.reward)
        if robot.stop_reason and not outcome.terminated:
            raise SerlError(f"the robot was stopped: {robot.stop_reason}")
        return observation, outcome, ""
    except SerlError as error:
        fault = str(error) or type(error).__name__
        robot.stop(fault)
        return None, Outcome(truncated=True), fault


def _ending(
    outcome: Outcome, events: tuple[Event, ...], interrupted: bool, fault: str
) -> tuple[Outcome, str]:
    """The outcome with a person's word applied, and why the episode ends (empty: it does not)."""
    if fault:
        return outcome, fault
    if given := (Event.REWARD in events) - (Event.PENALTY in events):
        outcome = replace(outcome, reward=outcome.reward + given, provenance=LIVE)
    cut = [reason for event, reason in ENDINGS.items() if event in events]
    ended = Outcome(outcome.reward, truncated=True, provenance=outcome.provenance)
    if Event.DISCARD in events:
        return ended, cut[0]
    if Event.SUCCESS in events:
        return Outcome(1.0, terminated=True, success=True, provenance="human"), "success"
    if Event.FAILURE in events:
        return Outcome(0.0, terminated=True, provenance="human"), "failure"
    if outcome.terminated:
        return outcome, "success" if outcome.success else "failure"
    if cut or interrupted:
        return ended, cut[0] if cut else "interrupted"
    return outcome, "time limit" if outcome.truncated else ""
