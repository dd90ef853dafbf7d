"""Hand-written passes and oneDNN products, compared with autograd."""

from __future__ import annotations

from typing import Any, Literal

import pytest
import torch
from torch import Tensor

from serl.agents import networks, passes
from serl.agents.losses import critic_target
from serl.agents.networks import EnsembleMLP
from serl.agents.passes import _FEWEST_PRODUCTS, product

from .conftest import ACTION, ROWS, make, make_batch, make_tensors

WIDE = 128  # rows and widths whose products oneDNN computes where it is used
NORMED = pytest.mark.parametrize("layer_norm", [True, False])
ACTIVATION = pytest.mark.parametrize("activation", ["relu", "tanh"])
BY_ONEDNN = pytest.mark.skipif(
    passes._ONEDNN is None, reason="no AVX-512 or no oneDNN here: its products are NOT tested"
)


def by_autograd(network: EnsembleMLP, flat: Tensor, x: Tensor) -> Tensor:
    """Return the outputs of all members, (E, B), computed by plain batched products."""
    parts = network.views(flat)
    x = x.expand(len(flat), *x.shape)
    for layer in range(len(network.sizes) - 1):
        x = x @ parts[f"{layer}.weight"]
        if f"{layer}.norm.scale" in parts:
            x = torch.nn.functional.layer_norm(x, x.shape[2:])
            x = x * parts[f"{layer}.norm.scale"][:, None] + parts[f"{layer}.norm.shift"][:, None]
        else:
            x = x + parts[f"{layer}.bias"][:, None]
        if layer < len(network.sizes) - 2:
            x = x.relu() if network.activation == "relu" else x.tanh()
    return x.squeeze(-1)


def made(
    layer_norm: bool, activation: Literal["relu", "tanh"] = "relu"
) -> tuple[EnsembleMLP, Tensor, Tensor, Tensor]:
    """Return a network, its parameters, inputs and targets."""
    network = EnsembleMLP(3, (9, WIDE, WIDE, 1), layer_norm, activation)
    init = torch.Generator().manual_seed(0)
    flat = network.init(init)
    flat += 0.1 * torch.randn(flat.shape, generator=init)
    x, target = torch.randn(WIDE, 9, generator=init), torch.randn(WIDE, generator=init)
    return network, flat.requires_grad_(), x.requires_grad_(), target


def close(mine: tuple[Tensor, ...], theirs: tuple[Tensor, ...]) -> None:
    for one, other in zip(mine, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@NORMED
@ACTIVATION
def test_outputs_and_gradients_match_autograd(
    layer_norm: bool, activation: Literal["relu", "tanh"]
) -> None:
    network, flat, x, slope = made(layer_norm, activation)
    mine, theirs = network(flat, x).squeeze(-1), by_autograd(network, flat, x)
    batched = torch.vmap(network.member, in_dims=(0, None))(flat, x[:4])  # what a GPU runs
    close((mine, batched.squeeze(-1)), (theirs, theirs[:, :4]))
    close(
        torch.autograd.grad((mine @ slope).sum(), (flat, x)),
        torch.autograd.grad((theirs @ slope).sum(), (flat, x)),
    )


@NORMED
@ACTIVATION
def test_squared_error_and_gradients_match_autograd(
    layer_norm: bool, activation: Literal["relu", "tanh"]
) -> None:
    network, flat, x, target = made(layer_norm, activation)
    mine = network.squared_error(flat, x, target)
    theirs = (by_autograd(network, flat, x) - target).square().mean(1).sum()
    close((mine,), (theirs,))
    close(
        torch.autograd.grad(3.0 * mine, (flat, x)),
        torch.autograd.grad(3.0 * theirs, (flat, x)),
    )


@NORMED
def test_squared_error_without_input_gradient_matches_autograd(layer_norm: bool) -> None:
    network, flat, x, target = made(layer_norm)
    mine = network.squared_error(flat, x.detach(), target)
    theirs = (by_autograd(network, flat, x) - target).square().mean(1).sum()
    close(torch.autograd.grad(mine, flat), torch.autograd.grad(theirs, flat))


@NORMED
@ACTIVATION
def test_mean_output_and_gradient_match_autograd(
    layer_norm: bool, activation: Literal["relu", "tanh"]
) -> None:
    network, flat, x, slope = made(layer_norm, activation)
    mine = network.mean_output(flat.detach(), x)
    theirs = by_autograd(network, flat.detach(), x).mean(0)
    close((mine,), (theirs,))
    close(torch.autograd.grad(mine @ slope, x), torch.autograd.grad(theirs @ slope, x))


@BY_ONEDNN
def test_onednn_products_support_second_derivatives() -> None:
    init = torch.Generator().manual_seed(0)
    x, weight = (torch.randn(WIDE, WIDE, generator=init, requires_grad=True) for _ in range(2))
    assert x.numel() * WIDE >= _FEWEST_PRODUCTS
    mine, theirs = product(x, weight), x @ weight
    assert type(mine.grad_fn) is not type(theirs.grad_fn)
    close((mine,), (theirs,))

    def slopes(y: Tensor) -> tuple[Tensor, ...]:
        first = torch.autograd.grad(y.square().sum() / WIDE, (x, weight), create_graph=True)
        return *first, *torch.autograd.grad(first[0].square().mean(), (x, weight))

    close(slopes(mine), slopes(theirs))


@BY_ONEDNN
def test_small_or_lower_precision_products_use_torch() -> None:
    x = torch.ones(WIDE, WIDE, requires_grad=True)
    assert "_Product" in str(product(x, x).grad_fn)
    assert "_Product" not in str(product(x[:4], x).grad_fn)
    torch.set_float32_matmul_precision("medium")
    assert "_Product" not in str(product(x, x).grad_fn)


def test_critic_target_over_all_critics_equals_full_subset() -> None:
    agent = make(critics=2)
    batch, action = make_tensors(agent), torch.zeros(ROWS, ACTION)
    target, bonus = agent.target.detach(), torch.zeros(ROWS)
    whole, drawn = (
        critic_target(agent.networks, flat, batch, action, bonus, torch.tensor([1, 0]))
        for flat in (target, torch.cat([target, torch.full_like(target, torch.nan)]))
    )
    assert torch.equal(whole, drawn)


@NORMED
def test_updates_match_updates_by_autograd(
    layer_norm: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compare weights by norm: Adam turns rounding-sized gradients into full steps."""
    size: dict[str, Any] = {"hidden": (WIDE, WIDE), "batch_size": WIDE, "layer_norm": layer_norm}

    def learned() -> tuple[list[dict[str, float]], dict[str, Tensor]]:
        agent = make(**size)
        rows = [agent.update(make_batch(seed, 2 * WIDE)) for seed in range(10)]
        return rows, {name: torch.from_numpy(x) for name, x in agent.state_dict().items()}

    rows, weights = learned()
    monkeypatch.setattr(passes, "_ONEDNN", None)
    monkeypatch.setattr(networks.EnsembleMLP, "__call__", by_autograd_call)
    monkeypatch.setattr(networks.EnsembleMLP, "squared_error", squared_error)
    monkeypatch.setattr(networks.EnsembleMLP, "mean_output", mean_output)
    plain_rows, plain = learned()
    for mine, theirs in zip(rows, plain_rows, strict=True):
        assert mine == pytest.approx(theirs, rel=1e-3, abs=1e-4)
    start = make(**size).state_dict()
    for name, weight in weights.items():
        if weight.is_floating_point() and weight.dim():
            change = plain[name] - torch.from_numpy(start[name])
            assert (weight - plain[name]).norm() <= 1e-3 * change.norm(), name


def by_autograd_call(network: EnsembleMLP, flat: Tensor, x: Tensor) -> Tensor:
    y = by_autograd(network, flat, x)
    return y.unsqueeze(-1) if y.dim() == 2 else y


def squared_error(network: EnsembleMLP, flat: Tensor, x: Tensor, target: Tensor) -> Tensor:
    return (by_autograd(network, flat, x) - target).square().mean(1).sum()


def mean_output(network: EnsembleMLP, flat: Tensor, x: Tensor) -> Tensor:
    return by_autograd(network, flat, x).mean(0)
