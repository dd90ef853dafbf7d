"""The mathematics of SAC: networks, targets, losses, one step of the optimiser."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from serl.agents.bc import BC
from serl.agents.losses import (
    Cloning,
    actor_loss,
    critic_target,
    prior_mean,
    temperature_loss,
)
from serl.agents.networks import LOG_STD, Group, descend, split_head, squash
from serl.agents.sac import SAC
from serl.errors import BadInput
from serl.specs import ArraySpec

from .conftest import ACTION, ROWS, SPEC, STATE, config, make, make_batch, make_tensors


def test_target_adds_discounted_minimum_over_the_subset_and_bonus() -> None:
    agent = make()
    batch = make_tensors(agent)._replace(discount=torch.tensor([0.0, 0.9] * (ROWS // 2)))
    next_action, bonus = torch.tanh(torch.randn(ROWS, ACTION)), torch.full((ROWS,), 0.5)
    values = agent.networks.values(agent.target, batch.next_state, next_action)
    subset = torch.tensor([3, 1])
    target = critic_target(agent.networks, agent.target, batch, next_action, bonus, subset)
    expected = batch.reward + batch.discount * (torch.minimum(values[3], values[1]) + bonus)
    torch.testing.assert_close(target, expected)
    assert torch.equal(target[::2], batch.reward[::2]), "no bootstrap where the task terminated"
    others = agent.target.clone()
    others[[0, 2]] = torch.nan  # never read
    again = critic_target(agent.networks, others, batch, next_action, bonus, subset)
    assert torch.equal(again, target)


def test_log_probability_matches_the_change_of_variables() -> None:
    mean, log_std = torch.randn(5, ACTION), torch.rand(5, ACTION) - 1.0
    noise = torch.randn(5, ACTION)
    action, log_probability = squash(mean, log_std, noise)
    raw = mean + log_std.exp() * noise
    log_normal = -((raw - mean) / log_std.exp()).square() / 2 - log_std - math.log(2 * math.pi) / 2
    expected = (log_normal - torch.log1p(-action.square())).sum(-1)
    torch.testing.assert_close(log_probability, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("mean", [-1e4, -30.0, 0.0, 30.0, 1e4])
@pytest.mark.parametrize("log_std", [-1e6, 1e6])
def test_log_probability_and_gradient_stay_finite_at_the_bounds(
    mean: float, log_std: float
) -> None:
    head = torch.tensor([[mean, log_std]], requires_grad=True)
    middle, spread = split_head(head)
    assert LOG_STD[0] <= spread.item() <= LOG_STD[1]
    action, log_probability = squash(middle, spread, torch.tensor([[1.0]]))
    assert action.abs().item() <= 1.0
    (gradient,) = torch.autograd.grad(log_probability.sum(), head)
    assert torch.isfinite(log_probability).all()
    assert torch.isfinite(gradient).all()


def test_first_step_of_adam_is_the_learning_rate_times_the_sign() -> None:
    group = Group(torch.zeros(3), learning_rate=0.1)
    descend((group.flat * torch.tensor([2.0, -5.0, 1e-3])).sum(), group)
    torch.testing.assert_close(
        group.flat.detach(), torch.tensor([-0.1, 0.1, -0.1]), rtol=1e-3, atol=0
    )


@pytest.mark.parametrize(("offset", "rises"), [(-1.0, True), (1.0, False)])
def test_temperature_rises_below_the_target_entropy(offset: float, rises: bool) -> None:
    group = Group(torch.tensor([math.log(0.1)]), learning_rate=0.01)
    before = group.flat.item()
    descend(temperature_loss(group.flat, torch.tensor(-1.5 + offset), -1.5), group)
    assert (group.flat.item() > before) is rises


def test_actor_loss_matches_manual_computation() -> None:
    agent = make()
    batch, noise = make_tensors(agent), torch.randn(ROWS, ACTION)
    actor, critic = agent.actor.flat.detach(), agent.critic.flat.detach()
    temperature, weights = torch.tensor([0.3]), torch.tensor([1.0, 2.0])
    loss, entropy = actor_loss(
        agent.networks, actor, critic, batch, noise, temperature, weights, Cloning()
    )
    action, log_probability, mode = agent.networks.sample(actor, batch.state, noise)
    value = agent.networks.values(critic, batch.state, action).mean(0)
    prior = batch.prior.bool()
    cloning = (mode - batch.action)[prior].square().sum(-1).mean()
    expected = (0.3 * log_probability - value).mean() + 2.0 * cloning
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(entropy, -log_probability.mean())


def test_cloning_likelihood_matches_normal_before_tanh() -> None:
    mean, log_std = torch.randn(4, ACTION), torch.rand(4, ACTION) - 1.0
    action = torch.tensor([[0.3, -0.5, 0.9], [1.0, -1.0, 0.0], [0.1, 0.2, 0.3], [0.0, 0.0, 0.0]])
    raw = torch.atanh(action.clamp(-0.999, 0.999))
    normal: Any = torch.distributions.Normal(mean, log_std.exp())
    expected = -(normal.log_prob(raw) + math.log(2 * math.pi) / 2).sum(-1)
    torch.testing.assert_close(Cloning("nll").error(mean, log_std, action), expected)
    squared = (torch.tanh(mean) - action).square().sum(-1)
    torch.testing.assert_close(Cloning("mse").error(mean, log_std, action), squared)


def test_q_filter_clones_only_actions_valued_above_policy_mode() -> None:
    agent = make()
    batch, noise = make_tensors(agent), torch.randn(ROWS, ACTION)
    actor, critic = agent.actor.flat.detach(), agent.critic.flat.detach()

    def loss(weights: tuple[float, float], cloning: Cloning) -> torch.Tensor:
        given = torch.tensor(weights)
        return actor_loss(
            agent.networks, actor, critic, batch, noise, torch.ones(1), given, cloning
        )[0]

    mode = agent.networks.sample(actor, batch.state, noise)[2]
    shown, own = (
        agent.networks.values(critic, batch.state, action).mean(0)
        for action in (batch.action, mode)
    )
    prior = batch.prior.bool()
    kept = prior & (shown > own)
    assert 0 < kept.sum() < prior.sum()
    error = (mode - batch.action).square().sum(-1)
    cloned = loss((1.0, 1.0), Cloning(filter="q")) - loss((1.0, 0.0), Cloning(filter="q"))
    torch.testing.assert_close(cloned, error[kept].sum() / prior.sum())
    torch.testing.assert_close(loss((0.0, 1.0), Cloning(filter="q")), error[prior].mean())


def test_noise_disturbs_only_its_entry_of_cloned_states() -> None:
    states = torch.zeros(20_000, STATE)
    cloning = make(bc_noise={"b": 0.5})._cloning
    disturbed = cloning.disturbed(states, torch.Generator().manual_seed(0))
    assert disturbed is not None
    assert disturbed.std(0).tolist() == pytest.approx([0.0] * (STATE - 1) + [0.5], abs=0.01)
    assert make()._cloning.disturbed(states, torch.Generator()) is None


def test_disturbed_states_are_cloned_and_not_improved() -> None:
    agent = make()
    batch, noise = make_tensors(agent), torch.randn(ROWS, ACTION)
    actor, critic = agent.actor.flat.detach(), agent.critic.flat.detach()

    def loss(weights: tuple[float, float], disturbed: torch.Tensor | None) -> torch.Tensor:
        given, temperature = torch.tensor(weights), torch.ones(1)
        parts = (agent.networks, actor, critic, batch, noise, temperature, given, Cloning())
        return actor_loss(*parts, disturbed)[0]

    disturbed = batch.state + 1.0
    improvement, cloning = (1.0, 0.0), (0.0, 1.0)
    torch.testing.assert_close(loss(improvement, disturbed), loss(improvement, None))
    mode = agent.networks.sample(actor, disturbed, noise)[2]
    error = (mode - batch.action).square().sum(-1)
    torch.testing.assert_close(loss(cloning, disturbed), error[batch.prior.bool()].mean())


@pytest.mark.parametrize("algorithm", [SAC, BC])
def test_agents_clone_with_noise(algorithm: type[SAC]) -> None:
    weights = []
    for noise in ({}, {"b": 1.0}, {"b": 1.0}):
        changed = config(bc_noise=noise, bc_weight=1.0, bc_warm_start=10)
        agent = algorithm.create(SPEC, changed, 0)
        agent.update(make_batch())
        weights.append(agent.actor.flat.detach())
    assert not torch.equal(weights[0], weights[1])
    assert torch.equal(weights[1], weights[2])


def test_noise_on_unknown_entries_or_with_cameras_is_refused() -> None:
    with pytest.raises(BadInput, match=r"agent.bc_noise: expected entries of a, b, found c"):
        make(bc_noise={"c": 1.0})
    picture = {"wrist": ArraySpec(shape=(16, 16, 3), dtype="uint8")}
    with_camera = SPEC.observation.model_copy(update={"images": picture})
    with pytest.raises(BadInput, match=r"agent.bc_noise: expected none for a task with cameras"):
        Cloning.create(config(bc_noise={"a": 1.0}), with_camera)


def test_cloning_without_prior_rows_is_finite() -> None:
    batch = make_tensors(make())._replace(prior=torch.zeros(ROWS))
    assert prior_mean(torch.ones(ROWS), batch).item() == 0.0
