"""Schedule of a SAC update: which parameters change, when and how often."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

from serl.agents.config import SACConfig
from serl.agents.networks import Group
from serl.agents.sac import actor_terms
from serl.errors import SpecMismatch
from serl.types import Observation

from .conftest import ROWS, SMALL, config, make, make_batch


def test_target_networks_match_closed_form_average() -> None:
    agent = make(utd=1, tau=0.25)
    before = agent.target.clone()
    agent.update(make_batch(rows=ROWS))
    torch.testing.assert_close(agent.target, 0.75 * before + 0.25 * agent.critic.flat.detach())


@pytest.mark.parametrize("utd", [1, 3])
def test_update_takes_utd_critic_steps_and_one_actor_step(utd: int) -> None:
    agent = make(utd=utd)
    for _ in range(2):
        agent.update(make_batch(rows=utd * ROWS))
    assert agent.critic.steps.item() == 2 * utd
    assert agent.actor.steps.item() == agent.temperature.steps.item() == 2


def test_update_refuses_a_batch_of_the_wrong_size() -> None:
    with pytest.raises(SpecMismatch, match="expected 16 transitions, got 15"):
        make().update(make_batch(rows=15))


def test_critic_steps_leave_the_actor_bit_identical(monkeypatch: pytest.MonkeyPatch) -> None:
    agent = make(utd=3)
    start = agent.state_dict()
    seen: list[bool] = []
    move = Group.move

    def watched(group: Group, gradient: torch.Tensor, skipped: torch.Tensor) -> None:
        move(group, gradient, skipped)
        if group is agent.critic:
            now = agent.state_dict()
            frozen = [name for name in now if "actor" in name or "temperature" in name]
            assert not np.array_equal(now["critic.0.weight"], start["critic.0.weight"])
            seen.append(all(np.array_equal(now[name], start[name]) for name in frozen))

    monkeypatch.setattr(Group, "move", watched)
    agent.update(make_batch(rows=3 * ROWS))
    assert seen == [True, True, True]


def test_cloning_weight_fades_after_warm_start() -> None:
    settings = config(bc_warm_start=2, bc_weight=3.0, bc_steps=2)
    terms = [actor_terms(settings, updates) for updates in range(5)]
    assert terms == [(0.0, 1.0), (0.0, 1.0), (1.0, 3.0), (1.0, 1.5), (1.0, 0.0)]
    assert actor_terms(SACConfig(), 0) == (1.0, 0.0)
    assert actor_terms(config(bc_weight=3.0, bc_final_weight=1.0, bc_steps=2), 1) == (1.0, 2.0)
    assert actor_terms(config(bc_final_weight=1.0), 9) == (1.0, 1.0)


def test_actor_learning_rate_applies_after_warm_start_alone() -> None:
    steps = []
    for rate in (1e-3, 1e-4):
        agent = make(bc_warm_start=1, learning_rate=1e-3, actor_learning_rate=rate)
        places = [agent.actor.flat.detach().clone()]
        for _ in range(2):
            agent.update(make_batch(rows=agent.config.utd * ROWS))
            places.append(agent.actor.flat.detach().clone())
        steps.append([after - before for before, after in pairwise(places)])
    (cloned, improved), (cloned_slowly, improved_slowly) = steps
    torch.testing.assert_close(cloned_slowly, cloned)
    torch.testing.assert_close(improved_slowly, 0.1 * improved, atol=1e-7, rtol=1e-3)


def test_actor_and_critic_networks_can_have_different_shapes() -> None:
    shaped: dict[str, Any] = {
        "actor_hidden": (24,),
        "actor_layer_norm": False,
        "actor_activation": "tanh",
    }
    networks = make(**shaped).networks
    assert networks.actor.sizes[1:-1] == (24,)
    assert (networks.actor.layer_norm, networks.actor.activation) == (False, "tanh")
    assert networks.critic.sizes[1:-1] == SMALL.hidden
    assert (networks.critic.layer_norm, networks.critic.activation) == (True, "relu")
    agent = make(**shaped, hidden=(16, 16))
    agent.update(make_batch())
    same = make(activation="tanh").networks
    assert same.actor.activation == same.critic.activation == "tanh"


def test_cloning_pull_ends_when_its_weight_is_zero() -> None:
    """Train with demonstrated actions at -0.9 while the reward is highest at 1."""
    batch = make_batch()
    batch.prior[:], batch.discount[:] = np.arange(len(batch.prior)) % 2 == 0, 0.0
    batch.action[:] = np.random.default_rng(0).uniform(-1, 1, batch.action.shape)
    batch.action[batch.prior] = -0.9
    batch.reward[:] = batch.action.sum(1)
    modes = []
    for final in (10.0, 0.0):
        agent = make(
            bc_warm_start=20,
            bc_weight=10.0,
            bc_final_weight=final,
            bc_steps=100,
            learning_rate=3e-3,
        )
        for _ in range(500):
            agent.update(batch)
        seen = Observation(state={"a": batch.state[0, :-1], "b": batch.state[0, -1:]})
        modes.append(agent.act(seen, explore=False).mean())
    assert modes[0] < -0.6
    assert modes[1] > 0.3


def test_critic_targets_respect_return_bounds() -> None:
    batch = make_batch()
    batch.reward[:], batch.discount[:] = 7.0, 0.0
    free, bounded = make(learning_rate=3e-2), make(learning_rate=3e-2, return_bounds=(0.0, 1.0))
    for _ in range(60):
        unbounded_value, value = free.update(batch)["q"], bounded.update(batch)["q"]
    assert unbounded_value > 3.0
    assert 0.5 < value < 1.5


def test_warm_start_clones_only_prior_actions() -> None:
    agent = make(bc_warm_start=150, learning_rate=3e-3)
    batch = make_batch()
    batch.action[:] = np.where(batch.prior[:, None], 0.6, -0.9)
    for _ in range(150):
        agent.update(batch)
    seen = Observation(state={"a": batch.state[-1, :-1], "b": batch.state[-1, -1:]})
    assert np.abs(agent.act(seen, explore=False) - 0.6).max() < 0.15
    assert agent.temperature.flat.item() == pytest.approx(math.log(SMALL.temperature))


def test_metrics_are_reported_only_at_interval() -> None:
    agent = make(metrics_every=3)
    reported = ["q" in agent.update(make_batch(i)) for i in range(6)]
    assert reported == [False, False, True, False, False, True]
