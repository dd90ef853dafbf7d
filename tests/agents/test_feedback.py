"""Additional reward learned from operator feedback."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from serl.agents.bc import BC
from serl.agents.config import FeedbackConfig
from serl.agents.feedback import FeedbackReward
from serl.agents.hybrid import HybridSAC
from serl.agents.sac import SAC
from serl.errors import BadInput, SpecMismatch
from serl.specs import ArraySpec, ObservationSpec
from serl.testing.samples import copies, equal
from serl.types import Batch

from .conftest import ROWS, SPEC, config, make, make_batch

QUICK = FeedbackConfig(weight=0.5, learning_rate=3e-3, latent=16, hidden=16, channels=(4, 8))


def make_reward(seed: int = 0) -> FeedbackReward:
    return FeedbackReward(make(threads=1), QUICK, seed)


def praising_the_first_action(seed: int, rows: int = 2 * ROWS) -> Batch:
    """Return a batch in which half of the transitions have feedback sign(action[0])."""
    batch = make_batch(seed, rows)
    weight = np.where(np.random.default_rng(seed).random(rows) < 0.5, 0.03, 0.0)
    given = np.stack([weight, weight * np.sign(batch.action[:, 0])], 1)
    return replace(batch, feedback=given.astype(np.float32))


def without(batch: Batch) -> Batch:
    return replace(batch, feedback=np.zeros((len(batch.reward), 2), np.float32))


def trained(reward: FeedbackReward, updates: int = 100) -> FeedbackReward:
    for seed in range(updates):
        reward._learn(praising_the_first_action(seed))
    return reward


def test_feedback_reward_is_high_for_praised_actions() -> None:
    reward, seen = trained(make_reward()), make_batch(9999, 200)
    given, first = reward.rewards(seen), seen.action[:, 0]
    assert given[first > 0.4].mean() > 0.35
    assert given[first < -0.4].mean() < -0.35
    assert np.abs(given).max() <= QUICK.weight


def test_feedback_is_averaged_by_weight() -> None:
    """Give one step praise of total weight 0.3 and blame of 0.1; the average is 0.5."""
    reward, rows = make_reward(), 2 * ROWS
    same = make_batch(0, 1)
    state, action = (np.repeat(each, rows, 0) for each in (same.state, same.action))
    given = np.array([[0.15, 0.15], [0.05, -0.05], [0.2, 0.1], [0.0, 0.0]], np.float32)
    batch = replace(
        make_batch(0), state=state, action=action, feedback=np.tile(given, (rows // 4, 1))
    )
    for _ in range(100):
        reward._learn(batch)
    assert reward.rewards(batch) == pytest.approx(np.full(rows, 0.5 * QUICK.weight), abs=0.02)


def test_agent_without_feedback_learns_as_plain_agent() -> None:
    reward, alone = make_reward(), make(threads=1)
    for seed in range(3):
        batch = without(make_batch(seed))
        assert not reward.rewards(batch).any()
        assert "feedback_loss" not in reward.update(batch)
        alone.update(batch)
    assert equal(reward._agent.state_dict(), alone.state_dict())


def test_evaluations_are_of_whole_actions_of_hybrid_agent() -> None:
    moved = SPEC.action.model_copy(update={"unit": "x y gripper"})
    spec = SPEC.model_copy(update={"action": moved})
    agent = HybridSAC.create(spec, config(algorithm="hybrid", grasp_penalty=0.0), 0)
    assert "feedback_loss" in FeedbackReward(agent, QUICK, 0).update(praising_the_first_action(0))


def test_agent_learns_from_task_and_feedback_reward() -> None:
    reward, alone = trained(make_reward(), 20), make(threads=1)
    batch = without(make_batch(5))
    given = reward.rewards(batch)
    metrics = reward.update(batch)
    assert metrics["feedback_reward"] == pytest.approx(float(given.mean()))
    alone.update(replace(batch, reward=batch.reward + given))
    assert equal(reward._agent.state_dict(), alone.state_dict())
    assert "feedback_loss" in reward.update(praising_the_first_action(6))


def test_feedback_reward_learns_from_images() -> None:
    """Praise bright images independently of state and action."""
    image = ArraySpec(shape=(16, 16, 3), dtype="uint8")
    observation = ObservationSpec(state=SPEC.observation.state, images={"wrist": image})
    spec = SPEC.model_copy(update={"observation": observation})
    agent = SAC.create(spec, config(encoder_channels=(4, 8), frames=2), 0)
    reward = FeedbackReward(agent, QUICK, 0)

    def seen(seed: int) -> tuple[Batch, NDArray[np.bool_]]:
        bright = np.random.default_rng(seed).random(2 * ROWS) < 0.5
        column = np.where(bright, 200, 20).astype(np.uint8)[:, None, None, None]
        images = np.zeros((2 * ROWS, 16, 16, 6), np.uint8)
        images[:, :8, :, 3:] = column  # the newest of two frames, in its upper half
        given = np.stack([np.full(2 * ROWS, 0.1), np.where(bright, 0.1, -0.1)], 1)
        batch = replace(make_batch(seed), images={"wrist": images}, next_images={"wrist": images})
        return replace(batch, feedback=given.astype(np.float32)), bright

    for seed in range(100):
        reward._learn(seen(seed)[0])
    batch, bright = seen(999)
    given = reward.rewards(batch)
    assert given[bright].min() > given[~bright].max()
    reward.update(batch)


def test_feedback_reward_resumes_exactly_and_refuses_wrong_state() -> None:
    reward = trained(make_reward(), 3)
    reward.update(praising_the_first_action(0))
    other = make_reward(seed=7)
    other.load_state_dict(copies(reward.state_dict()))
    for each in (reward, other):
        each.update(praising_the_first_action(1))
    assert equal(reward.state_dict(), other.state_dict())
    assert reward.actor_weights().keys() == make().actor_weights().keys()
    before = copies(reward.state_dict())
    for name in ("feedback.head.1.weight", "critic.0.weight"):
        wrong: dict[str, Any] = copies(make_reward(seed=3).state_dict())
        wrong[name] = wrong[name][:-1]
        with pytest.raises(SpecMismatch, match=name):
            reward.load_state_dict(wrong)
        assert equal(reward.state_dict(), before)


def test_feedback_reward_refuses_behavior_cloning() -> None:
    with pytest.raises(BadInput, match="expected the algorithm sac or hybrid"):
        FeedbackReward(BC.create(SPEC, config(algorithm="bc"), 0), QUICK, 0)
