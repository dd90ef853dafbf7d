"""Telemetry for display and diagnostics: simulated scenes, statistics and health."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue
from std_msgs.msg import Float64MultiArray

from serl.ros.node import RosNode
from serl.ros.topics import STATS, Topic, latest_only

SCENE_PERIOD_S = 1 / 30


def scene_topic(actor: str) -> Topic:
    """Return the topic of an actor's simulated scene, for drawing; see `SimArm.placement`."""
    return Topic(f"{actor}/scene", Float64MultiArray, latest_only())


class ScenePublisher:
    """A publisher of the simulated scene, for drawing only, while there are subscribers.

    It runs beside the control loop, and never waits for it.

    Args:
        actor: the actor whose simulation it is.
        robot: the simulation; without `placement`, as on a real arm, nothing is published.
    """

    def __init__(self, node: RosNode, actor: str, robot: Any) -> None:
        self._placement = getattr(robot, "placement", None)
        if self._placement is not None:
            self._publisher = node.publisher(scene_topic(actor))
            node.every(SCENE_PERIOD_S, self._publish_scene)

    def _publish_scene(self) -> None:
        if self._placement is not None and self._publisher.get_subscription_count():
            self._publisher.publish(Float64MultiArray(data=self._placement().tolist()))


PERIOD_S = 1.0

Value = float | str

_MAX_SOURCES = 256


Health = tuple[bytes, str]
"""A level of `DiagnosticStatus`, and its reason."""

WELL: Health = (bytes(DiagnosticStatus.OK), "")
DIAGNOSTICS = Topic("/diagnostics", DiagnosticArray, 10)
"""Health of the nodes, on the topic that ROS 2's own tools read."""


class Diagnostics:
    """A publisher of numbers and health on `/diagnostics`, once a second, for subscribers.

    Args:
        node: the process's node. A node that signs its messages publishes none here, since only
            its run could read them.
        source: name of the source, "learner" or "link actor0" for example.
        collect: reads the numbers; must not block.
        health: health of the source, apart from its node's hindrance.
    """

    def __init__(
        self,
        node: RosNode,
        source: str,
        collect: Callable[[], Mapping[str, Value]],
        health: Callable[[], Health] = lambda: WELL,
    ) -> None:
        self._node, self._source = node, source
        self._collect, self._health = collect, health
        if not node.signed:
            self._publisher = node.publisher(DIAGNOSTICS)
            node.every(PERIOD_S, self._publish)

    def _publish(self) -> None:
        if self._publisher.get_subscription_count():
            handle, health = self._node.handle, self._health()
            if (hindrance := self._node.hindrance) and hindrance not in health[1]:
                text = "; ".join(filter(None, (health[1], hindrance)))
                health = max(health[0], bytes(DiagnosticStatus.WARN)), text
            name = f"{handle.get_fully_qualified_name()}: {self._source}"
            self._publisher.publish(_message(handle, name, self._collect(), health))


class Stats:
    """A publisher of the numbers of `collect` once a second, from the executor's thread.

    The arguments are those of `Diagnostics`, which publishes the same for ROS 2's own tools.
    """

    def __init__(
        self,
        node: RosNode,
        source: str,
        collect: Callable[[], Mapping[str, Value]],
        health: Callable[[], Health] = lambda: WELL,
    ) -> None:
        self._node = node
        self._source = source
        self._collect = collect
        self._publisher = node.publisher(STATS)
        node.every(PERIOD_S, self._publish)
        Diagnostics(node, source, collect, health)

    def _publish(self) -> None:
        numbers = {**self._collect(), **self._node.counts}
        self._publisher.publish(_message(self._node.handle, self._source, numbers, WELL))


def _message(handle: Any, name: str, numbers: Mapping[str, Value], health: Health) -> Any:
    values = [KeyValue(key=key, value=str(value)) for key, value in numbers.items()]
    level, text = health
    message = DiagnosticArray()
    message.header.stamp = handle.get_clock().now().to_msg()
    message.status = [
        DiagnosticStatus(
            level=level, name=name, message=text, hardware_id=handle.get_namespace(), values=values
        )
    ]
    return message


class Reading(NamedTuple):
    """The last numbers of a source and their arrival, in monotonic seconds."""

    values: Mapping[str, Value]
    arrived_s: float

    @property
    def age_s(self) -> float:
        """Seconds since the numbers arrived."""
        return time.monotonic() - self.arrived_s


class StatsMonitor:
    """The newest numbers of every source of the run."""

    def __init__(self, node: RosNode) -> None:
        self._readings: dict[str, Reading] = {}
        node.subscribe(STATS, self._on_stats)

    def latest(self) -> dict[str, Reading]:
        """Return the newest reading by source."""
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
