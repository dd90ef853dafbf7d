"""SAC for the arm with a discrete critic for its grippers, as in HIL-SERL.

Luo et al. 2024, section 4.3: a gripper is either open or closed, and nothing between the two has an
advantage. Each of n grippers may close, stay or open, which makes 3^n choices; one network, learned
by double DQN (van Hasselt et al. 2016), estimates the value of each choice, and the best one is
taken. A small cost of switching keeps the gripper from fluttering.

The action space determines the number of grippers; without any the algorithm is plain SAC.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from serl.agents.config import SACConfig
from serl.agents.losses import Tensors
from serl.agents.networks import (
    EnsembleMLP,
    Group,
    adam_tensors,
    descend,
    named_views,
    to_device,
)
from serl.agents.sac import SAC
from serl.specs import ArraySpec, Spec
from serl.types import Action, Batch, Observation

logger = logging.getLogger(__name__)

WIDTH = 3  # choices of one gripper: close, stay, open
_OPEN = 0.9  # share of the opening; a gripper that holds an object is below it


@dataclass(frozen=True)
class Grippers:
    """Entries of the action that drive grippers, and of the state that give their openings.

    Attributes:
        size: size of the whole action, A.
        places: indices of the grippers' entries in an action.
        openings: indices of their openings in a state vector; empty if unknown.
    """

    size: int
    places: tuple[int, ...]
    openings: tuple[int, ...]

    @classmethod
    def of(cls, spec: Spec) -> Grippers:
        """Find the grippers of a spec by its entries whose names end in "gripper"."""
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
        """Indices of all other entries."""
        return tuple(place for place in range(self.size) if place not in self.places)

    @property
    def choices(self) -> int:
        """The number of discrete choices, C."""
        return int(WIDTH ** len(self.places))

    def choices_of(self, action: Tensor) -> Tensor:
        """Return the choices in actions (B, A): below -0.5 close, above 0.5 open.  # (B,) int64."""
        grips = action[:, list(self.places)]
        digits = (grips > 0.5).long() - (grips < -0.5).long() + 1  # (B, n)
        weights = torch.tensor([WIDTH**n for n in range(len(self.places))], device=action.device)
        return (digits * weights).sum(-1)

    def put(self, arm: Tensor, choice: Tensor) -> Tensor:
        """Combine the arm's entries and choices (B,) to whole actions.  # (B, A)."""
        action = arm.new_zeros(len(arm), self.size)
        action[:, list(self.arm)] = arm
        for number, place in enumerate(self.places):
            action[:, place] = (choice // WIDTH**number % WIDTH).to(arm.dtype) - 1.0
        return action

    def switches(self, action: Tensor, state: Tensor) -> Tensor:
        """Count grippers that actions (B, A) switch, by openings in states (B, D).  # (B,)."""
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
    """Return reward + discount * the target's value of the grasp critic's best choice.  # (B,)."""
    best = network.member(grasp[0], next_state).argmax(-1, keepdim=True)
    values = network.member(target[0], next_state)
    return reward + discount * values.gather(-1, best).squeeze(-1)


def grasp_loss(values: Tensor, choice: Tensor, target: Tensor) -> Tensor:
    """Return the squared error of the values (B, C) of the choices made (B,)."""
    made = values.gather(-1, choice.unsqueeze(-1)).squeeze(-1)
    return (made - target).square().mean()


def margin_loss(values: Tensor, choice: Tensor, prior: Tensor, margin: float) -> Tensor:
    """Return the loss that keeps other choices a margin below those of the prior data.

    The large-margin classification loss of Hester et al. 2018, Deep Q-learning from demonstrations:
    the maximum over choices of the value, plus the margin for all but the choice made, less the
    value of the choice made. Without it, values of choices that no data covers are arbitrary.

    Args:
        values: values of all choices.  # (B, C)
        choice: choices made.  # (B,)
        prior: 1 in rows of the prior data, else 0.  # (B,)
        margin: distance to keep.
    """
    made = choice.unsqueeze(-1)
    best = (values + margin).scatter(-1, made, values.gather(-1, made)).amax(-1)
    excess = best - values.gather(-1, made).squeeze(-1)
    return (prior * excess).sum() / prior.sum().clamp(min=1.0)


class HybridSAC(SAC):
    """The hybrid agent; see `serl.agent.Agent`. Actor and critics use the arm's entries alone."""

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
        self.spec = spec  # of whole actions, as in batches
        sizes = (self.networks.actor.sizes[0], *config.hidden, self.grippers.choices)
        self.grasp_network = EnsembleMLP(1, sizes, config.layer_norm, config.activation)
        init = torch.Generator().manual_seed(seed + 3)
        fresh = self.grasp_network.init(init).to(self.device)
        self.grasp = Group(fresh, config.learning_rate)
        self.grasp_target = fresh.detach().clone()
        self._choices = self._costs = torch.empty(0, device=self.device)  # of the current batch
        self._bounds = _grasp_bounds(config, len(self.grippers.places))

    @classmethod
    def create(cls, spec: Spec, config: SACConfig, seed: int) -> SAC:
        """Create the agent; a plain SAC if the action moves no gripper."""
        return (cls if Grippers.of(spec).places else SAC)(spec, config, seed)

    @torch.inference_mode()
    def act(self, observation: Observation, explore: bool) -> Action:
        """Return an action: the arm's entries by SAC, the gripper's greedily: -1, 0 or 1.

        When exploring, a share `grasp_epsilon` of the gripper's choices is random.
        """
        seen, epsilon = self.encode_observation(observation), self.config.grasp_epsilon
        choice = self._best_choice(seen)
        if explore and epsilon and torch.rand((), generator=self._acting).item() < epsilon:
            choice = torch.randint(self.grippers.choices, (1,), generator=self._acting)
        arm = self.select_action(seen, explore).unsqueeze(0)
        action: Action = self.grippers.put(arm, choice.to(self.device))[0].cpu().numpy()
        return action

    def select_modes(self, seen: Tensor) -> Tensor:
        """Return the arm's modes and the grippers' best choices.  # (B, A)."""
        return self.grippers.put(super().select_modes(seen), self._best_choice(seen))

    def _best_choice(self, seen: Tensor) -> Tensor:
        """Return the choices of the highest value for encoded observations, (B, Z).  # (B,)."""
        return self.grasp_network.member(self.grasp.flat[0], seen).argmax(-1)

    def update(self, batch: Batch) -> dict[str, float]:
        """Update as SAC; the grasp critic takes a step with each critic update."""
        if not (self.updates or self.grippers.openings) and self.config.grasp_penalty:
            logger.warning(
                "agent.grasp_penalty %g: costs nothing: the state has no opening of each of %d "
                'grippers (entries whose names end in "gripper")',
                *(self.config.grasp_penalty, len(self.grippers.places)),
            )
        action, state = to_device(batch.action, self.device), to_device(batch.state, self.device)
        self._choices = self.grippers.choices_of(action)
        self._costs = self.config.grasp_penalty * self.grippers.switches(action, state)
        arm = np.ascontiguousarray(batch.action[:, list(self.grippers.arm)])
        return super().update(replace(batch, action=arm))

    def additional_step(self, part: Tensors, seen: Tensor, rows: slice) -> Tensor:
        """Take a step of the grasp critic on a part of the batch; return 1 if it was skipped."""
        with torch.no_grad():
            target = grasp_target(
                self.grasp_network,
                self.grasp.flat,
                self.grasp_target,
                part.reward - self._costs[rows],
                part.discount,
                part.next_state,
            ).clamp(*self._bounds)
        values, choices = self.grasp_network.member(self.grasp.flat[0], seen), self._choices[rows]
        loss = grasp_loss(values, choices, target)
        if weight := self.config.grasp_margin_weight:
            margin = self.config.grasp_margin
            loss = loss + weight * margin_loss(values, choices, part.prior, margin)
        skipped = descend(loss, self.grasp)
        with torch.no_grad():
            self.grasp_target.lerp_(self.grasp.flat, self.config.tau * (1.0 - skipped))
        return skipped

    def _actor_tensors(self, average: Tensor | None = None) -> dict[str, Tensor]:
        grasp = named_views("grasp", self.grasp_network, self.grasp.flat)
        return {**super()._actor_tensors(average), **grasp}

    def _all_tensors(self) -> dict[str, Tensor]:
        return {
            **super()._all_tensors(),
            **named_views("grasp_target", self.grasp_network, self.grasp_target),
            **adam_tensors("", "grasp", self.grasp_network, self.grasp),
        }


def _grasp_bounds(config: SACConfig, grippers: int) -> tuple[float, float]:
    """Return the least and greatest possible return, with the cost of switching in every step."""
    low, high = config.return_bounds or (-math.inf, math.inf)
    cost = config.grasp_penalty * grippers
    return (low - cost / (1.0 - config.discount) if config.discount < 1.0 else -math.inf), high


agent = HybridSAC
