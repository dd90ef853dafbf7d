"""The networks of SAC, and its losses as pure functions of parameters, batch and randomness.

RLPD (Ball et al. 2023) on soft actor-critic (Haarnoja et al. 2018).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from serl.agents.config import SACConfig
from serl.agents.encoders import Encoder
from serl.agents.networks import EnsembleMLP, split_head, squash
from serl.errors import BadInput
from serl.specs import ObservationSpec

_WITHIN_BOUNDS = 0.999  # atanh of it is 3.8


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

    @classmethod
    def create(
        cls,
        config: SACConfig,
        cameras: Mapping[str, tuple[int, int]],
        sizes: tuple[int, int],
        trunk_shape: tuple[int, int, int] | None,
        dtype: torch.dtype,
    ) -> Networks:
        """Build actor, critics and encoder for `sizes` of state and action."""
        state_size, action_size = sizes
        latents = config.latents(trunk_shape is not None)
        channels = config.encoder_channels
        encoder = Encoder(
            cameras, state_size, channels, *latents, trunk_shape, config.frames, dtype
        )
        size = encoder.size if cameras else state_size
        hidden = config.actor_hidden or config.hidden
        norm = config.layer_norm if config.actor_layer_norm is None else config.actor_layer_norm
        activation = config.actor_activation or config.activation
        critic = (size + action_size, *config.hidden, 1)
        return cls(
            EnsembleMLP(1, (size, *hidden, 2 * action_size), norm, activation),
            EnsembleMLP(config.critics, critic, config.layer_norm, config.activation),
            encoder,
        )

    def encode(self, encoder: Tensor, state: Tensor, images: Mapping[str, Tensor]) -> Tensor:
        """Return the input of actor and critics, shape (B, Z); without cameras the state itself."""
        return self.encoder(encoder, state, images) if self.encoder.cameras else state

    def head(self, actor: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and log standard deviation before tanh.  # (B, A)."""
        return split_head(self.actor(actor, state)[0])

    def sample(self, actor: Tensor, state: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return sampled actions (B, A), their log-probabilities (B,) and the modes (B, A)."""
        mean, log_std = self.head(actor, state)
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
    chosen = target if len(subset) == len(target) else target.index_select(0, subset)
    values = networks.values(chosen, batch.next_state, next_action)  # (M, B)
    return batch.reward + batch.discount * (values.amin(0) + next_bonus)


def critic_loss(
    networks: Networks, critic: Tensor, encoder: Tensor, batch: Tensors, target: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the squared error to `target`, mean over batch, sum over members; and the features.

    The sum leaves each member the gradient that it would have alone.
    """
    seen = networks.encode(encoder, batch.state, batch.images)  # (B, Z)
    loss = networks.critic.squared_error(critic, torch.cat([seen, batch.action], -1), target)
    return loss, seen.detach()


class Cloning(NamedTuple):
    """The cloning loss.

    A clone that observes the arm's motion learns to repeat it, as a person's next action is much
    like the last one, and fails once its own motion differs a little (de Haan et al. 2019, Causal
    confusion in imitation learning). Noise on these entries makes them a poor guide.

    Attributes:
        loss: "mse", the squared error of the mode; or "nll", the negative log-likelihood before
            tanh, which learns the standard deviation too. Human actions lie on the bounds, where
            a tanh-Gaussian saturates, so its likelihood is that of actions just within.
        filter: "q" to clone only actions that the critics value above the mode.
        noise: standard deviations of noise on the normalised state whose action is cloned.  # (D,)
    """

    loss: Literal["mse", "nll"] = "mse"
    filter: Literal["none", "q"] = "none"
    noise: Tensor | None = None

    @classmethod
    def create(cls, config: SACConfig, observation: ObservationSpec) -> Cloning:
        """Return the configured loss.

        Raises:
            BadInput: noise is configured on an entry that the observation has not, or with images.
        """
        entries = config.bc_noise
        if unknown := entries.keys() - observation.state.keys():
            known = ", ".join(observation.state)
            raise BadInput(f"agent.bc_noise: expected entries of {known}, found {min(unknown)}")
        if entries and observation.images:
            raise BadInput("agent.bc_noise: expected none for a task with cameras")
        sizes = {name: math.prod(spec.shape) for name, spec in observation.state.items()}
        stds = [entries.get(name, 0.0) for name, size in sizes.items() for _ in range(size)]
        return cls(config.bc_loss, config.bc_filter, torch.tensor(stds) if entries else None)

    def disturbed(self, state: Tensor, generator: torch.Generator) -> Tensor | None:
        """Return normalised states with noise; None if no noise is configured.  # (B, D)."""
        if self.noise is None:
            return None
        noise = self.noise * torch.randn(state.shape, generator=generator)
        return state + noise.to(state.device)

    def error(self, mean: Tensor, log_std: Tensor, action: Tensor) -> Tensor:
        """Return the loss of each action (B, A), without constants.  # (B,)."""
        if self.loss == "mse":
            return (torch.tanh(mean) - action).square().sum(-1)
        raw = torch.atanh(action.clamp(-_WITHIN_BOUNDS, _WITHIN_BOUNDS))
        return (0.5 * ((raw - mean) / log_std.exp()).square() + log_std).sum(-1)


def actor_loss(
    networks: Networks,
    actor: Tensor,
    critic: Tensor,
    batch: Tensors,
    noise: Tensor,
    temperature: Tensor,
    weights: Tensor,
    cloning: Cloning,
    disturbed: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the loss of the actor, and its mean entropy (no gradient).

    temperature * log pi - mean of all critics, plus the cloning loss on the actions of the prior
    data. `weights` (2,) weigh the two terms; the critics filter the second one
    only beside the first, since they are not trained on the policy while it is cloned alone.
    `disturbed` are the states of the batch with the noise of cloning, see `Cloning`.
    """
    mean, log_std = networks.head(actor, batch.state)
    action, log_probability = squash(mean, log_std, noise)
    value = networks.critic.mean_output(critic, torch.cat([batch.state, action], -1))  # (B,)
    improvement = (temperature * log_probability - value).mean()
    cloned = (mean, log_std) if disturbed is None else networks.head(actor, disturbed)
    error = cloning.error(*cloned, batch.action)
    if cloning.filter == "q":
        better = exceeds_mode(networks, critic, batch, torch.tanh(mean.detach()))
        error = error * torch.where(weights[0] > 0.0, better, 1.0)
    objective = weights[0] * improvement + weights[1] * prior_mean(error, batch)
    return objective, -log_probability.detach().mean()


def exceeds_mode(networks: Networks, critic: Tensor, batch: Tensors, mode: Tensor) -> Tensor:
    """Return 1 for actions of the batch that the critics value above the mode, else 0.  # (B,).

    The Q-filter of Nair et al. 2018, Overcoming exploration in reinforcement learning with
    demonstrations, with the mean of all critics.
    """
    with torch.no_grad():
        shown, own = (
            networks.values(critic, batch.state, action).mean(0) for action in (batch.action, mode)
        )
    return (shown > own).float()


def prior_mean(error: Tensor, batch: Tensors) -> Tensor:
    """Return the mean of errors (B,) over the rows of the prior data, 0 without any."""
    return (batch.prior * error).sum() / batch.prior.sum().clamp(min=1.0)


def temperature_loss(log_temperature: Tensor, entropy: Tensor, target_entropy: float) -> Tensor:
    """Return the loss whose step raises the temperature while the entropy is below the target."""
    return log_temperature.exp().sum() * (entropy - target_entropy)
