"""Rewards that another program publishes on a topic."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import NamedTuple

from serl.errors import SerlError
from serl.reward import Judgement, RewardConfig
from serl.types import Observation


class TimedNumber(NamedTuple):
    """A number, and when it was taken, by this process's monotonic clock."""

    value: float
    taken_s: float


class TopicNumber:
    """The number that another program publishes.

    Args:
        config: the process that subscribes uses `topic`, `message` and `max_age_s`.

    Attributes:
        newest: returns the newest number, or raises `Silent` if it is too old or not finite; set by
            the process that subscribes to the topic.
    """

    def __init__(self, config: RewardConfig) -> None:
        self.config = config
        self.newest: Callable[[], TimedNumber] | None = None

    def number(self) -> TimedNumber:
        """Return the newest number; raise `SerlError`, a fault of the step, without a fresh one."""
        if self.newest is None:
            raise SerlError("reward topic: this process subscribes to no topic")
        return self.newest()


class TopicReward(TopicNumber):
    """The newest number of a topic as the reward; a success from `threshold` on.

    A number that was taken before the episode began, and may show the end of the last one, is not
    used: until a later one arrives, the reward is 0. A stale number is a fault in any case.

    Args:
        config: settings of the reward.
        now_s: returns monotonic seconds.
    """

    provenance = "topic"

    def __init__(self, config: RewardConfig, now_s: Callable[[], float] = time.monotonic) -> None:
        super().__init__(config)
        self._now_s, self._began_s = now_s, -math.inf

    def begin(self, reading: Observation) -> None:
        """Note the time: earlier numbers do not count."""
        self._began_s = self._now_s()

    def __call__(self, reading: Observation) -> Judgement:
        """Return the newest number; raise as `number`."""
        number, threshold = self.number(), self.config.threshold
        if number.taken_s < self._began_s:
            return Judgement()
        success = number.value >= (0.5 if threshold is None else threshold)
        return Judgement(number.value, success)
