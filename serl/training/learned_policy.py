"""Policy of an agent that acts with the newest weights."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable

from serl.agent import Agent
from serl.errors import BadInput
from serl.loop import Observer
from serl.training.frames import FrameStack
from serl.transport import Snapshot, WeightSource
from serl.types import Action, Observation, Step, is_online

logger = logging.getLogger(__name__)


class LearnedPolicy:
    """A policy that runs an agent and swaps to the newest weights, whole, between steps.

    Args:
        agent: the agent that acts.
        weights: source of new weights.
        exploring_share: share of the episodes in which actions are sampled, evenly spread; in the
            others the agent takes the mode.
        frames: number of the last images of an episode that the agent sees.

    Attributes:
        snapshot: the weights in use; None before the first.
    """

    def __init__(
        self, agent: Agent, weights: WeightSource, exploring_share: float = 1.0, frames: int = 1
    ) -> None:
        self._agent = agent
        self._stack = FrameStack(frames)
        self._weights = weights
        self._exploring_share, self._episodes = exploring_share, 0
        self.snapshot: Snapshot | None = None
        self._refused = 0

    @property
    def version(self) -> int:
        """The version of the weights in use; 0 before the first."""
        return self.snapshot.version if self.snapshot else 0

    @property
    def trained_steps(self) -> int:
        """The online steps, of all actors, that the weights in use were trained on."""
        return sum(self.snapshot.trained.values()) if self.snapshot else 0

    def refresh(self) -> bool:
        """Load newer weights if there are any; return whether new weights were loaded.

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

    def wait(self, is_stopping: Callable[[], bool], period_s: float = 0.05) -> None:
        """Block until there are weights, or until stopping."""
        while self.snapshot is None and not is_stopping():
            if not self.refresh():
                time.sleep(period_s)

    def begin(self) -> None:
        """Start an episode with an empty frame stack."""
        self._stack.begin()
        self._episodes += 1

    def __call__(self, observation: Observation) -> Action:
        """Return the agent's action with the newest weights."""
        self.refresh()
        return self._agent.act(self._stack(observation), self._explores())

    def _explores(self) -> bool:
        share = self._exploring_share
        return math.floor(self._episodes * share) > math.floor((self._episodes - 1) * share)


class NoPolicy(LearnedPolicy):
    """Stand-in for the policy of an actor that only resets: it has no weights, and never acts."""

    def __init__(self) -> None:
        self.snapshot = None


class BackPressure(Observer):
    """Back-pressure: pauses the simulation while the learner is behind; never used on a real arm.

    Args:
        max_lead_steps: online steps that the simulation may be ahead of the learner.
        patience_s: time without news from the learner after which a warning is logged.
        policy: provides the number of steps that the learner has trained on.
        is_stopping: polled while waiting.
        sent_before: online steps that this actor sent before it was restarted.
    """

    def __init__(
        self,
        max_lead_steps: int,
        patience_s: float,
        policy: LearnedPolicy,
        actor: str,
        is_stopping: Callable[[], bool],
        sent_before: int = 0,
    ) -> None:
        self._max_lead_steps = max_lead_steps
        self._patience_s = patience_s
        self._policy = policy
        self._actor = actor
        self._is_stopping = is_stopping
        self._sent = sent_before

    def on_step(self, step: Step) -> None:
        """Count a step that was sent."""
        self._sent += is_online(step)

    def __call__(self) -> None:
        """Block until there are weights and the learner is near enough, or until stopping."""
        patience_s = self._patience_s
        deadline_s = time.monotonic() + patience_s
        while self._is_ahead() and not self._is_stopping():
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
