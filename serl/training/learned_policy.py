"""An agent as a policy, with the newest weights."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable

from serl.agent import Agent
from serl.errors import BadInput
from serl.training.frames import FrameStack
from serl.transport import Snapshot, WeightSource
from serl.types import Action, Observation, Record, is_online

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


class Pace:
    """Lets simulated time stand still while the learner is behind; never used on a real arm.

    Args:
        max_lead_steps: online steps that the simulation may be ahead of the learner.
        patience_s: time without news from the learner after which a warning is logged.
        policy: knows what the learner has trained on.
        actor: name of this actor.
        stopping: asked while waiting.
        sent_before: online steps that this actor sent before it was restarted.
    """

    def __init__(
        self,
        max_lead_steps: int,
        patience_s: float,
        policy: LearnedPolicy,
        actor: str,
        stopping: Callable[[], bool],
        sent_before: int = 0,
    ) -> None:
        self._max_lead_steps = max_lead_steps
        self._patience_s = patience_s
        self._policy = policy
        self._actor = actor
        self._stopping = stopping
        self._sent = sent_before

    def count(self, record: Record) -> None:
        """A record was sent."""
        self._sent += is_online(record)

    def __call__(self) -> None:
        """Return once there are weights and the learner is near enough, or when stopping."""
        patience_s = self._patience_s
        deadline_s = time.monotonic() + patience_s
        while self._is_ahead() and not self._stopping():
            if self._policy.refresh():
                deadline_s = time.monotonic() + patience_s
            elif time.monotonic() > deadline_s:
                logger.warning("no news from the learner for %g s: time stands still", patience_s)
                deadline_s = math.inf
            time.sleep(0.001)

    def _is_ahead(self) -> bool:
        snapshot = self._policy.snapshot
        if snapshot is None:
            return True
        return self._sent - snapshot.trained.get(self._actor, 0) > self._max_lead_steps
