from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from serl.geometry import from_rotation_vector
from serl.reward import (
    Judgement,
    NoReward,
    PoseReward,
    RewardConfig,
    RewardedTask,
    StageReward,
)
from serl.testing import FakeRobot, FakeTask
from serl.testing.samples import episode
from serl.topic_reward import TimedNumber, TopicReward
from serl.types import Observation, Outcome, Step

SURE = 0.9


def reading(x: float = 0.0, turn_rad: float = 0.0) -> Observation:
    pose = (x, 0.0, 0.2, *from_rotation_vector((0.0, 0.0, turn_rad)))
    return Observation({"tcp_pose": np.array(pose, np.float32)})


class ScriptedClassifier:
    """Classifier that predicts the given classes one after the other."""

    def __init__(self, *classes: int, count: int = 2) -> None:
        self.left, self.count = list(classes), count

    def __call__(self, reading: Observation) -> np.ndarray[Any, Any]:
        result = np.full(self.count, (1.0 - SURE) / (self.count - 1))
        result[self.left.pop(0)] = SURE
        return result


def judgements_of(classes: tuple[int, ...], count: int = 2, **settings: Any) -> list[Judgement]:
    config = RewardConfig(**settings)
    reward = StageReward(ScriptedClassifier(*classes, count=count), count - 1, config, 0.5)
    reward.begin(reading())
    return [reward(reading()) for _ in classes]


def test_stage_reward_needs_success_in_k_of_n_steps() -> None:
    result = judgements_of((1, 0, 0, 1, 0, 1, 1), hold=(2, 3))
    assert [judgement.success for judgement in result] == [False] * 5 + [True, False]
    assert result[5] == Judgement(1.0, True)


def test_stage_reward_with_one_of_one_succeeds_at_once() -> None:
    assert judgements_of((0, 1), hold=(1, 1))[1] == Judgement(1.0, True)


def test_stage_reward_ignores_success_below_threshold() -> None:
    reward = StageReward(ScriptedClassifier(1, 1, 1), 1, RewardConfig(hold=(1, 1)), SURE + 0.01)
    reward.begin(reading())
    assert reward(reading()) == Judgement()


def test_stages_are_rewarded_once_and_in_order() -> None:
    result = judgements_of((2, 1, 1, 1, 3, 2, 3, 3), count=4, hold=(1, 1))
    assert [round(judgement.reward, 3) for judgement in result] == [
        0,
        0.333,
        0,
        0,
        0,
        0.333,
        0.333,
        0,
    ]
    assert [judgement.success for judgement in result] == [False] * 6 + [True, False]


def test_stage_reward_forgets_earlier_steps_at_begin_of_episode() -> None:
    reward = StageReward(ScriptedClassifier(1, 1, 1), 1, RewardConfig(hold=(2, 3)), 0.5)
    reward.begin(reading())
    reward(reading())
    reward.begin(reading())
    assert not reward(reading()).success
    assert reward(reading()).success


def test_stage_reward_ignores_classifier_outside_tool_box() -> None:
    config = RewardConfig(hold=(1, 1), tool_low_m=(0.1, -1, -1), tool_high_m=(0.2, 1, 1))
    reward = StageReward(ScriptedClassifier(1, 1, 1), 1, config, 0.5)
    reward.begin(reading())
    assert not reward(reading(0.05)).success
    assert not reward(reading(0.25)).success
    assert reward(reading(0.15)).success


@pytest.mark.parametrize(
    ("x", "turn_rad", "success"),
    [
        (0.1, 0.0, True),
        (0.109, 0.0, True),
        (0.112, 0.0, False),
        (0.1, 0.19, True),
        (0.1, -0.21, False),
        (0.1, math.pi, False),
    ],
)
def test_pose_reward_checks_position_and_rotation(x: float, turn_rad: float, success: bool) -> None:
    reward = PoseReward(
        RewardConfig(kind="pose", pose=(0.1, 0.0, 0.2, 0, 0, 0, -1), tolerance_rad=0.2)
    )
    reward.begin(reading())
    assert reward(reading(x, turn_rad)) == Judgement(float(success), success)


def test_human_reward_ignores_success_of_task() -> None:
    robot, task = FakeRobot(), RewardedTask(FakeTask(), NoReward("human"))
    records = episode(robot, task, task.expert(robot.truth, 0))
    steps = [record for record in records if isinstance(record, Step)]
    assert len(steps) == task.config.max_steps, "the success of the task ended the episode"
    assert steps[-1].truncated
    assert {step.reward for step in steps} == {0.0}
    assert {step.reward_provenance for step in steps} == {"human"}


def test_reward_ends_episode_instead_of_success_of_task() -> None:
    class Late:
        provenance = "classifier"

        def begin(self, reading: Observation) -> None:
            self.steps = 0

        def __call__(self, reading: Observation) -> Judgement:
            self.steps += 1
            return Judgement(1.0, True) if self.steps == 25 else Judgement(0.25)

    robot, task = FakeRobot(), RewardedTask(FakeTask(), Late())
    records = episode(robot, task, task.expert(robot.truth, 0))
    steps = [record for record in records if isinstance(record, Step)]
    assert [step.reward for step in steps] == [0.25] * 24 + [1.0]
    assert [step.terminated for step in steps] == [False] * 24 + [True]
    assert steps[-1].reward_provenance == "classifier"


@pytest.mark.parametrize("end", ["truncated", "terminated"])
def test_rewarded_task_keeps_truncation_and_failure_of_task(end: str) -> None:
    class Ending(FakeTask):
        def outcome(self, reading: Observation, index: int) -> Outcome:
            over = index == 3
            return Outcome(
                terminated=over and end == "terminated", truncated=over and end == "truncated"
            )

    task = RewardedTask(Ending(), NoReward("human"))
    records = episode(FakeRobot(), task, lambda observation: np.zeros(2, np.float32))
    steps = [record for record in records if isinstance(record, Step)]
    assert len(steps) == 4
    assert (steps[-1].truncated, steps[-1].terminated) == (end == "truncated", end == "terminated")


def test_failure_of_task_overrides_success_of_reward() -> None:
    class Failing(FakeTask):
        def outcome(self, reading: Observation, index: int) -> Outcome:
            return Outcome(terminated=True)

    reward = StageReward(ScriptedClassifier(1), 1, RewardConfig(hold=(1, 1)), 0.5)
    task = RewardedTask(Failing(), reward)
    task.begin(reading())
    outcome = task.outcome(reading(), 0)
    assert (outcome.reward, outcome.terminated, outcome.success) == (0.0, True, False)


UP_M, LOW_M = (0, 0, 0.2), (1, 1, 0.1)


@pytest.mark.parametrize(
    ("settings", "part"),
    [
        ({"kind": "classifier"}, "needs the file that `serl reward train` wrote"),
        ({"kind": "pose"}, "pose: expected x y z and a quaternion"),
        ({"kind": "pose", "pose": (0, 0, 0, 0, 0, 0, 0)}, "quaternion"),
        ({"hold": (3, 2)}, "expected k of n"),
        (
            {"kind": "classifier", "model": "m", "tool_low_m": UP_M, "tool_high_m": LOW_M},
            "z 0.1 m is below tool_low_m, 0.2 m",
        ),
        ({"hold": (0, 2)}, "greater than or equal to 1"),
    ],
)
def test_invalid_reward_settings_are_refused(settings: dict[str, Any], part: str) -> None:
    with pytest.raises(ValidationError, match=part):
        RewardConfig.model_validate(settings)


def test_number_from_before_the_episode_is_not_its_reward() -> None:
    now_s, numbers = 5.0, [TimedNumber(1.0, 4.9), TimedNumber(0.25, 5.0), TimedNumber(1.0, 5.1)]
    reward = TopicReward(RewardConfig(kind="topic", topic="/done"), lambda: now_s)
    reward.newest = lambda: numbers.pop(0)
    reward.begin(reading())
    assert [reward(reading()) for _ in range(3)] == [
        Judgement(0.0, False),
        Judgement(0.25, False),
        Judgement(1.0, True),
    ]
