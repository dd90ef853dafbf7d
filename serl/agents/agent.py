"""The contract of a learning algorithm. Free of torch, so that the core can name it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Protocol

import numpy as np

from serl.agents.config import AgentConfig
from serl.specs import Spec
from serl.types import Action, Array, Batch, Observation

State = Mapping[str, np.ndarray[Any, Any]]
"""Arrays by dotted name: what safetensors can hold."""


class Agent(Protocol):
    """An off-policy algorithm: acts, learns from batches, and can be saved and restored."""

    def act(self, observation: Observation, explore: bool) -> Action:
        """Action in [-1, 1], shape (A,): sampled when exploring, else the mode."""
        ...

    def fit_normaliser(self, states: Array) -> None:
        """Scale observations by the statistics of these state vectors, from now on.  # (N, D)."""
        ...

    def update(self, batch: Batch) -> dict[str, float]:
        """One outer step: `utd` critic updates on equal parts of the batch, one actor update.

        What is not finite changes nothing. Returns metrics when they are due (reading one costs a
        device sync); "skipped" are the updates in a row, this one last, that were not finite.
        """
        ...

    def actor_weights(self) -> State:
        """Copies of the arrays that acting needs, the normaliser included."""
        ...

    def load_actor_weights(self, weights: State) -> None:
        """Take over `actor_weights` of an equal agent, whole or not at all.

        Raises `SpecMismatch` when a name, shape or type differs or a value is not finite.
        """
        ...

    def state_dict(self) -> State:
        """Everything that exact continuation needs: all networks, optimisers, generators."""
        ...

    def load_state_dict(self, state: State) -> None:
        """Continue from `state_dict`; raises `SpecMismatch` and changes nothing on a mismatch."""
        ...


class Algorithm(Protocol):
    """What a module names as its `agent`; a class has `create` as a class method.

    Attributes:
        Config: its settings, `agent.*`; without it they are those of `SACConfig`.
    """

    Config: ClassVar[type[AgentConfig]]

    def create(self, spec: Spec, config: AgentConfig, seed: int) -> Agent:
        """A fresh agent; equal arguments give equal parameters.

        Args:
            spec: what it sees and does.
            config: an instance of `Config`.
            seed: of everything random in it.

        Raises:
            BadInput: the configuration contradicts itself or does not fit the spec.
        """
        ...
