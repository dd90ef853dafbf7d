"""Initial width of a policy and correlation of its exploration noise."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from serl.agents.exploration import ExplorationNoise

from .conftest import ACTION, ROWS, make, make_batch, observation


def drawn(correlation: float, count: int) -> torch.Tensor:
    noise = ExplorationNoise(torch.Generator().manual_seed(0), correlation)
    return torch.stack([noise.draw(torch.Size([ACTION])) for _ in range(count)])


@pytest.mark.parametrize("correlation", [0.0, 0.9])
def test_noise_is_standard_normal_with_requested_correlation(correlation: float) -> None:
    noise = drawn(correlation, 20_000)
    assert noise.mean().item() == pytest.approx(0.0, abs=0.06)
    assert noise.std().item() == pytest.approx(1.0, abs=0.03)
    for lag in (1, 3):
        found = (noise[lag:] * noise[:-lag]).mean().item()
        assert found == pytest.approx(correlation**lag, abs=0.06)


def test_uncorrelated_noise_equals_generator_output() -> None:
    generator = torch.Generator().manual_seed(0)
    expected = torch.stack([torch.randn(ACTION, generator=generator) for _ in range(2)])
    assert torch.equal(drawn(0.0, 2), expected)


def test_correlated_exploration_keeps_policy_mode() -> None:
    independent, correlated = make(), make(noise_correlation=0.95)
    seen = observation()
    assert np.array_equal(independent.act(seen, False), correlated.act(seen, False))
    steps = [
        np.abs(np.diff([agent.act(seen, explore=True) for _ in range(300)], axis=0)).mean()
        for agent in (independent, correlated)
    ]
    assert steps[1] < 0.5 * steps[0]


@pytest.mark.parametrize("per_dimension", [-0.5, -1.5])
def test_policy_can_start_at_target_entropy(per_dimension: float) -> None:
    agent = make(entropy_per_dimension=per_dimension, initial_std="target")
    assert agent.target_entropy == per_dimension * ACTION
    entropy = np.mean([agent.update(make_batch(seed))["entropy"] for seed in range(5)])
    assert entropy == pytest.approx(agent.target_entropy, abs=0.6)
    assert make().update(make_batch())["entropy"] > 1.0


def test_target_entropy_in_nats_overrides_per_dimension() -> None:
    assert make(target_entropy=-7.0, entropy_per_dimension=-1.0).target_entropy == -7.0


def test_cloning_keeps_initial_standard_deviation() -> None:
    agent = make(initial_std=0.1, bc_warm_start=50, learning_rate=3e-3)
    for _ in range(50):
        agent.update(make_batch())
    tensors = agent._tensors(make_batch(rows=ROWS))
    head = agent.networks.actor(agent.actor.flat, tensors.state)[0]
    spread = head[:, ACTION:].exp()
    assert 0.05 < spread.min().item() < spread.max().item() < 0.2


def test_temperature_can_have_its_own_learning_rate() -> None:
    for rate in (3e-3, 0.0, None):
        agent = make(temperature_learning_rate=rate, learning_rate=1e-4)
        before = agent.temperature.flat.item()
        agent.update(make_batch())
        moved = abs(agent.temperature.flat.item() - before)
        assert moved == pytest.approx(1e-4 if rate is None else rate, rel=0.02)
