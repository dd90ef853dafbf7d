from __future__ import annotations

import numpy as np
import pytest

from serl.policy import Policy
from serl.sim.arm import SimArm
from serl.tasks.whip_block import WhipBlock
from serl.testing.samples import episode
from serl.types import Action, End, Observation, Step

SEEDS = (0, 2, 3)


def make() -> tuple[SimArm, WhipBlock]:
    task = WhipBlock()
    return SimArm(task.scene, task.config), task


def successes(arm: SimArm, task: WhipBlock, slower: float) -> int:
    """Return the successes of the expert, its pull limited to `slower` metres per second."""
    found = 0
    for seed in SEEDS:
        expert = task.expert(arm.truth, seed)

        def drive(observation: Observation, expert: Policy = expert) -> Action:
            action: Action = expert(observation)
            speed_m_s = -float(observation.state["velocity"][0])
            return action * 0.0 if speed_m_s > slower else action

        end = episode(arm, task, drive, seed)[-1]
        assert isinstance(end, End)
        found += bool(end.success)
    return found


def test_slow_pull_drags_upper_blocks_along() -> None:
    arm, task = make()
    assert successes(arm, task, 10.0) >= 2
    assert successes(arm, task, 0.12) == 0


def test_reward_comes_only_at_end_with_stack_settled() -> None:
    arm, task = make()
    for seed in SEEDS:
        records = episode(arm, task, task.expert(arm.truth, seed), seed)
        end = records[-1]
        assert isinstance(end, End)
        if not end.success:
            continue
        rewards = [record.reward for record in records if isinstance(record, Step)]
        assert sum(rewards) == rewards[-1] == 1.0
        assert task.is_success(arm.truth())
        before = arm.truth()
        for _ in range(20):
            arm.advance(0.05)
        after = arm.truth()
        for index in range(4):
            name = f"block{index}_pose"
            assert np.abs(after[name] - before[name]).max() < 0.01, "the stack has settled"
        return
    pytest.fail("no success")


@pytest.mark.parametrize(("body", "by_m"), [("block3", 0.1), ("block0", 0.1)])
def test_fallen_block_ends_episode(body: str, by_m: float) -> None:
    arm, task = make()
    task.begin(arm.reset(1))
    assert not task.outcome(arm.observe(), 0).terminated
    arm.data.qpos[arm.model.jnt_qposadr[arm.model.body(body).jntadr[0]] + 1] += by_m
    arm.advance(0.01)
    outcome = task.outcome(arm.observe(), 0)
    assert (outcome.terminated, outcome.success, outcome.reward) == (True, False, 0.0)


def test_success_needs_upper_blocks_to_come_down() -> None:
    arm, task = make()
    task.begin(arm.reset(2))
    at = arm.model.jnt_qposadr[arm.model.body("loose").jntadr[0]]
    arm.data.qpos[at + 1] += 0.15
    arm.advance(0.01)
    assert not task.is_success(arm.truth()), "the other blocks hang in the air"
    arm.advance(1.0)
    assert task.is_success(arm.truth()), "the other blocks fell straight down"


def test_stack_stands_until_touched() -> None:
    arm, task = make()
    for seed in range(3):
        arm.reset(seed)
        before = arm.truth()
        arm.advance(2.0)
        assert not task.is_lost(arm.truth())
        for index in range(4):
            moved = arm.truth()[f"block{index}_pose"] - before[f"block{index}_pose"]
            assert np.abs(moved[:3]).max() < 0.001
