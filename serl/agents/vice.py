"""VICE: a reward learned during training, from observations of success alone.

A classifier learns to distinguish successes from visited observations, while the agent learns to
visit observations that the classifier predicts as success (Fu et al. 2018; Singh et al. 2019,
section 4.1). As the policy succeeds, the two become indistinguishable: a state that only looks like
success does not pay for long, as it would with a fixed classifier. Regularised as in SERL: labels
are smoothed, features are mixed, and the slope of the classifier is held near 1.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from serl.agent import Agent, State
from serl.agents.config import VICEConfig
from serl.agents.learned_reward import LearnedReward
from serl.agents.networks import descend
from serl.agents.sac import SAC
from serl.errors import BadInput
from serl.training.frames import random_shift
from serl.training.successes import Successes
from serl.types import Array, Batch, Features, Image

_GENERATOR = "generator.vice"


class VICE(LearnedReward):
    """An agent with a learned reward; see `serl.agent.Agent`.

    The reward of a transition is 1 - discount where the classifier predicts success for the next
    observation, otherwise 0; without `binary` it is 1 - discount times the probability of success.
    Returns therefore lie between 0 and 1, and an episode that ended is worth as much as one that
    stays where it ended. Rewards in the batch are ignored.

    The classifier uses the images of an observation, or the state where there are none.

    Args:
        agent: the agent that learns from these rewards.
        successes: observations of success.
        seed: seed of the classifier's randomness.

    Raises:
        BadInput: there are no successes, or the agent's algorithm is not supported.
    """

    NAME = "vice"

    def __init__(self, agent: Agent, config: VICEConfig, successes: Successes, seed: int) -> None:
        if not len(successes):
            raise BadInput(
                "reward vice: no successes to learn from: expected demonstrations that succeed, "
                "or labelled ones in vice.positives"
            )
        super().__init__(agent, config, seed + 1)
        self._config, self._successes = config, successes
        self._generator = torch.Generator().manual_seed(seed)

    @staticmethod
    def check(agent: Agent) -> SAC:
        """Return the agent; raise `BadInput` if its algorithm is not supported."""
        if not isinstance(agent, SAC):
            raise BadInput("reward vice: expected the algorithm sac, hybrid or bc")
        return agent

    def update(self, batch: Batch) -> dict[str, float]:
        """Take a step of the classifier, then update the agent with the new rewards.

        The agent's metrics are extended by the mean predicted probability of success for successes
        (`vice_good`) and for visited observations (`vice_visited`), and by the mean reward
        (`vice_reward`).

        Raises:
            SpecMismatch: the batch size differs from the agent's.
        """
        good, visited = self._learn(batch)
        rewards = self.rewards(batch)
        metrics = self._agent.update(replace(batch, reward=rewards))
        if "q" in metrics:
            metrics |= {"vice_good": self._mean(good), "vice_visited": self._mean(visited)}
            metrics["vice_reward"] = float(rewards.mean())
        return metrics

    @torch.inference_mode()
    def rewards(self, batch: Batch) -> Array:
        """Return the classifier's rewards of transitions.  # (B,)."""
        seen = self._see(batch.next_state, _newest(batch))
        success: Array = self._head(self._head_group.flat, seen)[0, :, 0].sigmoid().cpu().numpy()
        if self._config.binary:
            success = (success >= 0.5).astype(np.float32)
        return (1.0 - batch.discount) * success

    def load_state_dict(self, state: State) -> None:
        """Restore `state_dict`; raises `SpecMismatch` and changes nothing on a mismatch."""
        super().load_state_dict(state)
        self._generator.set_state(torch.from_numpy(np.array(state[_GENERATOR])))

    @torch.inference_mode()
    def _mean(self, seen: Tensor) -> float:
        """Return the mean probability of success, over features of observations."""
        return self._head(self._head_group.flat, seen).sigmoid().mean().item()

    def _learn(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Take a step on equally many successes and visited observations; return their features."""
        size, generator = self._config.batch_size, self._generator
        rows = torch.randint(len(self._successes), (size,), generator=generator).numpy()
        rng = np.random.default_rng(int(torch.randint(2**31, (), generator=generator)))
        images = {
            name: random_shift(frames, rows, self._config.crop_px or 0, rng)
            for name, frames in self._successes.images.items()
        }
        good = self._see(self._successes.state[rows], images)
        # Observations of humans and demonstrations may be successes: they are no negatives.
        policy = np.flatnonzero(~batch.prior)
        candidates = policy if len(policy) else np.arange(len(batch.prior))
        rows = candidates[torch.randint(len(candidates), (size,), generator=generator).numpy()]
        images = {name: frames[rows] for name, frames in _newest(batch).items()}
        visited = self._see(batch.next_state[rows], images)
        shares = torch.rand(3 * size, 1, generator=generator).to(good.device)
        partners = torch.randperm(2 * size, generator=generator)
        loss = self._loss(good, visited, shares, partners)
        descend(loss, self._encoder_group, self._head_group)
        return good.detach(), visited.detach()

    def _loss(self, good: Tensor, visited: Tensor, shares: Tensor, partners: Tensor) -> Tensor:
        """Return cross-entropy on mixed features, plus the penalty of slopes other than 1.

        Args:
            good: features of successes.  # (B, Z)
            visited: features of visited observations.  # (B, Z)
            shares: uniform in [0, 1].  # (3 B, 1)
            partners: a permutation.  # (2 B,)
        """
        config, size = self._config, len(good)
        features = torch.cat([good, visited])
        targets = torch.full((2 * size, 1), config.smoothing, device=good.device)
        targets[:size] = 1.0 - config.smoothing
        if config.mixup:
            share = shares[: 2 * size]
            features = torch.lerp(features[partners], features, share)
            targets = torch.lerp(targets[partners], targets, share)
        logits = self._head(self._head_group.flat, features)[0]
        loss = functional.binary_cross_entropy_with_logits(logits, targets)
        if not config.slope_weight:
            return loss
        between = torch.lerp(visited, good, shares[2 * size :]).detach().requires_grad_()
        total = self._head(self._head_group.flat, between).sum()
        (slope,) = torch.autograd.grad(total, between, create_graph=True)
        off: Tensor = slope.norm(dim=-1) - 1.0
        return loss + config.slope_weight * off.square().mean()

    def _tensors(self) -> dict[str, Tensor]:
        return {_GENERATOR: self._generator.get_state(), **super()._tensors()}


def _newest(batch: Batch) -> dict[str, Image | Features]:
    """Return the newest of the stacked frames that the agent sees, without a copy."""
    return {name: images[..., -3:] for name, images in batch.next_images.items()}


reward = VICE
