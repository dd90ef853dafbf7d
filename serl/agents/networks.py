"""Networks as pure functions of one flat parameter matrix, its optimiser, and the device.

One tensor per group makes Adam one fused kernel, the target update one `lerp_`, and every loss a
function of tensors.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from torch.optim.adam import adam

from serl.agents.passes import MeanOutput, SquaredError, product
from serl.errors import BadInput

LOG_STD = (-10.0, 2.0)
_SQUARED_ERROR: Any = SquaredError.apply  # untyped in torch
_MEAN_OUTPUT: Any = MeanOutput.apply
_BLOCK = 256  # rows whose layers stay in a processor's cache
_LOG_SQRT_TWO_PI = 0.5 * math.log(2.0 * math.pi)


class FlatParameters(ABC):
    """Named parameters of `members` equal networks, in one flat matrix with a row per member."""

    members: int

    @property
    @abstractmethod
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Names and shapes of a member's parameters, in the order of its row."""

    @cached_property
    def lengths(self) -> list[int]:
        """Sizes of the parameters, in that order."""
        return [math.prod(shape) for shape in self.shapes.values()]

    @property
    def length(self) -> int:
        """The length of a row, P."""
        return sum(self.lengths)

    def views(self, flat: Tensor) -> dict[str, Tensor]:
        """Return the parameters of all members by name, as views of the matrix.  # (E, ...)."""
        parts = torch.split(flat, self.lengths, dim=1)
        return {
            name: part.view(len(flat), *shape)
            for (name, shape), part in zip(self.shapes.items(), parts, strict=True)
        }


def named_views(prefix: str, network: FlatParameters, flat: Tensor) -> dict[str, Tensor]:
    """Return parameters by prefixed name, as views of the flat matrix."""
    return {f"{prefix}.{name}": part for name, part in network.views(flat.detach()).items()}


@dataclass(frozen=True)
class EnsembleMLP(FlatParameters):
    """`members` independent perceptrons of equal shape.

    Each layer but the last is linear, LayerNorm (or a bias), activation; the last is affine. The
    parameters of member e are row e of the flat matrix.

    Attributes:
        members: size of the ensemble E.
        sizes: widths from input to output.
        layer_norm: normalise before each activation (RLPD, Ball et al. 2023, section 4.2).
        activation: "relu" or "tanh".
    """

    members: int
    sizes: tuple[int, ...]
    layer_norm: bool
    activation: Literal["relu", "tanh"] = "relu"

    @cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Names and shapes of a member's parameters, in the order of its row."""
        shapes: dict[str, tuple[int, ...]] = {}
        for layer, (fan_in, fan_out) in enumerate(pairwise(self.sizes)):
            shapes[f"{layer}.weight"] = (fan_in, fan_out)
            if self._has_norm(layer):
                shapes[f"{layer}.norm.scale"] = (fan_out,)
                shapes[f"{layer}.norm.shift"] = (fan_out,)
            else:
                shapes[f"{layer}.bias"] = (fan_out,)
        return shapes

    def init(self, generator: torch.Generator, head_scale: float = 1.0) -> Tensor:
        """Create flat parameters: Glorot-uniform weights, the last layer's scaled; zero biases."""
        flat = torch.zeros(self.members, self.length)
        last = f"{len(self.sizes) - 2}."
        for name, part in self.views(flat).items():
            if name.endswith("weight"):
                bound = math.sqrt(6.0 / (part.shape[1] + part.shape[2]))
                bound *= head_scale if name.startswith(last) else 1.0
                part.uniform_(-bound, bound, generator=generator)
            elif name.endswith("scale"):
                part.fill_(1.0)
        return flat

    def __call__(self, flat: Tensor, x: Tensor) -> Tensor:
        """Compute the outputs of all members, or of those whose rows are given.

        Members run one by one on a CPU, because the layers of one stay in its cache (1.6 times as
        fast as batched), and all at once on a GPU, which is bound by the number of kernels.

        Args:
            flat: parameters, one row per member.  # (E, P)
            x: inputs, shared by the members.  # (B, I)

        Returns:
            Outputs.  # (E, B, O)
        """
        if flat.is_cuda:
            outputs: Tensor = torch.vmap(self.member, in_dims=(0, None))(flat, x)
            return outputs
        blocks = [x] if torch.is_grad_enabled() else torch.split(x, _BLOCK)
        return torch.stack(
            [torch.cat([self.member(row, block) for block in blocks]) for row in flat.unbind()]
        )

    def member(self, row: Tensor, x: Tensor) -> Tensor:
        """Compute the output of the member with these parameters, shape (B, O)."""
        parts = iter(torch.split(row, self.lengths))
        last = len(self.sizes) - 2
        for layer, shape in enumerate(pairwise(self.sizes)):
            weight = next(parts).view(shape)
            if self._has_norm(layer):
                x = functional.layer_norm(product(x, weight), shape[1:], next(parts), next(parts))
            else:
                x = product(x, weight, next(parts))
            if layer < last:
                x = x.relu_() if self.activation == "relu" else x.tanh()
        return x

    def squared_error(self, flat: Tensor, x: Tensor, target: Tensor) -> Tensor:
        """Return the squared error of single outputs: mean over rows, sum over members.

        Args:
            flat: parameters, one row per member.  # (E, P)
            x: inputs, shared by the members.  # (B, I)
            target: targets, shared by the members.  # (B,)
        """
        if flat.is_cuda or torch.compiler.is_compiling():
            return (self(flat, x).squeeze(-1) - target).square().mean(1).sum()
        loss: Tensor = _SQUARED_ERROR(self._layers, self.activation == "tanh", flat, x, target)
        return loss

    def mean_output(self, flat: Tensor, x: Tensor) -> Tensor:
        """Return the members' mean single output, shape (B,), differentiable by `x` (B, I) only."""
        if flat.is_cuda or torch.compiler.is_compiling():
            return self(flat, x).squeeze(-1).mean(0)
        mean: Tensor = _MEAN_OUTPUT(self._layers, self.activation == "tanh", flat, x)
        return mean.squeeze(-1)

    def _layers(self, flat: Tensor) -> list[list[list[Tensor]]]:
        """Return the parameters by member and layer, as views of the matrix."""
        layers: list[list[list[Tensor]]] = [[] for _ in range(len(flat))]
        for name, part in self.views(flat).items():
            for member, parameter in zip(layers, part.unbind(), strict=True):
                if name.endswith("weight"):
                    member.append([])
                member[-1].append(parameter)
        return layers

    def _has_norm(self, layer: int) -> bool:
        return self.layer_norm and layer < len(self.sizes) - 2


def split_head(head: Tensor) -> tuple[Tensor, Tensor]:
    """Split a policy's output into mean and clamped log std, both before tanh.  # (B, A)."""
    mean, log_std = head.chunk(2, dim=-1)
    return mean, log_std.clamp(*LOG_STD)


def squash(mean: Tensor, log_std: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Return a reparametrised sample of the tanh-Gaussian, and its log-probability.

    Haarnoja et al. 2018, equation 21, with log(1 - tanh(u)^2) written so that it stays finite.

    Args:
        mean: mean before tanh.  # (B, A)
        log_std: log standard deviation before tanh.  # (B, A)
        noise: standard normal.  # (B, A)

    Returns:
        Actions in [-1, 1] and their log-probability.  # (B, A), (B,)
    """
    raw = mean + log_std.exp() * noise
    log_normal = -0.5 * noise.square() - log_std - _LOG_SQRT_TWO_PI
    log_slope = 2.0 * (math.log(2.0) - raw - functional.softplus(-2.0 * raw))
    return torch.tanh(raw), (log_normal - log_slope).sum(-1)


@dataclass
class Group:
    """Parameters optimised by one Adam, as one flat tensor.

    A step whose gradient is not finite changes nothing; this is decided on the device.
    """

    flat: Tensor
    learning_rate: float
    moment: Tensor = field(init=False)
    square: Tensor = field(init=False)
    steps: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.flat.requires_grad_()
        self.moment = torch.zeros_like(self.flat.detach())
        self.square = torch.zeros_like(self.flat.detach())
        self.steps = torch.zeros((), device=self.flat.device)

    def move(self, gradient: Tensor, skipped: Tensor) -> None:
        """Take one step of Adam (Kingma & Ba 2015, algorithm 1), unless `skipped` is 1."""
        with torch.no_grad():
            adam(
                [self.flat],
                [gradient.contiguous()],  # the fused kernel would misread an expanded one
                [self.moment],
                [self.square],
                [],
                [self.steps],
                fused=True,
                found_inf=skipped,
                amsgrad=False,
                beta1=0.9,
                beta2=0.999,
                lr=self.learning_rate,
                weight_decay=0.0,
                eps=1e-8,
                maximize=False,
            )


def adam_tensors(
    prefix: str, name: str, network: FlatParameters, group: Group
) -> dict[str, Tensor]:
    """Return the optimiser's state of a group by name, as views."""
    return {
        **named_views(f"{prefix}adam.{name}.moment", network, group.moment),
        **named_views(f"{prefix}adam.{name}.square", network, group.square),
        f"{prefix}adam.{name}.steps": group.steps,
    }


def cosine(done: float) -> float:
    """Return the factor of a learning rate that falls to zero along half a cosine."""
    return 0.5 * (1.0 + math.cos(math.pi * done))


def descend(loss: Tensor, *groups: Group) -> Tensor:
    """Step each group down the gradient of `loss`; skip all when a gradient is not finite.

    A frozen group, whose parameters require no gradient, stays unchanged.

    Returns:
        Scalar: 1 when the step was skipped, else 0.
    """
    groups = tuple(group for group in groups if group.flat.requires_grad)
    if not groups:
        return torch.zeros((), device=loss.device)
    gradients = torch.autograd.grad(loss, [group.flat for group in groups])
    with torch.no_grad():
        total = torch.stack([gradient.sum() for gradient in gradients]).sum()
        skipped = (~total.isfinite()).float()
    for group, gradient in zip(groups, gradients, strict=True):
        group.move(gradient, skipped)
    return skipped


def choose_device(name: str) -> torch.device:
    """Return the named device, "auto" for CUDA if available; raises `BadInput` if unusable."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:
        raise BadInput(
            f"agent.device: {name!r} cannot be used here: {_fault(name, error)}"
        ) from None


def _fault(name: str, error: Exception) -> str:
    """Return why a device cannot be used, and the remedy, in one line."""
    if not re.fullmatch(r"(cpu|cuda|mps|xpu)(:\d+)?", name):
        return "expected auto, cpu, cuda, or one GPU such as cuda:1"
    if name.startswith("cuda") and torch.version.cuda is None:
        version = torch.__version__.partition("+")[0]
        return (
            "this PyTorch is built for the CPU only; to install the build for CUDA: pip install "
            f"--force-reinstall --index-url https://pypi.org/simple torch=={version}"
        )
    return str(error).partition("\n")[0]


def to_device(array: np.ndarray[Any, Any], device: torch.device) -> Tensor:
    """Return an array as a tensor on the device; on a CPU it shares the array's memory.

    A GPU copies it asynchronously from pinned memory, and the array may be changed at once. The
    pinned memory belongs to torch, which does not reuse it before the GPU has read it.
    """
    tensor = torch.from_numpy(array)
    if device.type == "cuda":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


def set_matmul(mode: str, device: torch.device) -> torch.dtype:
    """Set the precision of float32 products and convolutions, for the whole process.

    On a CPU this only permits oneDNN to round; see `SACConfig.matmul`.

    Returns:
        dtype of convolutions, and of networks that are never trained; trained weights stay
        float32, because bfloat16 loses small steps.
    """
    units = torch.cpu.get_capabilities()
    fast = device.type == "cuda" or units.get("avx512_bf16") or units.get("amx_bf16")
    low = mode == "bfloat16" or (mode == "auto" and fast)
    reduced = "high" if device.type == "cuda" else "medium"
    torch.set_float32_matmul_precision(reduced if low else "highest")
    convolutions: Any = torch.backends.mkldnn
    convolutions.conv.fp32_precision = "bf16" if low else "ieee"
    return torch.bfloat16 if low else torch.float32
