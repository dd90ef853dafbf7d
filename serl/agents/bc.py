"""Behaviour cloning of demonstrations and human steps, with the actor and encoder of SAC.

With demonstrations alone it is BC; in a training with takeovers it is HG-DAgger (Kelly et al.
2019): the policy drives, and only human corrections are learned.
"""

from __future__ import annotations

import torch

from serl.agents.losses import prior_mean
from serl.agents.networks import descend
from serl.agents.sac import SAC
from serl.types import Batch


class BC(SAC):
    """Behaviour cloning agent; see `serl.agent.Agent`. Critics and temperature are not trained."""

    # Cloning does not learn it. A human corrects little near a clone, and RL starts from one.
    _INITIAL_STD = 0.05

    def update(self, batch: Batch) -> dict[str, float]:
        """Take `utd` steps of actor and encoder towards the actions of prior transitions.

        A step whose gradient is not finite is skipped. Metrics are returned every `metrics_every`
        updates.

        Raises:
            SpecMismatch: the batch has not utd * batch_size rows.
        """
        config, size = self.config, self.config.batch_size
        tensors = self._tensors(batch)
        groups = [self.actor, *self._critic_groups[1:]]
        skipped = torch.zeros((), device=self.device)
        for start in range(0, self._rows(batch), size):
            part = tensors.rows(slice(start, start + size))
            disturbed = self._cloning.disturbed(part.state, self._learning)
            state = part.state if disturbed is None else disturbed
            seen = self.networks.encode(self.encoder.flat, state, part.images)
            head = self.networks.head(self.actor.flat, seen)
            loss = prior_mean(self._cloning.error(*head, part.action), part)
            skipped = skipped + descend(loss, *groups)
        self.skipped = (self.skipped + 1.0) * skipped.sign()
        self.updates += 1
        self.average_actor()
        if self.updates % config.metrics_every:
            return {"skipped": self.skipped.item()} if self.device.type == "cpu" else {}
        return {"skipped": self.skipped.item(), "actor_loss": loss.item()}


agent = BC
