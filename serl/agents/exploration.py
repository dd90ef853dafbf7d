"""Exploration of a tanh-Gaussian policy: initial standard deviation, and correlated noise."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

_ENTROPY_OF_UNIT_NORMAL = 0.5 * math.log(2.0 * math.pi * math.e)  # nats


class ExplorationNoise:
    """Standard normal noise whose successive draws are correlated.

    A first-order autoregressive process, the discrete form of Ornstein-Uhlenbeck noise (Lillicrap
    et al. 2016, DDPG). Each draw alone is standard normal, so that the entropy of the policy is the
    same for every correlation; an arm that inverts its motion less often gets further. The process
    continues over the ends of episodes.

    Args:
        generator: source of randomness; one draw takes the same numbers for every correlation.
        correlation: correlation of successive draws, in [0, 1); 0 for independent ones.
    """

    def __init__(self, generator: torch.Generator, correlation: float) -> None:
        self._generator, self._correlation = generator, correlation
        self._last: Tensor | None = None

    def draw(self, shape: torch.Size) -> Tensor:
        """Return the next noise, on the CPU."""
        noise, kept = torch.randn(shape, generator=self._generator), self._correlation
        if kept and self._last is not None:
            noise = kept * self._last + math.sqrt(1.0 - kept**2) * noise
        self._last = noise
        return noise


def resolve_std(initial_std: float | Literal["target"], target_entropy: float, size: int) -> float:
    """Return the initial standard deviation before tanh, in numbers.

    For "target" it is that of the target entropy, for a narrow policy in the middle of the range;
    near the bounds, where tanh is flat, the entropy of the same deviation is lower.

    Args:
        initial_std: the standard deviation, or "target".
        target_entropy: target entropy of an action, in nats.
        size: number of entries of an action.
    """
    if initial_std != "target":
        return initial_std
    return math.exp(target_entropy / size - _ENTROPY_OF_UNIT_NORMAL)
