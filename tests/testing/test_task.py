"""Conformance suites for tasks: a correct fake passes, broken ones are caught."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from serl.policy import Policy, ZeroPolicy
from serl.robot import Truth
from serl.task import SimulatedTask
from serl.testing import (
    FakeRobot,
    FakeTask,
    SimulatedTaskSuite,
    failures,
)
from serl.types import Observation, Outcome


class TestFakeTask(SimulatedTaskSuite):
    def make(self) -> tuple[FakeRobot, FakeTask]:
        return FakeRobot(), FakeTask()


class OtherActionAxes(FakeTask):
    def __init__(self) -> None:
        super().__init__()
        motion = self.config.motion.model_copy(update={"axes": ("x", "y", "z")})
        self.config = self.config.model_copy(update={"motion": motion})


class ChangesTheReading(FakeTask):
    def observation(self, reading: Observation) -> Observation:
        reading.state["position"][:] = 0.0
        return reading


class HidesAnArray(FakeTask):
    def observation(self, reading: Observation) -> Observation:
        return Observation({"position": reading.state["position"]}, stamps=reading.stamps)


class NoTimeLimit(FakeTask):
    def outcome(self, reading: Observation, index: int) -> Outcome:
        return super().outcome(reading, 0)


class TimeLimitIsFailure(FakeTask):
    def outcome(self, reading: Observation, index: int) -> Outcome:
        outcome = super().outcome(reading, index)
        return Outcome(terminated=outcome.terminated or outcome.truncated, success=outcome.success)


class RewardsAnything(FakeTask):
    def outcome(self, reading: Observation, index: int) -> Outcome:
        success = index == 3
        return Outcome(float(success), success, index + 1 >= self.config.max_steps, success)


class SolvedAtOnce(FakeTask):
    def is_success(self, truth: Truth) -> bool:
        return True


class LazyExpert(FakeTask):
    def expert(self, truth: Callable[[], Truth], seed: int) -> Policy:
        return ZeroPolicy(FakeRobot.action_spec)


class NoProgress(FakeTask):
    def progress(self, truth: Truth) -> float:
        return 0.5


class BoundlessProgress(FakeTask):
    def progress(self, truth: Truth) -> float:
        return 10.0 * super().progress(truth)


class RewardDependsOnEarlierEpisodes(FakeTask):
    episodes = 0

    def begin(self, reading: Observation) -> None:
        self.episodes += 1

    def outcome(self, reading: Observation, index: int) -> Outcome:
        outcome = super().outcome(reading, index)
        return (
            outcome if outcome.success else Outcome(float(self.episodes), False, outcome.truncated)
        )


class ResetExceedsBounds(FakeTask):
    def reset(self, reading: Observation) -> Policy | None:
        return lambda observation: np.full(2, 9.0, np.float32)


@pytest.mark.parametrize(
    ("task", "caught_by"),
    [
        (OtherActionAxes, "test_it_fits_the_robot"),
        (ChangesTheReading, "test_observations_fit_their_spec"),
        (HidesAnArray, "test_observations_fit_their_spec"),
        (NoTimeLimit, "test_the_time_limit_truncates"),
        (TimeLimitIsFailure, "test_the_time_limit_truncates"),
        (TimeLimitIsFailure, "test_doing_nothing_ends_at_the_time_limit"),
        (RewardsAnything, "test_doing_nothing_ends_at_the_time_limit"),
        (RewardsAnything, "test_a_success_is_true"),
        (SolvedAtOnce, "test_a_start_is_not_a_success"),
        (LazyExpert, "test_the_expert_solves_it"),
        (NoProgress, "test_the_expert_solves_it"),
        (BoundlessProgress, "test_a_start_is_not_a_success"),
        (RewardDependsOnEarlierEpisodes, "test_an_episode_can_be_repeated"),
        (ResetExceedsBounds, "test_a_reset_acts_like_any_policy"),
    ],
)
def test_task_suite_catches_broken_tasks(task: Callable[[], SimulatedTask], caught_by: str) -> None:
    class Suite(SimulatedTaskSuite):
        def make(self) -> tuple[FakeRobot, SimulatedTask]:
            return FakeRobot(), task()

    assert caught_by in failures(Suite())
