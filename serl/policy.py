"""Contract of a policy, and two trivial implementations."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from serl.specs import ArraySpec
from serl.types import Action, Observation


class Policy(Protocol):
    """A function from an observation to an action."""

    def __call__(self, observation: Observation) -> Action:
        """Return the action, in [-1, 1] and of shape (A,), for one observation."""
        ...


class ZeroPolicy:
    """A policy that always returns the zero action."""

    def __init__(self, spec: ArraySpec) -> None:
        self._action = np.zeros(spec.shape, np.float32)

    def __call__(self, observation: Observation) -> Action:
        """Return the zero action."""
        return self._action


class RandomPolicy:
    """A policy that returns uniformly random actions, determined by a seed."""

    def __init__(self, spec: ArraySpec, seed: int) -> None:
        self._shape = spec.shape
        self._rng = np.random.default_rng(seed)

    def __call__(self, observation: Observation) -> Action:
        """Return a uniformly random action in [-1, 1]."""
        return self._rng.uniform(-1.0, 1.0, self._shape).astype(np.float32)
