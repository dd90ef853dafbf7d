"""The losses of SAC as pure functions of flat parameters, a batch and given randomness.

RLPD (Ball et al. 2023) on soft actor-critic (Haarnoja et al. 2018).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from serl.agents.encoders import Encoder
from serl.agents.networks import EnsembleMLP, split_head, squash


class Tensors(NamedTuple):
    """A `Batch` on the device; its state is encoded, or the input of the encoder."""

    state: Tensor  # (B, D)
    action: Tensor  # (B, A)
    reward: Tensor  # (B,)
    discount: Tensor  # (B,)
    next_state: Tensor  # (B, D)
    prior: Tensor  # (B,) float32, 0 or 1
    images: Mapping[str, Tensor]  # (B, H, W, 3) uint8 each

    def rows(self, part: slice) -> Tensors:
        """Return a slice of the transitions."""
        return Tensors(
            self.state[part],
            self.action[part],
            self.reward[part],
            self.discount[part],
            self.next_state[part],
            self.prior[part],
            {name: image[part] for name, image in self.images.items()},
        )


@dataclass(frozen=True)
class Networks:
    """Architectures of actor, critics and encoder; the losses receive their parameters."""

    actor: EnsembleMLP
    critic: EnsembleMLP
    encoder: Encoder

    def encode(self, encoder: Tensor, state: Tensor, images: Mapping[str, Tensor]) -> Tensor:
        """Return the input of actor and critics, shape (B, Z); without cameras the state itself."""
        return self.encoder(encoder, state, images) if self.encoder.cameras else state

    def sample(self, actor: Tensor, state: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return sampled actions (B, A), their log-probabilities (B,) and the modes (B, A)."""
        mean, log_std = split_head(self.actor(actor, state)[0])
        return *squash(mean, log_std, noise), torch.tanh(mean)

    def values(self, critic: Tensor, state: Tensor, action: Tensor) -> Tensor:
        """Return the Q-values of the critics with the given parameters, shape (E, B)."""
        return self.critic(critic, torch.cat([state, action], -1)).squeeze(-1)


def critic_target(
    networks: Networks,
    target: Tensor,
    batch: Tensors,
    next_action: Tensor,
    next_bonus: Tensor,
    subset: Tensor,
) -> Tensor:
    """Return the critics' target, shape (B,): r + discount * (min over `subset` + bonus).

    Chen et al. 2021 (REDQ), algorithm 1. `batch.discount` is 0 where the task terminated, but not
    where an episode was merely truncated.
    """
    chosen = target.index_select(0, subset)
    values = networks.values(chosen, batch.next_state, next_action)  # (M, B)
    return batch.reward + batch.discount * (values.amin(0) + next_bonus)


def critic_loss(
    networks: Networks, critic: Tensor, encoder: Tensor, batch: Tensors, target: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the squared error to `target`, mean over batch, sum over members; and the features.

    The sum leaves each member the gradient that it would have alone.
    """
    seen = networks.encode(encoder, batch.state, batch.images)  # (B, Z)
    values = networks.values(critic, seen, batch.action)  # (E, B)
    return (values - target).square().mean(1).sum(), seen.detach()


def actor_loss(
    networks: Networks,
    actor: Tensor,
    critic: Tensor,
    batch: Tensors,
    noise: Tensor,
    temperature: Tensor,
    weights: Tensor,
) -> tuple[Tensor, Tensor]:
    """Return the loss of the actor, and its mean entropy (no gradient).

    temperature * log pi - mean of all critics, plus the squared error of the mode to the actions
    of demonstrations and humans. The mode's error, not the likelihood, because human actions lie
    on the bounds, where a tanh-Gaussian would saturate. `weights` (2,) weigh the two terms.
    """
    action, log_probability, mode = networks.sample(actor, batch.state, noise)
    value = networks.values(critic, batch.state, action).mean(0)  # (B,)
    improvement = (temperature * log_probability - value).mean()
    objective = weights[0] * improvement + weights[1] * cloning_loss(mode, batch)
    return objective, -log_probability.detach().mean()


def cloning_loss(mode: Tensor, batch: Tensors) -> Tensor:
    """Return the squared error of modes (B, A) to the actions of demonstrations and humans."""
    error = (mode - batch.action).square().sum(-1)  # (B,)
    return (batch.prior * error).sum() / batch.prior.sum().clamp(min=1.0)


def temperature_loss(log_temperature: Tensor, entropy: Tensor, target_entropy: float) -> Tensor:
    """Return the loss whose step raises the temperature while the entropy is below the target."""
    return log_temperature.exp().sum() * (entropy - target_entropy)
