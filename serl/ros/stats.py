"""Numbers that processes tell about themselves, once a second, as ROS diagnostics."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue

from serl.ros.node import RosNode
from serl.ros.topics import STATS

PERIOD_S = 1.0

Value = float | str

_MAX_SOURCES = 256


class Stats:
    """Publishes once a second what `collect` returns, from the executor's thread.

    Args:
        node: the process's node.
        source: who speaks, such as "learner" or "link actor0".
        collect: reads the numbers; must not block.
    """

    def __init__(
        self, node: RosNode, source: str, collect: Callable[[], Mapping[str, Value]]
    ) -> None:
        self._node = node
        self._source = source
        self._collect = collect
        self._publisher = node.publisher(STATS)
        node.every(PERIOD_S, self._publish)

    def _publish(self) -> None:
        numbers = {**self._collect(), **self._node.counts}
        values = [KeyValue(key=key, value=str(value)) for key, value in numbers.items()]
        message = DiagnosticArray()
        message.header.stamp = self._node.handle.get_clock().now().to_msg()
        message.status = [
            DiagnosticStatus(level=DiagnosticStatus.OK, name=self._source, values=values)
        ]
        self._publisher.publish(message)


class Reading(NamedTuple):
    """The last word of a source and when it arrived, in monotonic seconds."""

    values: Mapping[str, Value]
    arrived_s: float

    @property
    def age_s(self) -> float:
        """Seconds since it arrived."""
        return time.monotonic() - self.arrived_s


class StatsMonitor:
    """Keeps the newest numbers of every source of the run."""

    def __init__(self, node: RosNode) -> None:
        self._readings: dict[str, Reading] = {}
        node.subscribe(STATS, self._on_stats)

    def latest(self) -> dict[str, Reading]:
        """The newest reading by source."""
        return dict(self._readings)

    def _on_stats(self, message: Any) -> None:
        for status in message.status:
            if status.name in self._readings or len(self._readings) < _MAX_SOURCES:
                values = {pair.key: _value(pair.value) for pair in status.values}
                self._readings[status.name] = Reading(values, time.monotonic())


def _value(text: str) -> Value:
    try:
        return float(text)
    except ValueError:
        return text
