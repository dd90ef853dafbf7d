"""Public behaviour of SAC: determinism, saving and refusal of invalid weights."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from serl.agents.sac import SAC
from serl.errors import BadInput, SpecMismatch
from serl.specs import ArraySpec, ObservationSpec
from serl.types import Observation

from .conftest import ROWS, SPEC, STATE, config, equal, make, make_batch, observation

CAMERA = {"front": ArraySpec(shape=(16, 16, 3), dtype="uint8")}
SEEN = SPEC.observation.model_copy(update={"images": CAMERA})


def test_another_seed_gives_other_parameters_and_samples() -> None:
    first, other = make(0), make(1)
    assert not np.array_equal(
        first.actor_weights()["actor.0.weight"], other.actor_weights()["actor.0.weight"]
    )
    other.load_actor_weights(first.actor_weights())
    assert not np.array_equal(
        first.act(observation(), explore=True), other.act(observation(), explore=True)
    )


def test_saved_agent_with_average_and_noise_continues_bit_identically() -> None:
    settings: dict[str, Any] = {
        "bc_weight": 1.0,
        "bc_steps": 6,
        "actor_average": 0.9,
        "bc_noise": {"a": 1.0},
    }
    agent = make(**settings)
    agent.fit_normaliser(make_batch().state)
    for i in range(3):
        agent.update(make_batch(i))
        agent.act(observation(), explore=True)
    saved = agent.state_dict()
    other = make(seed=99, **settings)
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


def changed(name: str, change: Callable[[Any], Any]) -> Callable[[dict[str, Any]], None]:
    """Return a function that replaces one array of an agent's weights."""
    return lambda weights: weights.update({name: change(weights[name])})


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda w: w.pop("actor.2.bias"), r"missing \['actor.2.bias'\]"),
        (lambda w: w.update({"actor.9.bias": np.zeros(1)}), r"unknown \['actor.9.bias'\]"),
        (
            changed("actor.2.weight", lambda array: array[:, :-1]),
            r"actor.2.weight: expected float32\[1, 16, 6\], got float32\[1, 15, 6\]",
        ),
        (
            changed("actor.2.weight", lambda array: array.astype(np.float64)),
            r"actor.2.weight: expected float32\[1, 16, 6\], got float64",
        ),
        (changed("normaliser.mean", lambda array: array * np.nan), "normaliser.mean: not finite"),
        (changed("normaliser.std", np.zeros_like), "normaliser.std: not positive"),
    ],
)
def test_invalid_weights_are_refused_without_partial_load(
    spoil: Callable[[dict[str, Any]], object], message: str
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


def test_damaged_generator_state_is_refused_without_partial_load() -> None:
    agent, state = make(), dict(make(1).state_dict())
    before = agent.state_dict()
    state["generator.learning"] = np.full_like(state["generator.learning"], 255)
    with pytest.raises(SpecMismatch, match="not the state of a generator"):
        agent.load_state_dict(state)
    assert equal(agent.state_dict(), before)


@pytest.mark.parametrize("field", ["state", "reward", "next_state", "action"])
def test_batch_that_is_not_finite_changes_no_critic_parameter(field: str) -> None:
    agent = make()
    agent.update(make_batch())
    before = agent.state_dict()
    batch = make_batch(1)
    getattr(batch, field)[:] = np.nan
    for skipped in (1, 2, 3):
        assert agent.update(batch)["skipped"] == skipped
    after = agent.state_dict()
    assert all(np.isfinite(array).all() for array in after.values())
    for name in before:
        if name.startswith(("critic", "target", "adam.critic")):
            assert np.array_equal(before[name], after[name]), name
    assert agent.update(make_batch(2))["skipped"] == 0
    assert not np.array_equal(agent.state_dict()["critic.0.weight"], after["critic.0.weight"])


def test_partly_finite_batch_is_partly_learned_from() -> None:
    agent = make()
    before = agent.state_dict()
    batch = make_batch()
    batch.reward[:ROWS] = np.nan  # rows of the first critic step
    assert agent.update(batch)["skipped"] == 1
    after = agent.state_dict()
    assert after["adam.critic.steps"] == before["adam.critic.steps"] + 1  # one of two steps
    assert not np.array_equal(before["actor.0.weight"], after["actor.0.weight"])


@pytest.mark.parametrize(
    "changes", [{"layer_norm": False}, {"normalise": False}, {"backup_entropy": True}]
)
def test_ablated_settings_change_the_update(changes: dict[str, Any]) -> None:
    agent, base = make(**changes), make()
    for each in (agent, base):
        each.fit_normaliser(3.0 + 2.0 * make_batch().state)
        metrics = each.update(make_batch())
        assert all(math.isfinite(value) for value in metrics.values())
    assert not equal(agent.state_dict(), base.state_dict())
    names = agent.state_dict().keys()
    assert any("norm.scale" in name for name in names) is agent.config.layer_norm
    assert (agent.mean.abs().max().item() > 0) is agent.config.normalise


def test_averaged_actor_excludes_initial_parameters() -> None:
    agent, plain = make(actor_average=0.6), make()
    actors, published = [], []
    for each in (agent, plain):
        for i in range(4):
            each.update(make_batch(i))
            actors.append(each.actor.flat.detach().numpy().copy())
            published.append(each.actor_weights()["actor.0.weight"])
    assert np.array_equal(actors[:4], actors[4:]), "learning is the same"
    assert agent.average is not None
    shares = np.array([0.6 * 0.6 * 0.5, 0.6 * 0.6 * 0.5, 0.6 * 0.4, 0.4])
    np.testing.assert_allclose(agent.average[0], shares @ np.array(actors[:4])[:, 0], atol=1e-6)
    assert not np.array_equal(published[3], published[7])
    agent.load_actor_weights(plain.actor_weights())
    assert equal(agent.actor_weights(), plain.actor_weights())
    assert np.array_equal(agent.actor.flat.detach(), plain.actor.flat.detach())


def test_normaliser_matches_closed_form_with_floor_and_clip() -> None:
    agent = make()
    agent.fit_normaliser(np.zeros((0, STATE), np.float32))
    assert not agent.mean.any()
    assert (agent.std == 1.0).all()
    states = 5.0 + 2.0 * make_batch(rows=2 * ROWS).state
    states[:, 0] = 1.0  # never moves in the demonstrations
    agent.fit_normaliser(states)
    encoded = agent.normalise(torch.from_numpy(states))
    assert not encoded[:, 0].any()
    torch.testing.assert_close(encoded[:, 1:].mean(0), torch.zeros(STATE - 1), atol=1e-5, rtol=0)
    torch.testing.assert_close(encoded[:, 1:].std(0, correction=0), torch.ones(STATE - 1))
    moved = torch.from_numpy(states[:1].copy())
    moved[0, 0] = 100.0
    assert agent.normalise(moved)[0, 0].item() == 10.0


def test_normaliser_floor_depends_on_unit() -> None:
    state = {
        "place": ArraySpec(shape=(STATE - 2,), unit="m, base frame"),
        "yaw": ArraySpec(shape=(1,), unit="rad"),
        "force": ArraySpec(shape=(1,), unit="N"),
    }
    spec = SPEC.model_copy(update={"observation": ObservationSpec(state=state)})
    agent = SAC.create(spec, config(smallest_std={"m": 0.01, "N": 0.5}), 0)
    agent.fit_normaliser(np.zeros((5, STATE), np.float32))
    expected = [*[0.01] * (STATE - 2), 0.001, 0.5]
    torch.testing.assert_close(agent.std, torch.tensor(expected))


def test_policy_moves_towards_higher_reward() -> None:
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


def test_invalid_agent_settings_give_one_line_errors() -> None:
    with pytest.raises(BadInput, match="subset 5 is larger than critics 4"):
        make(subset=5)
    with pytest.raises(BadInput, match=r"agent\.frames: the task has no cameras"):
        make(frames=2)
    with pytest.raises(BadInput, match="'nowhere' cannot be used here"):
        make(device="nowhere")


def test_cpu_build_error_names_the_cuda_install_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.version, "cuda", None)
    page = Path(__file__).parents[2] / "docs/install.md"
    (line,) = re.findall(r"^\S+/(pip install .*) torch==", page.read_text(), re.MULTILINE)
    version = torch.__version__.partition("+")[0]
    remedy = f"{line.replace(' -c constraints.txt', '')} torch=={version}"
    with pytest.raises(BadInput, match=rf"^agent\.device: 'cuda:99' .*: {re.escape(remedy)}$"):
        make(device="cuda:99")


@pytest.mark.parametrize("network", ["actor", "encoder"])
def test_frozen_network_keeps_loaded_parameters(network: str) -> None:
    spec = SPEC.model_copy(update={"observation": SEEN})
    small = config(encoder_channels=(4,), latent=4, frozen=(network,))
    agent = SAC.create(spec, small, 0)
    rng = np.random.default_rng(0)
    images = {"front": rng.integers(0, 255, (2 * ROWS, 16, 16, 3), np.uint8)}
    loaded = {name: 0.5 * array for name, array in agent.actor_weights().items()}
    loaded["normaliser.std"] = np.ones(STATE, np.float32)
    agent.load_actor_weights(loaded)
    for _ in range(2):
        agent.update(replace(make_batch(), images=images, next_images=images))
    now = agent.actor_weights()
    still = {n.split(".")[0] for n in now if np.array_equal(now[n], loaded[n])}
    assert still == {network, "normaliser"}
    assert agent.skipped == 0
