"""The mathematics of SAC, its determinism, and its refusal of hostile weights."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from serl.agents.config import SACConfig
from serl.agents.networks import LOG_STD, EnsembleMLP, Group, split_head, squash
from serl.agents.sac import (
    SAC,
    Tensors,
    actor_loss,
    actor_terms,
    critic_loss,
    critic_target,
    temperature_loss,
)
from serl.errors import BadInput, SpecMismatch
from serl.specs import ArraySpec, ObservationSpec, Spec
from serl.types import Batch, Observation

STATE, ACTION, ROWS = 6, 3, 8
SPEC = Spec(
    task="test",
    observation=ObservationSpec(
        state={"a": ArraySpec(shape=(STATE - 1,)), "b": ArraySpec(shape=(1,))}
    ),
    action=ArraySpec(shape=(ACTION,), low=-1.0, high=1.0),
    rate_hz=10.0,
)
SMALL = SACConfig(hidden=(16, 16), critics=4, batch_size=ROWS, utd=2, device="cpu", metrics_every=1)


def config(**changes: Any) -> SACConfig:
    return SACConfig(**(SMALL.model_dump() | changes))


def make(seed: int = 0, **changes: Any) -> SAC:
    return SAC.create(SPEC, config(**changes), seed)


def make_batch(seed: int = 0, rows: int = 2 * ROWS) -> Batch:
    rng = np.random.default_rng(seed)

    def normal(*shape: int) -> np.ndarray[Any, np.dtype[np.float32]]:
        return rng.standard_normal(shape).astype(np.float32)

    return Batch(
        state=normal(rows, STATE),
        action=np.tanh(normal(rows, ACTION)),
        reward=normal(rows),
        discount=np.where(rng.random(rows) < 0.3, 0.0, 0.9).astype(np.float32),
        next_state=normal(rows, STATE),
        prior=rng.random(rows) < 0.5,
    )


def make_tensors(agent: SAC) -> Tensors:
    return agent._tensors(make_batch(rows=ROWS))


def observation(seed: int = 0) -> Observation:
    values = np.random.default_rng(seed).standard_normal(STATE).astype(np.float32)
    return Observation(state={"a": values[:-1], "b": values[-1:]})


def equal(left: Any, right: Any) -> bool:
    return left.keys() == right.keys() and all(np.array_equal(left[k], right[k]) for k in left)


def test_ensemble_equals_single_networks_written_out() -> None:
    network = EnsembleMLP(3, (5, 16, 16, 2), layer_norm=True)
    flat = network.init(torch.Generator().manual_seed(0))
    flat = flat + 0.1 * torch.randn(flat.shape, generator=torch.Generator().manual_seed(1))
    x = torch.randn(7, 5)
    parameters = network.views(flat)
    together = network(flat, x)
    for member in range(3):
        y = x
        for layer in range(3):
            part = {
                name.removeprefix(f"{layer}."): value[member]
                for name, value in parameters.items()
                if name.startswith(f"{layer}.")
            }
            y = y @ part["weight"]
            if layer == 2:
                y = y + part["bias"]
            else:
                scaled = (y - y.mean(-1, keepdim=True)) / (
                    y.var(-1, False, keepdim=True) + 1e-5
                ).sqrt()
                y = torch.relu(scaled * part["norm.scale"] + part["norm.shift"])
        torch.testing.assert_close(together[member], y)
    batched = torch.vmap(network.member, in_dims=(0, None))(flat, x)  # what a GPU runs
    torch.testing.assert_close(batched, together)


def test_target_is_the_minimum_over_the_subset_only() -> None:
    agent = make()
    batch = make_tensors(agent)
    next_action, bonus = torch.tanh(torch.randn(ROWS, ACTION)), torch.zeros(ROWS)
    values = agent.networks.values(agent.target, batch.next_state, next_action)
    subset = torch.tensor([3, 1])
    target = critic_target(agent.networks, agent.target, batch, next_action, bonus, subset)
    expected = batch.reward + batch.discount * torch.minimum(values[3], values[1])
    torch.testing.assert_close(target, expected)
    others = agent.target.clone()
    others[[0, 2]] = torch.nan  # never read
    again = critic_target(agent.networks, others, batch, next_action, bonus, subset)
    assert torch.equal(again, target)


def test_terminated_does_not_bootstrap_and_truncated_does() -> None:
    agent = make()
    batch = make_tensors(agent)._replace(
        reward=torch.ones(ROWS), discount=torch.tensor([0.0, 0.9] * (ROWS // 2))
    )
    next_action, bonus = torch.zeros(ROWS, ACTION), torch.full((ROWS,), 0.5)
    subset = torch.tensor([0, 1])
    target = critic_target(agent.networks, agent.target, batch, next_action, bonus, subset)
    values = agent.networks.values(agent.target[:2], batch.next_state, next_action).amin(0)
    assert torch.equal(target[::2], torch.ones(ROWS // 2))
    torch.testing.assert_close(target[1::2], 1.0 + 0.9 * (values[1::2] + 0.5))


def test_each_critic_has_the_gradient_that_it_would_have_alone() -> None:
    agent = make()
    batch, target = make_tensors(agent), torch.randn(ROWS)
    network = agent.networks.critic

    def gradients(loss: Callable[[torch.Tensor], torch.Tensor]) -> dict[str, torch.Tensor]:
        flat = agent.critic.flat.detach().clone().requires_grad_()
        return network.views(torch.autograd.grad(loss(flat), flat)[0])

    together = gradients(lambda flat: critic_loss(agent.networks, flat, batch, target))
    for member in range(SMALL.critics):

        def alone(flat: torch.Tensor, member: int = member) -> torch.Tensor:
            values = agent.networks.values(flat[[member]], batch.state, batch.action)
            return (values[0] - target).square().mean()

        single = gradients(alone)
        for name, gradient in single.items():
            torch.testing.assert_close(gradient[member], together[name][member])
            assert not gradient[[other for other in range(4) if other != member]].any()


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


def test_target_networks_follow_by_the_closed_form() -> None:
    agent = make(utd=1, tau=0.25)
    before = agent.target.clone()
    agent.update(make_batch(rows=ROWS))
    torch.testing.assert_close(agent.target, 0.75 * before + 0.25 * agent.critic.flat.detach())


def test_first_step_of_adam_is_the_learning_rate_times_the_sign() -> None:
    group = Group(torch.zeros(3), learning_rate=0.1)
    group.step((group.flat * torch.tensor([2.0, -5.0, 1e-3])).sum())
    torch.testing.assert_close(
        group.flat.detach(), torch.tensor([-0.1, 0.1, -0.1]), rtol=1e-3, atol=0
    )


@pytest.mark.parametrize(("offset", "rises"), [(-1.0, True), (1.0, False)])
def test_temperature_rises_below_the_target_entropy(offset: float, rises: bool) -> None:
    group = Group(torch.tensor([math.log(0.1)]), learning_rate=0.01)
    before = group.flat.item()
    group.step(temperature_loss(group.flat, torch.tensor(-1.5 + offset), -1.5))
    assert (group.flat.item() > before) is rises


def test_actor_loss_by_hand() -> None:
    agent = make()
    batch, noise = make_tensors(agent), torch.randn(ROWS, ACTION)
    actor, critic = agent.actor.flat.detach(), agent.critic.flat.detach()
    temperature, weights = torch.tensor([0.3]), torch.tensor([1.0, 2.0])
    loss, entropy = actor_loss(agent.networks, actor, critic, batch, noise, temperature, weights)
    action, log_probability, mode = agent.networks.sample(actor, batch.state, noise)
    value = agent.networks.values(critic, batch.state, action).mean(0)
    prior = batch.prior.bool()
    cloning = (mode - batch.action)[prior].square().sum(-1).mean()
    expected = (0.3 * log_probability - value).mean() + 2.0 * cloning
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(entropy, -log_probability.mean())


def test_cloning_without_prior_rows_is_finite() -> None:
    agent = make()
    batch = make_tensors(agent)._replace(prior=torch.zeros(ROWS))
    flat, noise = agent.actor.flat.detach(), torch.zeros(ROWS, ACTION)
    weights = torch.tensor([0.0, 1.0])
    loss, _ = actor_loss(
        agent.networks, flat, agent.critic.flat.detach(), batch, noise, torch.ones(1), weights
    )
    assert loss.item() == 0.0


@pytest.mark.parametrize("utd", [1, 3])
def test_update_takes_utd_critic_steps_and_one_of_the_others(utd: int) -> None:
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
    step = Group.step

    def watched(group: Group, loss: torch.Tensor) -> None:
        step(group, loss)
        if group is agent.critic:
            now = agent.state_dict()
            frozen = [name for name in now if "actor" in name or "temperature" in name]
            assert not np.array_equal(now["critic.0.weight"], start["critic.0.weight"])
            seen.append(all(np.array_equal(now[name], start[name]) for name in frozen))

    monkeypatch.setattr(Group, "step", watched)
    agent.update(make_batch(rows=3 * ROWS))
    assert seen == [True, True, True]


def test_two_seeded_runs_are_bit_identical_and_another_seed_differs() -> None:
    def run(seed: int) -> Any:
        agent = make(seed)
        actions = [agent.act(observation(i), explore=True) for i in range(3)]
        for i in range(4):
            agent.update(make_batch(i))
        return dict(agent.state_dict()) | {"actions": np.array(actions)}

    first, again, other = run(0), run(0), run(1)
    assert equal(first, again)
    assert not np.array_equal(first["actor.0.weight"], other["actor.0.weight"])
    assert not np.array_equal(first["actions"], other["actions"])


def test_a_saved_agent_continues_bit_identically() -> None:
    agent = make(bc_weight=1.0, bc_steps=6)
    agent.fit_normaliser(make_batch().state)
    for i in range(3):
        agent.update(make_batch(i))
        agent.act(observation(), explore=True)
    saved = agent.state_dict()
    other = make(seed=99, bc_weight=1.0, bc_steps=6)
    other.load_state_dict(saved)
    assert equal(other.state_dict(), saved)
    for i in range(3, 6):
        assert agent.update(make_batch(i)) == other.update(make_batch(i))
        left, right = agent.act(observation(), explore=True), other.act(observation(), explore=True)
        assert np.array_equal(left, right)
    assert equal(agent.state_dict(), other.state_dict())
    assert not equal(agent.state_dict(), saved)


def test_acting_does_not_change_learning() -> None:
    quiet, busy = make(), make()
    busy.act(observation(), explore=True)
    for agent in (quiet, busy):
        agent.update(make_batch())
    assert np.array_equal(quiet.state_dict()["actor.0.weight"], busy.state_dict()["actor.0.weight"])


def test_actor_weights_carry_policy_and_normaliser() -> None:
    learner, actor = make(1), make(2)
    learner.fit_normaliser(5.0 + 3.0 * make_batch().state)
    for i in range(3):
        learner.update(make_batch(i))
    before = actor.act(observation(), explore=False)
    actor.load_actor_weights(learner.actor_weights())
    after = actor.act(observation(), explore=False)
    assert not np.array_equal(before, after)
    assert np.array_equal(after, learner.act(observation(), explore=False))


def test_actor_weights_are_copies() -> None:
    agent = make()
    weights = agent.actor_weights()
    held = {name: array.copy() for name, array in weights.items()}
    agent.update(make_batch())
    assert equal(weights, held)


def _without(weights: dict[str, Any]) -> None:
    del weights["actor.2.bias"]


def _with(weights: dict[str, Any]) -> None:
    weights["actor.9.bias"] = np.zeros(1, np.float32)


def _reshaped(weights: dict[str, Any]) -> None:
    weights["actor.2.weight"] = weights["actor.2.weight"][:, :-1]


def _retyped(weights: dict[str, Any]) -> None:
    weights["actor.2.weight"] = weights["actor.2.weight"].astype(np.float64)


def _broken(weights: dict[str, Any]) -> None:
    weights["normaliser.mean"] = np.full(STATE, np.nan, np.float32)


def _negative_std(weights: dict[str, Any]) -> None:
    weights["normaliser.std"] = np.zeros(STATE, np.float32)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (_without, r"missing \['actor.2.bias'\]"),
        (_with, r"unknown \['actor.9.bias'\]"),
        (_reshaped, r"actor.2.weight: expected float32\[1, 16, 6\], got float32\[1, 15, 6\]"),
        (_retyped, r"actor.2.weight: expected float32\[1, 16, 6\], got float64"),
        (_broken, "normaliser.mean: not finite"),
        (_negative_std, "normaliser.std: not positive"),
    ],
)
def test_hostile_weights_are_refused_whole(
    spoil: Callable[[dict[str, Any]], None], message: str
) -> None:
    agent = make(0)
    before = agent.state_dict()
    weights = dict(make(1).actor_weights())
    spoil(weights)
    with pytest.raises(SpecMismatch, match=message):
        agent.load_actor_weights(weights)
    state = dict(make(1).state_dict())
    spoil(state)
    with pytest.raises(SpecMismatch, match=message):
        agent.load_state_dict(state)
    assert equal(agent.state_dict(), before)


def test_weights_of_another_shape_of_network_are_refused() -> None:
    with pytest.raises(SpecMismatch):
        make().load_actor_weights(make(layer_norm=False).actor_weights())
    with pytest.raises(SpecMismatch):
        make().load_state_dict(make(critics=3).state_dict())


def test_a_damaged_generator_is_refused_whole() -> None:
    agent, state = make(), dict(make(1).state_dict())
    before = agent.state_dict()
    state["generator.learning"] = np.full_like(state["generator.learning"], 255)
    with pytest.raises(SpecMismatch, match="not the state of a generator"):
        agent.load_state_dict(state)
    assert equal(agent.state_dict(), before)


@pytest.mark.parametrize("field", ["state", "reward", "next_state", "action"])
def test_a_step_on_a_batch_that_is_not_finite_changes_no_parameter(field: str) -> None:
    agent = make()
    agent.update(make_batch())
    before = agent.state_dict()
    batch = make_batch(1)
    getattr(batch, field)[:] = np.nan
    agent.update(batch)
    after = agent.state_dict()
    assert all(np.isfinite(array).all() for array in after.values())
    assert np.array_equal(before["critic.0.weight"], after["critic.0.weight"])
    assert np.array_equal(before["adam.critic.steps"], after["adam.critic.steps"])
    agent.update(make_batch(2))
    assert not np.array_equal(agent.state_dict()["critic.0.weight"], after["critic.0.weight"])


@pytest.mark.parametrize(
    "changes", [{"layer_norm": False}, {"normalise": False}, {"backup_entropy": True}]
)
def test_ablations_run_and_differ(changes: dict[str, Any]) -> None:
    agent, base = make(**changes), make()
    for each in (agent, base):
        each.fit_normaliser(3.0 + 2.0 * make_batch().state)
        metrics = each.update(make_batch())
        assert all(math.isfinite(value) for value in metrics.values())
    assert not equal(agent.state_dict(), base.state_dict())
    names = agent.state_dict().keys()
    assert any("norm.scale" in name for name in names) is agent.config.layer_norm
    assert (agent.mean.abs().max().item() > 0) is agent.config.normalise


def test_normaliser_by_closed_form_floored_and_clipped() -> None:
    agent = make()
    agent.fit_normaliser(np.zeros((0, STATE), np.float32))
    assert not agent.mean.any()
    assert (agent.std == 1.0).all()
    states = 5.0 + 2.0 * make_batch(rows=2 * ROWS).state
    states[:, 0] = 1.0  # never moves in the demonstrations
    agent.fit_normaliser(states)
    encoded = agent.encode(torch.from_numpy(states))
    assert not encoded[:, 0].any()
    torch.testing.assert_close(encoded[:, 1:].mean(0), torch.zeros(STATE - 1), atol=1e-5, rtol=0)
    torch.testing.assert_close(encoded[:, 1:].std(0, correction=0), torch.ones(STATE - 1))
    moved = torch.from_numpy(states[:1].copy())
    moved[0, 0] = 100.0
    assert agent.encode(moved)[0, 0].item() == 10.0


def test_warm_start_clones_and_then_the_cloning_term_fades() -> None:
    settings = config(bc_warm_start=2, bc_weight=3.0, bc_steps=2)
    terms = [actor_terms(settings, updates) for updates in range(5)]
    assert terms == [(0.0, 1.0), (0.0, 1.0), (1.0, 3.0), (1.0, 1.5), (1.0, 0.0)]
    assert actor_terms(SACConfig(), 0) == (1.0, 0.0)
    assert actor_terms(config(bc_weight=3.0, bc_final_weight=1.0, bc_steps=2), 1) == (1.0, 2.0)
    assert actor_terms(config(bc_final_weight=1.0), 9) == (1.0, 1.0)


def test_targets_stay_within_the_bounds_of_the_return() -> None:
    batch = make_batch()
    batch.reward[:], batch.discount[:] = 7.0, 0.0
    free, bounded = make(learning_rate=3e-2), make(learning_rate=3e-2, return_bounds=(0.0, 1.0))
    for _ in range(60):
        unbounded_value, value = free.update(batch)["q"], bounded.update(batch)["q"]
    assert unbounded_value > 3.0
    assert 0.5 < value < 1.5


def test_cloning_alone_learns_the_actions_of_prior_rows_and_no_others() -> None:
    agent = make(bc_warm_start=150, learning_rate=3e-3)
    batch = make_batch()
    batch.action[:] = np.where(batch.prior[:, None], 0.6, -0.9)
    for _ in range(150):
        agent.update(batch)
    seen = Observation(state={"a": batch.state[-1, :-1], "b": batch.state[-1, -1:]})
    assert np.abs(agent.act(seen, explore=False) - 0.6).max() < 0.15
    assert agent.temperature.flat.item() == pytest.approx(math.log(SMALL.temperature))


def test_the_policy_moves_to_what_pays() -> None:
    agent = make(learning_rate=3e-3)
    direction = np.array([1.0, -1.0, 1.0], np.float32)
    batch, rng = make_batch(), np.random.default_rng(0)
    batch.discount[:] = 0.0
    for _ in range(60):
        batch.action[:] = rng.uniform(-1, 1, batch.action.shape)
        batch.reward[:] = batch.action @ direction
        agent.update(batch)
    seen = Observation(state={"a": batch.state[0, :-1], "b": batch.state[0, -1:]})
    chosen = agent.act(seen, explore=False)
    assert chosen.dtype == np.float32
    assert (chosen * direction > 0.5).all()


def test_metrics_come_only_when_due() -> None:
    agent = make(metrics_every=3)
    reported = [bool(agent.update(make_batch(i))) for i in range(6)]
    assert reported == [False, False, True, False, False, True]


def test_bad_configurations_are_one_line() -> None:
    with pytest.raises(BadInput, match="subset 5 is larger than critics 4"):
        make(subset=5)
    with pytest.raises(BadInput, match="'nowhere' cannot be used here"):
        make(device="nowhere")
