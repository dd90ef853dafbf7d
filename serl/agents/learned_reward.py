"""A reward that is learned beside the agent: its networks, and their part of the agent's state."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from serl.agent import Agent, State
from serl.agents.config import LearnedRewardConfig
from serl.agents.encoders import Encoder
from serl.agents.networks import EnsembleMLP, Group, adam_tensors, named_views, to_device
from serl.agents.sac import SAC
from serl.agents.weights import copy_into, to_arrays
from serl.errors import SpecMismatch
from serl.types import Action, Array, Batch, Features, Image, Observation


class LearnedReward(ABC):
    """An agent with networks that change its rewards; see `serl.agent.Agent`.

    Args:
        agent: the agent that learns from the changed rewards.
        config: settings of the networks.
        seed: seed of their initial parameters.
        of_actions: the reward depends on the state and the action, and on the images; else on the
            images, or on the state where there are none.

    Raises:
        BadInput: see `check`.
    """

    NAME: ClassVar[str]
    """Prefix of the parameters in the agent's state."""

    def __init__(
        self, agent: Agent, config: LearnedRewardConfig, seed: int, of_actions: bool = False
    ) -> None:
        self._agent = self.check(agent)
        spec = self._agent.spec
        images = spec.observation.images.items()
        cameras = {name: (image.shape[0], image.shape[1]) for name, image in images}
        state_size = spec.observation.state_size if of_actions or not cameras else 0
        self._encoder = Encoder(cameras, state_size, config.channels, config.latent, config.latent)
        actions = math.prod(spec.action.shape) if of_actions else 0
        sizes = (self._encoder.size + actions, config.hidden, 1)
        self._head = EnsembleMLP(1, sizes, layer_norm=True)
        init = torch.Generator().manual_seed(seed)
        self._encoder_group, self._head_group = (
            Group(network.init(init).to(self._agent.device), config.learning_rate)
            for network in (self._encoder, self._head)
        )

    @staticmethod
    @abstractmethod
    def check(agent: Agent) -> SAC:
        """Return the agent; raise `BadInput` if its algorithm is not supported."""

    @abstractmethod
    def update(self, batch: Batch) -> dict[str, float]:
        """Take a step of the networks, then update the agent with the changed rewards."""

    def act(self, observation: Observation, explore: bool) -> Action:
        """Return the agent's action."""
        return self._agent.act(observation, explore)

    def fit_normaliser(self, states: Array) -> None:
        """Set the agent's normaliser, which the networks use as well."""
        self._agent.fit_normaliser(states)

    def actor_weights(self) -> State:
        """Return the agent's actor weights: an actor needs no reward."""
        return self._agent.actor_weights()

    def load_actor_weights(self, weights: State) -> None:
        """Load the agent's actor weights."""
        self._agent.load_actor_weights(weights)

    def state_dict(self) -> State:
        """Return the state of the agent and of the networks."""
        return {**self._agent.state_dict(), **to_arrays(self._tensors())}

    def load_state_dict(self, state: State) -> None:
        """Restore `state_dict`; raises `SpecMismatch` and changes nothing on a mismatch."""
        tensors, before = self._tensors(), to_arrays(self._tensors())
        copy_into(tensors, {name: array for name, array in state.items() if name in tensors})
        try:
            self._agent.load_state_dict(
                {name: array for name, array in state.items() if name not in tensors}
            )
        except SpecMismatch:
            copy_into(tensors, before)
            raise

    def _see(self, state: Array, images: Mapping[str, Image | Features]) -> Tensor:
        """Encode observations.  # (B, Z)."""
        device = self._agent.device
        tensors = {name: to_device(images[name], device) for name in self._encoder.cameras}
        states = torch.empty(0)
        if self._encoder.state_size:
            states = self._agent.normalise(to_device(state, device))
        return self._encoder(self._encoder_group.flat, states, tensors)

    def _tensors(self) -> dict[str, Tensor]:
        """Return the parameters and the state of the optimisers, by name, as views."""
        tensors: dict[str, Tensor] = {}
        parts: dict[str, tuple[Any, Group]] = {
            "encoder": (self._encoder, self._encoder_group),
            "head": (self._head, self._head_group),
        }
        for part, (network, group) in parts.items():
            tensors |= named_views(f"{self.NAME}.{part}", network, group.flat)
            tensors |= adam_tensors(f"{self.NAME}.", part, network, group)
        return tensors
