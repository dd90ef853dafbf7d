"""Schedule of a SAC update: which parameters change, when and how often."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

from serl.agents.config import SACConfig
from serl.agents.networks import Group
from serl.agents.sac import actor_terms
from serl.errors import BadInput, SpecMismatch
from serl.runs.config import resolve

from .conftest import ROWS, SMALL, config, equal, make, make_batch


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


@pytest.mark.parametrize(("final", "ends"), [(0.0, True), (10.0, False)])
def test_cloning_pull_ends_when_its_weight_is_zero(final: float, ends: bool) -> None:
    pulled, free = make(bc_weight=10.0, bc_final_weight=final, bc_steps=2), make()
    for seed in range(2):
        pulled.update(make_batch(seed))
    free.load_state_dict(pulled.state_dict())
    for agent in (pulled, free):
        agent.update(make_batch(2))
    assert equal(pulled.state_dict(), free.state_dict()) is ends


def test_reversed_return_bounds_are_refused() -> None:
    """All targets of the critics would be the second bound."""
    with pytest.raises(BadInput, match="return_bounds: 1, 0: expected the smaller one first"):
        resolve({"agent": {"return_bounds": [1, 0]}})


@pytest.mark.parametrize(("reward", "bound"), [(7.0, 1.0), (-7.0, 0.0)])
def test_critic_targets_respect_return_bounds(reward: float, bound: float) -> None:
    batch = replace(make_batch(), discount=np.zeros(2 * ROWS, np.float32))
    free, bounded = make(), make(return_bounds=(0.0, 1.0))
    free.update(replace(batch, reward=np.full(2 * ROWS, bound, np.float32)))
    bounded.update(replace(batch, reward=np.full(2 * ROWS, reward, np.float32)))
    assert equal(free.state_dict(), bounded.state_dict())


def test_warm_start_clones_only_prior_actions() -> None:
    batch = make_batch()
    actors = []
    for changed in (~batch.prior, batch.prior, np.zeros_like(batch.prior)):
        agent = make(bc_warm_start=1)
        action = np.where(changed[:, None], -batch.action, batch.action)
        agent.update(replace(batch, action=action))
        actors.append(agent.actor.flat.detach())
        assert agent.temperature.flat.item() == pytest.approx(math.log(SMALL.temperature))
    others_changed, prior_changed, unchanged = actors
    assert torch.equal(others_changed, unchanged)
    assert not torch.equal(prior_changed, unchanged)


def test_metrics_are_reported_only_at_interval() -> None:
    agent = make(metrics_every=3)
    reported = ["q" in agent.update(make_batch(i)) for i in range(6)]
    assert reported == [False, False, True, False, False, True]
