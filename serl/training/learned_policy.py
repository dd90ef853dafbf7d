"""An agent as a policy, with the newest weights."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from serl.agent import Agent
from serl.errors import BadInput
from serl.training.stacking import FrameStack
from serl.transport import Snapshot, WeightSource
from serl.types import Action, Observation

logger = logging.getLogger(__name__)


class LearnedPolicy:
    """An agent as a policy that swaps to the newest weights, whole, between steps.

    Args:
        agent: acts.
        weights: where new weights appear.
        explore: sample actions instead of taking the mode.
        frames: how many of the last images of an episode the agent sees.

    Attributes:
        snapshot: the weights in use; None before the first.
    """

    def __init__(
        self, agent: Agent, weights: WeightSource, explore: bool = True, frames: int = 1
    ) -> None:
        self._agent = agent
        self._stack = FrameStack(frames)
        self._weights = weights
        self._explore = explore
        self.snapshot: Snapshot | None = None
        self._refused = 0

    @property
    def version(self) -> int:
        """Version of the weights in use; 0 before the first."""
        return self.snapshot.version if self.snapshot else 0

    @property
    def trained_steps(self) -> int:
        """Online steps, of all actors, that the weights in use were trained on."""
        return sum(self.snapshot.trained.values()) if self.snapshot else 0

    def refresh(self) -> bool:
        """Take over newer weights if there are any.

        Weights that are damaged or do not fit are refused whole; the old ones stay in use.
        """
        snapshot = None
        try:
            snapshot = self._weights.latest(max(self.version, self._refused))
            if snapshot is None:
                return False
            self._agent.load_actor_weights(snapshot.weights)
        except BadInput as error:
            self._refused = snapshot.version if snapshot else self._refused
            logger.warning("new weights refused, going on with version %d: %s", self.version, error)
            return False
        self.snapshot = snapshot
        return True

    def wait(self, stopping: Callable[[], bool], period_s: float = 0.05) -> None:
        """Return once there are weights, or when stopping."""
        while self.snapshot is None and not stopping():
            if not self.refresh():
                time.sleep(period_s)

    def begin(self) -> None:
        """An episode begins: what was seen before it is forgotten."""
        self._stack.begin()

    def __call__(self, observation: Observation) -> Action:
        """The agent's action with the newest weights."""
        self.refresh()
        return self._agent.act(self._stack(observation), self._explore)
