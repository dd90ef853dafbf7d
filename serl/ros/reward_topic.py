"""Numbers that other programs publish: the subscription of `reward.topic`.

A limit switch, a PLC or a vision model publishes a number; the newest one is the reward of a step,
or the progress that shapes it.
"""

from __future__ import annotations

import math
from typing import Any

from geometry_msgs.msg import PointStamped
from std_msgs.msg import Bool, Float32, Float64

from serl.errors import BadInput, Silent
from serl.reward import RewardConfig, RewardedTask
from serl.ros.conversions import nanoseconds_of
from serl.ros.feed import AHEAD_S, Feed
from serl.ros.node import RosNode
from serl.ros.topics import Topic, latest_only
from serl.shaping import ShapedTask
from serl.task import Task
from serl.topic_reward import TimedNumber, TopicNumber

KINDS = {kind.__name__: kind for kind in (Float32, Float64, Bool, PointStamped)}


def connect_reward(node: RosNode, task: Task) -> None:
    """Subscribe to the topic of a task's reward; do nothing for other rewards."""
    if not isinstance(task, RewardedTask):
        return
    source = task.shaper.progress if isinstance(task, ShapedTask) else task.reward
    if not isinstance(source, TopicNumber):
        return
    feed = reward_feed(node, source.config)

    def newest() -> TimedNumber:
        try:
            sample = feed.newest()
        except Silent as error:
            raise Silent(f"reward: {error}") from None
        if not math.isfinite(sample.value):
            raise Silent(f"reward: {source.config.topic}: its newest number is {sample.value}")
        return TimedNumber(sample.value, sample.taken_s)

    source.newest = newest


def reward_feed(node: RosNode, config: RewardConfig) -> Feed[float]:
    """Return a subscription to the reward's topic, whose samples are stale after `max_age_s`.

    A number that is not finite is a sample, too: it replaces the one before it.
    """
    assert config.topic is not None  # the configuration was checked
    topic = Topic(config.topic, KINDS[config.message], latest_only())
    clock = node.handle.get_clock()

    def decode(message: Any) -> float:
        if not isinstance(message, PointStamped):
            return float(message.data)
        latest_ns = clock.now().nanoseconds + round(AHEAD_S * 1e9)
        if nanoseconds_of(message.header.stamp) < feed.stamp_ns <= latest_ns:  # no clock set back
            raise BadInput("its stamp is older than that of an earlier message")
        return float(message.point.x)

    stamped = config.message == "PointStamped"
    feed = Feed(node, topic, decode, config.max_age_s, stamped=stamped)
    return feed
