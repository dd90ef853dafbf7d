from __future__ import annotations

import numpy as np
import pytest
import torch

from serl.agents.bc import BC
from serl.agents.sac import SAC
from serl.errors import SpecMismatch

from .conftest import ACTION, ROWS, SPEC, config, equal, make_batch, observation


def make(**settings: object) -> BC:
    return BC.create(SPEC, config(algorithm="bc", **settings), 0)  # type: ignore[return-value]


def test_bc_clones_only_prior_actions() -> None:
    agent = make(utd=1, learning_rate=1e-2)
    batch = make_batch(rows=ROWS)
    batch.prior[:] = np.arange(ROWS) % 2 == 0
    for _ in range(150):
        agent.update(batch)
    tensors = agent._tensors(batch)
    mode = agent.networks.sample(agent.actor.flat, tensors.state, torch.zeros_like(tensors.action))[
        2
    ]
    error = (mode - tensors.action).abs().max(1).values.detach().numpy()
    assert error[batch.prior].max() < 0.1
    assert error[~batch.prior].mean() > 0.3


def test_bc_with_likelihood_loss_learns_action_spread() -> None:
    agent = make(utd=1, learning_rate=1e-2, bc_loss="nll")
    rng = np.random.default_rng(0)
    for _ in range(250):
        batch = make_batch(rows=ROWS)
        batch.prior[:] = True
        raw = 0.5 + np.array([0.02, 0.1, 0.5]) * rng.standard_normal((ROWS, ACTION))
        batch.action[:] = np.tanh(raw)
        agent.update(batch)
    mean, log_std = agent.networks.head(agent.actor.flat, agent._tensors(batch).state)
    assert (mean - 0.5).abs().mean().item() < 0.15
    spread = log_std.exp().mean(0).tolist()
    assert spread == pytest.approx([0.02, 0.1, 0.5], rel=0.6)


def test_bc_update_changes_only_the_actor() -> None:
    agent = make(utd=2)
    before = agent.state_dict()
    agent.update(make_batch(rows=2 * ROWS))
    changed = {n for n, now in agent.state_dict().items() if not np.array_equal(now, before[n])}
    assert {name.split(".")[0] for name in changed} == {"actor", "adam", "updates"}
    assert not any(name.startswith("adam.critic") for name in changed)
    assert agent.actor.steps.item() == 2


def test_bc_skips_and_counts_updates_that_are_not_finite() -> None:
    agent = make(utd=1)
    batch = make_batch(rows=ROWS)
    batch.action[:] = np.nan
    before = agent.actor_weights()
    assert agent.update(batch)["skipped"] == 1.0
    assert agent.update(batch)["skipped"] == 2.0
    assert equal(before, agent.actor_weights())


def test_bc_refuses_batch_of_wrong_size() -> None:
    with pytest.raises(SpecMismatch, match="expected"):
        make().update(make_batch(rows=3))


def test_bc_explores_near_its_mode() -> None:
    agent = make(utd=1)
    seen = observation()
    mode = agent.act(seen, explore=False)
    explored = np.stack([agent.act(seen, explore=True) for _ in range(200)])
    assert 0.03 < np.abs(explored - mode).mean(0).max() < 0.08


def test_sac_started_from_bc_explores_near_its_mode() -> None:
    clone, heir = make(), SAC.create(SPEC, config(), 1)
    heir.load_actor_weights(clone.actor_weights())
    seen = observation()
    explored = np.stack([heir.act(seen, explore=True) for _ in range(200)])
    assert np.abs(explored - clone.act(seen, explore=False)).mean() < 0.08
    assert np.abs(explored).max() <= 1.0
