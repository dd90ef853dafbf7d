"""Conformance suite for rewards: serl's rewards pass, broken ones are caught."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from serl.reward import Judgement, NoReward, PoseReward, Reward, RewardConfig, StageReward
from serl.testing import RewardSuite, failures
from serl.types import Observation


def readings() -> list[Observation]:
    poses = [(x_m, 0.0, 0.2, 0.0, 0.0, 0.0, 1.0) for x_m in (0.3, 0.2, 0.12, 0.1)]
    return [Observation({"tcp_pose": np.array(pose, np.float32)}) for pose in poses]


class TestPoseReward(RewardSuite):
    def make(self) -> Reward:
        return PoseReward(RewardConfig(kind="pose", pose=(0.1, 0.0, 0.2, 0, 0, 0, 1)))

    def readings(self) -> list[Observation]:
        return readings()


class TestStageReward(TestPoseReward):
    def make(self) -> Reward:
        def probabilities(reading: Observation) -> np.ndarray[Any, Any]:
            return np.array([0.1, 0.9] if reading.state["tcp_pose"][0] < 0.15 else [0.9, 0.1])

        return StageReward(probabilities, 1, RewardConfig(hold=(2, 3)), 0.5)


class TestNoReward(TestPoseReward):
    succeeds = False

    def make(self) -> Reward:
        return NoReward("human")


class Broken:
    """Reward that keeps the contract; each subclass breaks one rule of it."""

    provenance = "broken"

    def begin(self, reading: Observation) -> None:
        self.count = 0

    def __call__(self, reading: Observation) -> Judgement:
        self.count += 1
        return Judgement(float(self.count == 3), self.count == 3)


class WithoutProvenance(Broken):
    provenance = ""


class NotFinite(Broken):
    def __call__(self, reading: Observation) -> Judgement:
        return super().__call__(reading)._replace(reward=float("nan"))


class NumpyNumber(Broken):
    def __call__(self, reading: Observation) -> Judgement:
        return super().__call__(reading)._replace(reward=np.float32(0.0))  # type: ignore[arg-type]


class NeverSuccessful(Broken):
    def __call__(self, reading: Observation) -> Judgement:
        return Judgement()


class AlwaysSuccessful(Broken):
    def __call__(self, reading: Observation) -> Judgement:
        return Judgement(1.0, True)


class NeverResets(Broken):
    count = 0

    def begin(self, reading: Observation) -> None:
        pass


class WritesToReading(Broken):
    def __call__(self, reading: Observation) -> Judgement:
        reading.state["tcp_pose"][0] += 1.0
        return super().__call__(reading)


@pytest.mark.parametrize(
    ("kind", "test"),
    [
        (WithoutProvenance, "test_it_names_its_provenance"),
        (NotFinite, "test_judgements_are_numbers"),
        (NumpyNumber, "test_judgements_are_numbers"),
        (NeverSuccessful, "test_the_last_reading_ends_the_episode_as_expected"),
        (AlwaysSuccessful, "test_the_last_reading_ends_the_episode_as_expected"),
        (NeverResets, "test_an_episode_begins_anew"),
        (WritesToReading, "test_a_reading_is_only_read"),
    ],
)
def test_reward_suite_catches_broken_rewards(kind: type[Broken], test: str) -> None:
    class Suite(TestPoseReward):
        def make(self) -> Reward:
            return kind()

    assert test in failures(Suite())


def test_reward_suite_passes_correct_reward() -> None:
    class Suite(TestPoseReward):
        def make(self) -> Reward:
            return Broken()

    assert failures(Suite()) == set()
