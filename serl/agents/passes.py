"""Matrix products and passes of perceptrons on a CPU, where autograd's own take twice as long."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

Layers = Sequence[Sequence[Tensor]]  # per layer: weight (I, O), [scale (O,)], shift (O,)
LayersOf = Callable[[Tensor], Sequence[Layers]]  # by member, as views of a matrix (E, P)

LAYER_NORM_EPS = 1e-5
_FEWEST_PRODUCTS = 3 * 2**18  # below, a call to oneDNN costs more than it saves
_KERNELS: Any = torch.ops.aten
_BACKEND: Any = torch.backends.mkldnn
_ONEDNN: Any = (
    getattr(torch.ops.mkldnn, "_linear_pointwise", None)
    if _BACKEND.is_available() and torch.backends.cpu.get_cpu_capability() == "AVX512"
    else None
)


def product(x: Tensor, weight: Tensor, shift: Tensor | None = None) -> Tensor:
    """Return x @ weight [+ shift] for matrices, from oneDNN where that is faster."""
    if x.is_cuda or torch.compiler.is_compiling() or not _many(x, weight):
        return x @ weight if shift is None else torch.addmm(shift, x, weight)
    if not torch.is_grad_enabled():
        return _multiply(x, weight, shift)
    y: Tensor = _PRODUCT(x, weight)
    return y if shift is None else y + shift


def _many(x: Tensor, weight: Tensor) -> bool:
    """Whether oneDNN is faster: torch calls MKL, which has no AVX-512 for AMD's processors.

    oneDNN takes 0.45 times as long on a Zen 5, in float32 as well. Below the precision "highest"
    torch calls oneDNN itself.
    """
    return (
        _ONEDNN is not None
        and x.shape[0] * x.shape[1] * weight.shape[1] >= _FEWEST_PRODUCTS
        and torch.get_float32_matmul_precision() == "highest"
    )


def _multiply(x: Tensor, weight: Tensor, shift: Tensor | None = None) -> Tensor:
    """Return x @ weight [+ shift] for matrices on a CPU, without gradient."""
    if not _many(x, weight):
        return x @ weight if shift is None else torch.addmm(shift, x, weight)
    y: Tensor = _ONEDNN(x, weight.t(), shift, "none", [], "")
    return y


class _Product(torch.autograd.Function):
    """x @ weight by oneDNN, differentiable any number of times."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _multiply(x, weight)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        needs_x, needs_weight = ctx.needs_input_grad
        return (
            product(slope, weight.t()) if needs_x else None,
            product(x.t(), slope) if needs_weight else None,
        )


_PRODUCT: Any = _Product.apply  # untyped in torch


class SquaredError(torch.autograd.Function):
    """Squared error of the members' outputs (E, B, 1) to one target (B,).

    Mean over rows, sum over members. The slope of an output is known as soon as the output is, so
    each member goes forward and back at once, while its layers are in the cache.
    """

    @staticmethod
    def forward(
        ctx: Any, layers_of: LayersOf, tanh: bool, flat: Tensor, x: Tensor, target: Tensor
    ) -> Tensor:
        """Return the error, and keep its gradients."""
        _, _, needs_flat, needs_x, _ = ctx.needs_input_grad
        gradient = torch.empty_like(flat) if needs_flat else None
        places: Sequence[Tensor | None] = (
            [None] * len(flat) if gradient is None else gradient.unbind()
        )
        input_gradient = torch.zeros_like(x) if needs_x else None
        errors, target = [], target.unsqueeze(-1)
        for layers, place in zip(layers_of(flat), places, strict=True):
            output, kept = _forward(layers, tanh, x)
            errors.append(output.sub_(target))
            _backward(layers, tanh, kept, errors[-1] * (2.0 / len(x)), place, input_gradient)
        ctx.gradients = gradient, input_gradient
        return torch.cat(errors).square().sum() / len(x)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of parameters and inputs, as far as they are needed."""
        scaled = [
            gradient if gradient is None or slope.item() == 1.0 else gradient * slope
            for gradient in ctx.gradients
        ]
        return None, None, *scaled, None


class MeanOutput(torch.autograd.Function):
    """Mean (B, 1) of the outputs of fixed members, differentiable by their inputs x (B, I).

    The output of a row depends on that row alone, so its gradient needs no slope beforehand.
    """

    @staticmethod
    def forward(ctx: Any, layers_of: LayersOf, tanh: bool, flat: Tensor, x: Tensor) -> Tensor:
        """Return the mean, and keep its gradient."""
        members = layers_of(flat)
        total, ctx.gradient = x.new_zeros(len(x), 1), torch.zeros_like(x)
        share = torch.full_like(total, 1.0 / len(members))
        for layers in members:
            output, kept = _forward(layers, tanh, x)
            total += output
            _backward(layers, tanh, kept, share, None, ctx.gradient)
        return total / len(members)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradient of the inputs."""
        return None, None, None, ctx.gradient * slope


def _forward(layers: Layers, tanh: bool, x: Tensor) -> tuple[Tensor, list[tuple[Tensor, ...]]]:
    """Return the output of one member; and per layer its input, and LayerNorm's with statistics."""
    kept: list[tuple[Tensor, ...]] = []
    for weight, *rest in layers:
        if len(rest) == 2:
            y = _multiply(x, weight)
            scale, shift = rest
            normed, mean, inverse_std = torch.native_layer_norm(
                y, y.shape[1:], scale, shift, LAYER_NORM_EPS
            )
            kept.append((x, y, mean, inverse_std))
            y = normed
        else:
            y = _multiply(x, weight, rest[0])
            kept.append((x,))
        if len(kept) < len(layers):
            y = y.tanh_() if tanh else y.relu_()
        x = y
    return x, kept


def _backward(
    layers: Layers,
    tanh: bool,
    kept: Sequence[tuple[Tensor, ...]],
    slope: Tensor,
    place: Tensor | None,
    input_gradient: Tensor | None,
) -> None:
    """Write the gradients of one member to `place`, and add that of its input.

    Args:
        layers: parameters.
        tanh: whether the activation is tanh instead of relu.
        kept: intermediate results of `_forward`.
        slope: gradient of the output.
        place: memory for the gradient of the parameters, (P,), None if it is not needed.
        input_gradient: sum over members to add to, None if it is not needed.
    """
    parts: list[Tensor] = []  # from the last to the first
    for index in reversed(range(len(layers))):
        (weight, *rest), (x, *normed) = layers[index], kept[index]
        if index + 1 < len(layers):
            y = kept[index + 1][0]
            slope = (
                _KERNELS.tanh_backward(slope, y)
                if tanh
                else _KERNELS.threshold_backward(slope, y, 0)
            )
        if normed:
            needed = [True, place is not None, place is not None]
            slope, scale, shift = _KERNELS.native_layer_norm_backward(
                slope, normed[0], slope.shape[1:], *normed[1:], *rest, needed
            )
            parts += [shift, scale]
        elif place is not None:
            parts.append(slope.sum(0))
        if place is not None:
            parts.append(_multiply(x.t(), slope).view(-1))
        if index:
            slope = _multiply(slope, weight.t())
        elif input_gradient is not None:
            input_gradient += _multiply(slope, weight.t())
    if place is not None:
        torch.cat(parts[::-1], out=place)
