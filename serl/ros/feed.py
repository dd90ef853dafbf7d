"""The newest valid messages of one topic, and their age."""

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
"""Tolerance for stamps in the future: the clocks of two hosts are never equal."""

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Sample(Generic[Value]):
    """The decoded content of a message, with its time.

    Attributes:
        stamp_ns: stamp of the message's header.
        taken_s: the time of the stamp by this process's monotonic clock; in lock-step the stamp.
    """

    value: Value
    stamp_ns: int
    taken_s: float


class Feed(Generic[Value]):
    """A subscription that drops messages that are damaged, repeated or from the future.

    Args:
        decode: returns a message's value, None for a message to ignore; raises `BadInput`.
        oldest_s: age above which the newest sample is stale; None in lock-step, where time waits.
        keep: number of samples to keep.
        stamped: messages have a header; otherwise they count as stamped on arrival.
        ordered: also drop messages stamped before the newest sample, unless that sample's stamp is
            in the future: the clock was set back.

    Attributes:
        refused: number of messages that were damaged, repeated or from the future.
    """

    def __init__(
        self,
        node: RosNode,
        topic: Topic,
        decode: Callable[[Any], Value | None],
        oldest_s: float | None,
        keep: int = 1,
        stamped: bool = True,
        ordered: bool = False,
    ) -> None:
        self.refused = 0
        self._name, self._decode, self._oldest_s = topic.name, decode, oldest_s
        self._stamped, self._ordered = stamped, ordered
        self._node, self._clock = node, node.handle.get_clock()
        self._samples: deque[Sample[Value]] = deque(maxlen=keep)
        self._problem = ""
        self._subscription = node.subscribe(topic, self._receive, drain=True)

    @property
    def stamp_ns(self) -> int:
        """Stamp of the newest sample; -1 before the first."""
        return self._samples[-1].stamp_ns if self._samples else -1

    @property
    def is_fresh(self) -> bool:
        """Whether there is a sample that is not stale."""
        try:
            self.newest()
        except Silent:
            return False
        return True

    def newest(self) -> Sample[Value]:
        """Return the newest sample.

        Raises:
            Silent: there is none, or it is stale; the message is one line with the reason.
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
        """Return the kept sample taken nearest to `then_s`; for None the newest one.

        Raises:
            Silent: under the conditions of `newest`.
        """
        newest = self.newest()
        if then_s is None or then_s >= newest.taken_s:
            return newest
        return min(tuple(self._samples), key=lambda sample: abs(sample.taken_s - then_s))

    def recent(self, period_s: float, then_s: float | None = None) -> list[Sample[Value]]:
        """Return the sample at `then_s`, and those less than a period older.

        Samples from before a clock was set back have stamps in the future, and are left out.
        """
        last = self.at(then_s)
        first_ns = last.stamp_ns - round(period_s * 1e9)
        samples = tuple(self._samples)
        return [s for s in samples if first_ns < s.stamp_ns <= last.stamp_ns] or [last]

    def forget(self, before_ns: int | None = None) -> None:
        """Drop the samples of an earlier episode: those stamped before `before_ns`, or all."""
        while self._samples and (before_ns is None or self._samples[0].stamp_ns < before_ns):
            self._samples.popleft()

    def close(self) -> None:
        """End the subscription, in the executor's thread."""
        self._node.soon(lambda: self._node.handle.destroy_subscription(self._subscription))

    def _receive(self, message: Any) -> None:
        """Decode and keep a message; called in the executor's thread."""
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
        latest_ns = now_ns + round(AHEAD_S * 1e9)
        if self._ordered and stamp_ns < self.stamp_ns <= latest_ns:
            raise BadInput("its stamp is older than that of an earlier message")
        if self._oldest_s is None:
            return stamp_ns, stamp_ns * 1e-9
        age_s = 1e-9 * (now_ns - stamp_ns)
        if age_s < -AHEAD_S:
            ahead = f"stamped {-age_s:.2f} s in the future: do the hosts' clocks agree?"
            raise BadInput(self._node.timeless or ahead)
        return stamp_ns, arrived_s - max(0.0, age_s)

    def _why(self) -> str:
        return f" ({self._problem})" if self._problem else ""
