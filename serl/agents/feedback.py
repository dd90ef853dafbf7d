"""Feedback: an addition to the reward, learned in training from a person's keys = and -.

As in Deep TAMER (Warnell et al. 2018, arXiv 1709.10163), an evaluation h of 1 or -1 is credited to
the steps before it, each with the weight w that a person's delay gives it
(`serl.training.replay.Replay`), and a network H(s, a) minimises the sum of w (H(s, a) - h)^2. Deep
TAMER chooses the action with the largest H(s, a), among few. Here `weight` * H(s, a) is added to
the reward of the run's own kind (Knox and Stone 2010, "Combining manual feedback with subsequent
MDP reward signals"), and the agent maximises discounted sums: an evaluation also counts for the
steps that lead there, actions are continuous, and successes still pay. Unlike potentials
(`serl.shaping`) such an addition can change the best policy, into a loop in the extreme.

A minibatch is not drawn from the evaluated steps alone: it is the evaluated part of the agent's
batch, with one step of the optimiser per update of the agent.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from serl.agent import Agent
from serl.agents.bc import BC
from serl.agents.config import FeedbackConfig
from serl.agents.learned_reward import LearnedReward
from serl.agents.networks import descend, to_device
from serl.agents.sac import SAC
from serl.errors import BadInput
from serl.types import Array, Batch


class FeedbackReward(LearnedReward):
    """An agent whose rewards include predicted evaluations; see `serl.agent.Agent`.

    Before the first evaluation the prediction is 0 everywhere; it is clipped to [-1, 1].

    Args:
        agent: the agent that learns from these rewards.
        seed: seed of the network's initial parameters.

    Raises:
        BadInput: the agent's algorithm is not supported.
    """

    NAME = "feedback"

    def __init__(self, agent: Agent, config: FeedbackConfig, seed: int) -> None:
        super().__init__(agent, config, seed, of_actions=True)
        self._weight = config.weight
        self._loss: Tensor | None = None  # of the newest evaluated transitions
        self._head.views(self._head_group.flat.detach())["1.weight"].zero_()

    @staticmethod
    def check(agent: Agent) -> SAC:
        """Return the agent; raise `BadInput` if its algorithm is not supported."""
        if not isinstance(agent, SAC) or isinstance(agent, BC):
            raise BadInput("feedback.weight: expected the algorithm sac or hybrid")
        return agent

    def update(self, batch: Batch) -> dict[str, float]:
        """Take a step of the network, then update the agent with the sums of both rewards.

        The agent's metrics are extended by the mean squared error of the prediction, in which each
        evaluated transition of a batch counts by its weight (`feedback_loss`, of the newest batch
        that has any), and by the mean addition to the rewards (`feedback_reward`).

        Raises:
            SpecMismatch: the batch size differs from the agent's.
        """
        self._learn(batch)
        given = self.rewards(batch)
        metrics = self._agent.update(replace(batch, reward=batch.reward + given))
        if "q" in metrics:
            metrics["feedback_reward"] = float(given.mean())
            if self._loss is not None:
                metrics["feedback_loss"] = self._loss.item()
        return metrics

    @torch.inference_mode()
    def rewards(self, batch: Batch) -> Array:
        """Return the addition to the rewards of transitions.  # (B,)."""
        predicted: Array = self._predict(batch, slice(None)).clamp(-1.0, 1.0).cpu().numpy()
        return self._weight * predicted

    def _learn(self, batch: Batch) -> None:
        """Take a step on the evaluated transitions, if there are any."""
        assert batch.feedback is not None
        rows = np.flatnonzero(batch.feedback[:, 0])
        if not len(rows):
            return
        weight, total = to_device(batch.feedback[rows], self._agent.device).unbind(1)
        # The gradient is that of the single evaluations: they differ from their mean by a constant.
        error = self._predict(batch, rows) - total / weight
        loss = (weight * error.square()).sum() / weight.sum()
        descend(loss, self._encoder_group, self._head_group)
        self._loss = loss.detach()

    def _predict(self, batch: Batch, rows: slice | NDArray[np.int64]) -> Tensor:
        """Return the predicted evaluations of transitions.  # (B,)."""
        images = {name: frames[..., -3:][rows] for name, frames in batch.images.items()}
        seen = self._see(batch.state[rows], images)
        acted = to_device(batch.action[rows], self._agent.device)
        return self._head(self._head_group.flat, torch.cat([seen, acted], -1))[0, :, 0]
