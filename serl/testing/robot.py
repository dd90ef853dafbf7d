"""Conformance tests of robots."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import partial

import numpy as np

from serl.errors import BadInput
from serl.policy import RandomPolicy
from serl.robot import Robot, SimulatedRobot
from serl.testing.samples import assert_refused, contents, copies, equal
from serl.types import Action, Array

_STILL_M = 2e-3


class RobotSuite(ABC):
    """Conformance tests of `serl.robot.Robot`.

    The tests move the robot by single steps in any direction.
    """

    @abstractmethod
    def make(self) -> Robot:
        """Return a robot that is ready to move."""

    def pass_period(self, robot: Robot) -> None:  # noqa: B027 - time passes without it
        """Let a control period pass; overridden for real-time robots."""

    def test_is_a_robot(self) -> None:
        """Check that all members exist and the context manager returns the robot itself."""
        robot = self.make()
        assert isinstance(robot, Robot), "a member of serl.robot.Robot is missing"
        with robot as entered:
            assert entered is robot, "__enter__ must return the robot itself"

    def test_action_spec(self) -> None:
        """Check that actions are float32 vectors in [-1, 1]."""
        with self.make() as robot:
            spec = robot.action_spec
        assert len(spec.shape) == 1
        assert (spec.dtype, spec.low, spec.high) == ("float32", -1.0, 1.0)

    def test_readings_fit_their_spec(self) -> None:
        """Check that readings fit their spec, with names in declared order, and have stamps."""
        with self.make() as robot:
            spec = robot.observation_spec
            for _ in range(3):
                reading = robot.observe()
                spec.validate_observation(reading)
                assert list(reading.state) == list(spec.state), "order differs from the spec's"
                assert reading.stamps, "a reading needs a stamp"
                self.pass_period(robot)

    def test_stamps_never_go_back(self) -> None:
        """Check that the stamps of each source are finite and monotonic."""
        with self.make() as robot:
            before = robot.observe().stamps
            for _ in range(3):
                self.pass_period(robot)
                after = robot.observe().stamps
                assert np.isfinite(list(after.values())).all()
                assert all(after[source] >= stamp for source, stamp in before.items())
                before = after

    def test_a_reading_never_changes(self) -> None:
        """Check that a reading does not change while the robot moves."""
        with self.make() as robot:
            reading = robot.observe()
            copy = contents(reading)
            for _ in range(3):
                robot.act(np.ones(robot.action_spec.shape, np.float32))
                self.pass_period(robot)
                robot.observe()
            assert equal(contents(reading), copy), "an earlier reading changed"

    def test_act_returns_the_executed_action(self) -> None:
        """Check that `act` returns an action in [-1, 1] and does not modify its argument."""
        with self.make() as robot:
            spec = robot.action_spec
            choose = RandomPolicy(spec, seed=0)
            for extreme in (0.0, 1.0, -1.0, None):
                action = (
                    choose(robot.observe())
                    if extreme is None
                    else np.full(spec.shape, extreme, np.float32)
                )
                given = action.copy()
                executed = robot.act(action)
                spec.validate_array(executed, "executed action")
                assert np.array_equal(action, given), "act changed its argument"
                self.pass_period(robot)

    def test_act_refuses_nonsense(self) -> None:
        """Check that NaN, values out of range and wrong shapes raise `BadInput`."""
        with self.make() as robot:
            (size,) = robot.action_spec.shape
            for action in (
                np.full(size, np.nan, np.float32),
                np.full(size, 1.5, np.float32),
                np.zeros(size + 1, np.float32),
            ):
                assert_refused(BadInput, partial(robot.act, action), f"act({action})")

    def test_stop_keeps_actions_from_the_robot(self) -> None:
        """Check that a stopped robot executes no action but gives readings; two stops are safe."""
        with self.make() as robot:
            robot.stop("first")
            robot.stop("second")
            executed = robot.act(np.ones(robot.action_spec.shape, np.float32))
            assert not executed.any(), "a stopped robot executed an action"
            robot.observation_spec.validate_observation(robot.observe())
            assert robot.stop_reason == "first", "the first reason is to be kept"
            robot.recover()
            assert not robot.stop_reason, "a recovered robot still has a stop reason"


class SimulatedRobotSuite(RobotSuite):
    """Further conformance tests of `serl.robot.SimulatedRobot`."""

    period_s = 0.1

    @abstractmethod
    def make(self) -> SimulatedRobot:
        """Return a simulated robot."""

    def pass_period(self, robot: Robot) -> None:
        """Advance simulated time by one period."""
        assert isinstance(robot, SimulatedRobot), "a member of SimulatedRobot is missing"
        robot.advance(self.period_s)

    def test_equal_seeds_place_equal_starts(self) -> None:
        """Check that equal seeds give equal starts, even after use, and different seeds do not."""
        robot = self.make()
        first = copies(robot.reset(1).state)
        self._drive(robot, seed=3)
        robot.stop("to be forgotten")
        assert equal(robot.reset(1).state, first), "the same seed gave another start"
        assert not equal(robot.reset(2).state, first), "another seed gave the same start"

    def test_the_same_actions_lead_to_the_same_place(self) -> None:
        """Check that equal actions give bitwise equal readings, in a new and in a used robot."""
        robot, other = self.make(), self.make()
        first = self._drive(robot, seed=1)
        assert equal(self._drive(robot, seed=1), first), "a second run went elsewhere"
        assert equal(self._drive(other, seed=1), first), "an equal robot went elsewhere"

    def test_time_passes_in_advance_only(self) -> None:
        """Check that stamps are constant without `advance`, and grow by its time step with it."""
        robot = self.make()
        before = robot.reset(0)
        robot.act(np.ones(robot.action_spec.shape, np.float32))
        stamp_s = before.stamps["robot"]
        assert robot.observe().stamps["robot"] == stamp_s, "time passed by itself"
        robot.advance(self.period_s)
        passed_s = robot.observe().stamps["robot"] - stamp_s
        assert abs(passed_s - self.period_s) < 1e-6, f"{passed_s} s passed in {self.period_s} s"

    def test_a_stopped_robot_does_not_move(self) -> None:
        """Check that no action moves a stopped robot after braking, and `recover` allows motion."""
        robot = self.make()
        robot.reset(0)
        action = RandomPolicy(robot.action_spec, seed=0)(robot.observe())
        self._push(robot, action)
        robot.stop("test")
        self._push(robot, action)
        before = self._places(robot)
        self._push(robot, action)
        moved_m = np.abs(self._places(robot) - before).max()
        assert moved_m < _STILL_M, f"moved by {moved_m} m while stopped"
        robot.recover()
        self._push(robot, action)
        moved_m = np.abs(self._places(robot) - before).max()
        assert moved_m > _STILL_M, "does not move after recover"

    def test_the_truth_is_named_arrays(self) -> None:
        """Check that the truth consists of finite float32 arrays that do not change later."""
        robot = self.make()
        robot.reset(0)
        truth = robot.truth()
        copy = copies(truth)
        assert all(value.dtype == np.float32 for value in truth.values())
        assert all(np.isfinite(value).all() for value in truth.values())
        self._push(robot, RandomPolicy(robot.action_spec, seed=0)(robot.observe()))
        assert not equal(robot.truth(), copy), "the truth does not follow the robot"
        assert equal(truth, copy), "an earlier truth changed"

    def _push(self, robot: SimulatedRobot, action: Action) -> None:
        for _ in range(5):
            robot.act(action)
            robot.advance(self.period_s)

    def _drive(self, robot: SimulatedRobot, seed: int) -> dict[str, Array]:
        choose = RandomPolicy(robot.action_spec, seed)
        reading = robot.reset(seed)
        for _ in range(10):
            robot.act(choose(reading))
            robot.advance(self.period_s)
            reading = robot.observe()
        return copies(reading.state)

    def _places(self, robot: SimulatedRobot) -> Array:
        """Return all state whose unit begins with metres, as one vector."""
        places = [
            robot.observe().state[name]
            for name, spec in robot.observation_spec.state.items()
            if spec.unit.replace(",", " ").split()[:1] == ["m"]
        ]
        assert places, 'no state array has a unit that begins with "m"'
        return np.concatenate(places)
