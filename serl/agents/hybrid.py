"""SAC for the arm and a discrete critic for its gripper, as in HIL-SERL.

Luo et al. 2024, section 4.3: a gripper is open or closed, and between the two nothing is better
than either. Each of n grippers may close, stay or open, which makes 3^n choices; one network says
what each is worth, learned by double DQN (van Hasselt et al. 2016), and acts greedily. To switch
costs a little, so that the gripper does not flutter.

The action says which of the four set-ups it is: one arm or two, whose grippers it moves or which
are fixed. Where it moves none, all that is left is SAC.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from serl.agents.config import SACConfig
from serl.agents.device import moved
from serl.agents.losses import Tensors
from serl.agents.networks import EnsembleMLP, Group, descend, named_views
from serl.agents.sac import SAC
from serl.specs import ArraySpec, Spec
from serl.types import Action, Batch, Observation

logger = logging.getLogger(__name__)

_WIDTH = 3  # choices of one gripper: close, stay, open
_OPEN = 0.9  # of the way; a gripper that holds something is less


@dataclass(frozen=True)
class Grippers:
    """Which entries of an action drive grippers, and which of the state tell how far they are open.

    Attributes:
        size: of the whole action, A.
        places: of the grippers' entries in an action.
        openings: of their openings in a state vector; empty where it has none.
    """

    size: int
    places: tuple[int, ...]
    openings: tuple[int, ...]

    @classmethod
    def of(cls, spec: Spec) -> Grippers:
        """Those of a spec: entries whose names end in "gripper"."""
        names = spec.action_names
        places = tuple(i for i, name in enumerate(names) if name.endswith("gripper"))
        openings: list[int] = []
        start = 0
        for name, array in spec.observation.state.items():
            (size,) = array.shape or (1,)
            if name.endswith("gripper"):
                openings += range(start, start + size)
            start += size
        known = tuple(openings) if len(openings) == len(places) else ()
        return cls(len(names), places, known)

    @cached_property
    def arm(self) -> tuple[int, ...]:
        """Places of all other entries."""
        return tuple(place for place in range(self.size) if place not in self.places)

    @property
    def choices(self) -> int:
        """How many there are, C."""
        return int(_WIDTH ** len(self.places))

    def chosen(self, action: Tensor) -> Tensor:
        """The choice in actions (B, A): below -0.5 closes, above 0.5 opens.  # (B,) int64."""
        grips = action[:, list(self.places)]
        digits = (grips > 0.5).long() - (grips < -0.5).long() + 1  # (B, n)
        weights = torch.tensor([_WIDTH**n for n in range(len(self.places))], device=action.device)
        return (digits * weights).sum(-1)

    def put(self, arm: Tensor, choice: int) -> Tensor:
        """The whole action of an arm's entries and a choice.  # (A,)."""
        action = arm.new_zeros(self.size)
        action[list(self.arm)] = arm
        for place in self.places:
            choice, digit = divmod(choice, _WIDTH)
            action[place] = digit - 1.0
        return action

    def switches(self, action: Tensor, state: Tensor) -> Tensor:
        """How many grippers actions (B, A) switch, by their openings in states (B, D).  # (B,)."""
        if not self.openings:
            return action.new_zeros(len(action))
        grips, opening = action[:, list(self.places)], state[:, list(self.openings)]
        closing = (grips < -0.5) & (opening > _OPEN)
        opened = (grips > 0.5) & (opening <= _OPEN)
        return (closing | opened).sum(-1).float()


def grasp_target(
    network: EnsembleMLP,
    grasp: Tensor,
    target: Tensor,
    reward: Tensor,
    discount: Tensor,
    next_state: Tensor,
) -> Tensor:
    """Reward + discount * the target's value of what the grasp critic would choose.  # (B,)."""
    best = network.member(grasp[0], next_state).argmax(-1, keepdim=True)
    values = network.member(target[0], next_state)
    return reward + discount * values.gather(-1, best).squeeze(-1)


def grasp_loss(
    network: EnsembleMLP, grasp: Tensor, state: Tensor, choice: Tensor, target: Tensor
) -> Tensor:
    """Squared error of the values of the choices that were made."""
    values = network.member(grasp[0], state).gather(-1, choice.unsqueeze(-1)).squeeze(-1)
    return (values - target).square().mean()


class HybridSAC(SAC):
    """The agent; see `serl.agent.Agent`. Actor and critics see the arm's entries alone."""

    def __init__(self, spec: Spec, config: SACConfig, seed: int) -> None:
        self.grippers = Grippers.of(spec)
        names = spec.action_names
        arm = ArraySpec(
            shape=(len(self.grippers.arm),),
            low=-1.0,
            high=1.0,
            unit=" ".join(names[place] for place in self.grippers.arm),
        )
        super().__init__(spec.model_copy(update={"action": arm}), config, seed)
        sizes = (self.networks.actor.sizes[0], *config.hidden, self.grippers.choices)
        self.grasp_network = EnsembleMLP(1, sizes, config.layer_norm)
        init = torch.Generator().manual_seed(seed + 3)
        fresh = self.grasp_network.init(init).to(self.device)
        self.grasp = Group(fresh, config.learning_rate)
        self.grasp_target = fresh.detach().clone()
        self._chosen = self._paid = torch.empty(0, device=self.device)  # of the batch at hand

    @classmethod
    def create(cls, spec: Spec, config: SACConfig, seed: int) -> SAC:
        """As SAC; of an arm whose action moves no gripper, SAC itself."""
        return (cls if Grippers.of(spec).places else SAC)(spec, config, seed)

    @torch.inference_mode()
    def act(self, observation: Observation, explore: bool) -> Action:
        """The arm's entries as SAC, the gripper's greedily: -1, 0 or 1."""
        seen = self.see(observation)
        choice = int(self.grasp_network.member(self.grasp.flat[0], seen).argmax())
        action: Action = self.grippers.put(self.choose(seen, explore), choice).cpu().numpy()
        return action

    def update(self, batch: Batch) -> dict[str, float]:
        """As SAC; the grasp critic takes a step beside each of the critics'."""
        if not (self.updates or self.grippers.openings) and self.config.grasp_penalty:
            logger.warning(
                "agent.grasp_penalty %g: costs nothing: the state does not tell how far each of %d "
                'grippers is open (entries whose names end in "gripper")',
                *(self.config.grasp_penalty, len(self.grippers.places)),
            )
        action, state = moved(batch.action, self.device), moved(batch.state, self.device)
        self._chosen = self.grippers.chosen(action)
        self._paid = self.config.grasp_penalty * self.grippers.switches(action, state)
        arm = np.ascontiguousarray(batch.action[:, list(self.grippers.arm)])
        return super().update(replace(batch, action=arm))

    def learn_beside(self, part: Tensors, seen: Tensor, rows: slice) -> Tensor:
        """The grasp critic's step on a part of the batch; 1 when it was skipped."""
        with torch.no_grad():
            target = grasp_target(
                self.grasp_network,
                self.grasp.flat,
                self.grasp_target,
                part.reward - self._paid[rows],
                part.discount,
                part.next_state,
            )
        loss = grasp_loss(self.grasp_network, self.grasp.flat, seen, self._chosen[rows], target)
        skipped = descend(loss, self.grasp)
        with torch.no_grad():
            self.grasp_target.lerp_(self.grasp.flat, self.config.tau * (1.0 - skipped))
        return skipped

    def _actor_tensors(self) -> dict[str, Tensor]:
        grasp = named_views("grasp", self.grasp_network, self.grasp.flat)
        return {**super()._actor_tensors(), **grasp}

    def _all_tensors(self) -> dict[str, Tensor]:
        network = self.grasp_network
        return {
            **super()._all_tensors(),
            **named_views("grasp_target", network, self.grasp_target),
            **named_views("adam.grasp.moment", network, self.grasp.moment),
            **named_views("adam.grasp.square", network, self.grasp.square),
            "adam.grasp.steps": self.grasp.steps,
        }


agent = HybridSAC
