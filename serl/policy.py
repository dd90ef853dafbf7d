"""The contract of everything that chooses actions, and its trivial implementations."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from serl.specs import ArraySpec
from serl.types import Action, Observation


class Policy(Protocol):
    """Observation in, action out."""

    def __call__(self, observation: Observation) -> Action:
        """Action in [-1, 1], shape (A,), for one observation."""
        ...


class ZeroPolicy:
    """Does nothing: the zero action."""

    def __init__(self, spec: ArraySpec) -> None:
        self._action = np.zeros(spec.shape, np.float32)

    def __call__(self, observation: Observation) -> Action:
        """The zero action."""
        return self._action


class Random:
    """Uniform actions from a seed."""

    def __init__(self, spec: ArraySpec, seed: int) -> None:
        self._shape = spec.shape
        self._rng = np.random.default_rng(seed)

    def __call__(self, observation: Observation) -> Action:
        """A uniform action in [-1, 1]."""
        return self._rng.uniform(-1.0, 1.0, self._shape).astype(np.float32)
