"""Conformance tests of tasks."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

from serl.policy import ZeroPolicy
from serl.robot import Robot, SimulatedRobot
from serl.task import SimulatedTask, Task, TaskConfig
from serl.testing.samples import contents, episode, equal
from serl.types import End, EndReason, Observation, Outcome, Step


class TaskSuite(ABC):
    """Conformance tests of `serl.task.Task`, on a robot at a start state."""

    @abstractmethod
    def make(self) -> tuple[Robot, Task]:
        """Return a robot at a start state, and its task."""

    def test_it_fits_the_robot(self) -> None:
        """Check that the task has a name and a configuration, and the action spec of the robot."""
        robot, task = self.make()
        assert task.name
        assert isinstance(task.config, TaskConfig)
        assert task.config.max_steps >= 1
        assert robot.action_spec == task.config.action_spec

    def test_observations_fit_their_spec(self) -> None:
        """Check that observations fit, in declared order, and the reading is not modified."""
        robot, task = self.make()
        reading = robot.observe()
        before = contents(reading)
        task.begin(reading)
        observation = task.observation(reading)
        task.observation_spec.validate_observation(observation)
        assert list(observation.state) == list(task.observation_spec.state), "order"
        assert equal(contents(reading), before), "observation changed the reading"

    def test_the_time_limit_truncates(self) -> None:
        """Check that an episode is not over at its start, and truncated at its time limit."""
        robot, task = self.make()
        reading = robot.observe()
        task.begin(reading)
        first = task.outcome(reading, 0)
        assert not first.terminated, "over at the start"
        assert not first.truncated, "cut at the start"
        last = task.outcome(reading, task.config.max_steps - 1)
        assert last.truncated, "not over at the time limit"
        assert not last.terminated, "the time limit is not an end of the task"

    def test_a_reset_acts_like_any_policy(self) -> None:
        """Check that `reset` returns None or a policy whose actions fit the robot's spec."""
        robot, task = self.make()
        reading = robot.observe()
        task.begin(reading)
        policy = task.reset(reading)
        if policy is not None:
            action = policy(reading)
            robot.action_spec.validate_array(action, "action of the reset")


class SimulatedTaskSuite(TaskSuite):
    """Further conformance tests of `serl.task.SimulatedTask`.

    Attributes:
        seeds: seeds of the starts that the expert must solve.
    """

    seeds: tuple[int, ...] = (0, 1, 2)

    @abstractmethod
    def make(self) -> tuple[SimulatedRobot, SimulatedTask]:
        """Return a simulated robot and its task."""

    def test_starts_are_drawn_from_the_generator(self) -> None:
        """Check that equal generators give equal starts, with quaternions of norm 1."""
        place = self.make()[1].scene.place
        first, again = place(np.random.default_rng(0)), place(np.random.default_rng(0))
        other = place(np.random.default_rng(1))
        assert np.array_equal(first.tcp, again.tcp)
        assert equal(first.bodies, again.bodies)
        assert not (np.array_equal(first.tcp, other.tcp) and equal(first.bodies, other.bodies))
        for pose in (first.tcp, *first.bodies.values()):
            assert pose.shape == (7,)
            assert abs(np.linalg.norm(pose[3:]) - 1.0) < 1e-6, "quaternion not of norm 1"

    def test_a_start_is_not_a_success(self) -> None:
        """Check that no start state counts as solved."""
        robot, task = self.make()
        for seed in self.seeds:
            robot.reset(seed)
            truth = robot.truth()
            assert not task.is_success(truth), f"seed {seed}: solved at the start"
            assert 0.0 <= task.progress(truth) < 1.0, f"seed {seed}: progress out of range"

    def test_doing_nothing_ends_at_the_time_limit(self) -> None:
        """Check that zero actions lead to truncation at the time limit, without success."""
        robot, task = self.make()
        *steps, end = episode(robot, task, ZeroPolicy(robot.action_spec))
        assert isinstance(end, End)
        assert (end.reason, end.success) == (EndReason.TIME_LIMIT, False)
        assert len(steps) == task.config.max_steps
        assert not any(step.terminated for step in steps if isinstance(step, Step))

    def test_the_expert_solves_it(self) -> None:
        """Check that the expert succeeds by the ground truth, in time, with growing progress."""
        robot, task = self.make()
        for seed in self.seeds:
            robot.reset(seed)
            before = task.progress(robot.truth())
            end = episode(robot, task, task.expert(robot.truth, seed), seed)[-1]
            assert isinstance(end, End)
            assert end.success, f"seed {seed}: the expert ended with: {end.text}"
            assert task.is_success(robot.truth()), f"seed {seed}: not solved by the truth"
            assert before < task.progress(robot.truth()) <= 1.0, f"seed {seed}: no progress"

    def test_a_success_is_true(self) -> None:
        """Check that a success agrees with the truth, terminates and is not truncated as well."""
        robot, task = self.make()
        judged = _OutcomeRecorder(task, robot)
        episode(robot, judged, task.expert(robot.truth, 0), self.seeds[0])
        assert judged.outcomes
        for outcome, solved in judged.outcomes:
            assert np.isfinite(outcome.reward), "the reward is not finite"
            assert outcome.success <= solved, "a success that the truth does not confirm"
            assert outcome.terminated >= outcome.success, "a success must terminate"
            assert not (outcome.terminated and outcome.truncated), "ended twice"

    def test_an_episode_can_be_repeated(self) -> None:
        """Check that equal starts and actions give equal records: `begin` clears all state."""
        robot, task = self.make()
        first, again = (
            episode(robot, task, task.expert(robot.truth, 0), self.seeds[0]) for _ in range(2)
        )
        assert len(first) == len(again), "another number of steps"
        for a, b in zip(first, again, strict=True):
            assert equal(a.observation.state, b.observation.state), "other observations"
            if isinstance(a, Step) and isinstance(b, Step):
                assert np.array_equal(a.action, b.action), "other actions"
                assert (a.reward, a.terminated, a.truncated) == (
                    b.reward,
                    b.terminated,
                    b.truncated,
                )

    def test_training_defaults_are_named(self) -> None:
        """Check that the tuned settings are overrides by name."""
        defaults = self.make()[1].training_defaults()
        assert all(isinstance(name, str) for name in defaults)


class _OutcomeRecorder:
    """A task wrapper that records each outcome together with the ground truth at that step."""

    def __init__(self, task: SimulatedTask, robot: SimulatedRobot) -> None:
        self._task, self._robot = task, robot
        self.name, self.config = task.name, task.config
        self.observation_spec = task.observation_spec
        self.begin, self.observation, self.reset = task.begin, task.observation, task.reset
        self.outcomes: list[tuple[Outcome, bool]] = []

    def outcome(self, reading: Observation, index: int) -> Outcome:
        outcome = self._task.outcome(reading, index)
        self.outcomes.append((outcome, self._task.is_success(self._robot.truth())))
        return outcome
