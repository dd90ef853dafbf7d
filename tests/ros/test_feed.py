from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from geometry_msgs.msg import PoseStamped
from rclpy.clock import ClockType
from rclpy.parameter import Parameter
from rclpy.time import Time

from serl.errors import Silent
from serl.ros.conversions import pose_message
from serl.ros.feed import AHEAD_S, Feed
from serl.ros.node import RosNode
from serl.ros.testing.processes import eventually
from serl.ros.topics import Topic

pytestmark = pytest.mark.ros

BEGAN_S, HOUR_S = 1_700_000_000, 3600
DOWN = (0.0, 0.0, 0.0, 1.0)


class Sender:
    """A sender of poses to a feed in the same process; it also sets the ROS clock."""

    def __init__(self, node: RosNode, ordered: bool = False) -> None:
        self._node, topic = node, Topic("pose", PoseStamped, 10)
        node.handle.set_parameters([Parameter("use_sim_time", value=True)])
        self._publisher = node.publisher(topic)
        self.feed: Feed[float] = Feed(node, topic, _x, 0.5, keep=10, ordered=ordered)
        eventually(self._publisher.get_subscription_count)

    def send(self, x: float, at_s: float) -> None:
        """Set the ROS clock to `at_s` and publish a pose with that stamp."""
        stamp_ns = round(at_s * 1e9)
        now = Time(nanoseconds=stamp_ns, clock_type=ClockType.ROS_TIME)
        self._node.handle.get_clock().set_ros_time_override(now)
        self._publisher.publish(pose_message([float(x), 0.0, 0.0, *DOWN], "base", stamp_ns))
        eventually(lambda: self.feed.stamp_ns == stamp_ns)


def _x(message: Any) -> float:
    return float(message.pose.position.x)


def test_feed_rejects_messages_without_ros_clock_and_node_warns_of_it_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("serl.ros.node._LOOK_S", 0.05)
    cause, ticks = "use_sim_time is true, and /clock has no publisher", list[int]()
    with RosNode("a", tmp_path) as node:
        node.every(0.1, lambda: ticks.append(1))  # two checks of the node, or more
        node.handle.set_parameters([Parameter("use_sim_time", value=True)])
        topic = Topic("pose", PoseStamped, 10)
        publisher, feed = node.publisher(topic), Feed(node, topic, _x, 0.5)
        eventually(publisher.get_subscription_count)
        publisher.publish(pose_message([0.0, 0.0, 0.0, *DOWN], "base", BEGAN_S * 1_000_000_000))
        eventually(lambda: feed.refused)
        with pytest.raises(Silent, match=cause):
            feed.newest()
        ticks.clear()
        eventually(lambda: len(ticks) > 2)
    assert caplog.text.count(cause) == 1


@pytest.mark.parametrize("set_s", [HOUR_S, -HOUR_S])
def test_feed_excludes_samples_from_before_a_clock_jump(set_s: int, tmp_path: Path) -> None:
    with RosNode("a", tmp_path) as node:
        sender = Sender(node)
        for count in range(3):
            sender.send(count, BEGAN_S + 0.1 * count)
        assert [each.value for each in sender.feed.recent(0.15)] == [1.0, 2.0]
        for count in range(3, 5):
            sender.send(count, BEGAN_S + set_s + 0.1 * count)
        assert [each.value for each in sender.feed.recent(0.15)] == [3.0, 4.0]


def test_ordered_feed_accepts_messages_after_clock_was_set_back(tmp_path: Path) -> None:
    with RosNode("a", tmp_path) as node:
        sender = Sender(node, ordered=True)
        sender.send(1.0, BEGAN_S)
        sender.send(2.0, BEGAN_S - 2 * AHEAD_S)
        assert (sender.feed.newest().value, sender.feed.refused) == (2.0, 0)
