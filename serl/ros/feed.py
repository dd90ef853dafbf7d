"""The newest good messages of one topic, and how old they are."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from serl.errors import BadInput, Silent
from serl.ros.conversions import nanoseconds_of
from serl.ros.node import RosNode
from serl.ros.topics import Topic

AHEAD_S = 0.05
"""A stamp may be this far in the future: the clocks of two hosts are never equal."""

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Sample(Generic[Value]):
    """What a message said.

    Attributes:
        value: decoded.
        stamp_ns: of its header.
        taken_s: when that was, by this process's monotonic clock; in lock-step by the stamp.
    """

    value: Value
    stamp_ns: int
    taken_s: float


class Feed(Generic[Value]):
    """A subscription that forgets what is damaged, repeated or from the future.

    Args:
        node: the process's node.
        topic: what is listened to.
        decode: a message's value; None for one that is of no concern. Raises `BadInput`.
        oldest_s: a newest sample older than this is stale; None in lock-step, where time waits.
        keep: samples to remember.
        stamped: messages have a header; else they count as stamped on arrival.

    Attributes:
        refused: messages that were damaged, repeated or from the future.
    """

    def __init__(
        self,
        node: RosNode,
        topic: Topic,
        decode: Callable[[Any], Value | None],
        oldest_s: float | None,
        keep: int = 1,
        stamped: bool = True,
    ) -> None:
        self.refused = 0
        self._name, self._decode, self._oldest_s = topic.name, decode, oldest_s
        self._stamped = stamped
        self._node, self._clock = node, node.handle.get_clock()
        self._samples: deque[Sample[Value]] = deque(maxlen=keep)
        self._problem = ""
        node.subscribe(topic, self._hear, drain=True)

    @property
    def stamp_ns(self) -> int:
        """Of the newest sample; -1 before the first."""
        return self._samples[-1].stamp_ns if self._samples else -1

    @property
    def is_fresh(self) -> bool:
        """There is a sample, and it is not too old."""
        try:
            self.newest()
        except Silent:
            return False
        return True

    def newest(self) -> Sample[Value]:
        """The newest sample.

        Raises:
            Silent: there is none, or it is too old, in one line that says why.
        """
        try:
            sample = self._samples[-1]
        except IndexError:
            raise Silent(f"{self._name}: no message{self._why()}") from None
        age_s = time.monotonic() - sample.taken_s
        if self._oldest_s is not None and age_s > self._oldest_s:
            limit = f"{age_s:.2f} s old, over {self._oldest_s:g} s"
            raise Silent(f"{self._name}: its newest message is {limit}{self._why()}")
        return sample

    def at(self, then_s: float | None) -> Sample[Value]:
        """The sample taken nearest to then, of those remembered; None: the newest one.

        Raises:
            Silent: as `newest`.
        """
        newest = self.newest()
        if then_s is None or then_s >= newest.taken_s:
            return newest
        return min(tuple(self._samples), key=lambda sample: abs(sample.taken_s - then_s))

    def recent(self, period_s: float, then_s: float | None = None) -> list[Sample[Value]]:
        """The sample of then, and those that are less than a period older.

        Those from before a clock was set back have stamps of the future, and are not among them.
        """
        last = self.at(then_s)
        first_ns = last.stamp_ns - round(period_s * 1e9)
        samples = tuple(self._samples)
        return [s for s in samples if first_ns < s.stamp_ns <= last.stamp_ns] or [last]

    def forget(self, before_ns: int | None = None) -> None:
        """Begin anew: what was stamped before then, or heard so far, is of another episode."""
        while self._samples and (before_ns is None or self._samples[0].stamp_ns < before_ns):
            self._samples.popleft()

    def _hear(self, message: Any) -> None:
        """Called by the executor."""
        try:
            value = self._decode(message)
            if value is None:
                return
            stamp_ns, taken_s = self._time(message)
        except BadInput as error:
            self.refused += 1
            self._problem = str(error)
            return
        self._problem = ""
        self._samples.append(Sample(value, stamp_ns, taken_s))

    def _time(self, message: Any) -> tuple[int, float]:
        arrived_s, now_ns = time.monotonic(), self._clock.now().nanoseconds
        stamp_ns = nanoseconds_of(message.header.stamp) if self._stamped else now_ns
        if stamp_ns == self.stamp_ns:
            raise BadInput("its stamps stand still")
        if self._oldest_s is None:
            return stamp_ns, stamp_ns * 1e-9
        age_s = 1e-9 * (now_ns - stamp_ns)
        if age_s < -AHEAD_S:
            ahead = f"stamped {-age_s:.2f} s in the future: do the hosts' clocks agree?"
            raise BadInput(self._node.timeless or ahead)
        return stamp_ns, arrived_s - max(0.0, age_s)

    def _why(self) -> str:
        return f" ({self._problem})" if self._problem else ""
