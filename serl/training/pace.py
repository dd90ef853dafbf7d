"""How far simulated time may run ahead of a learner."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable

from serl.training.learned_policy import LearnedPolicy
from serl.types import Record, is_online

logger = logging.getLogger(__name__)


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
