"""Numbers that other programs publish: the subscription of `reward.topic`.

A limit switch, a PLC or a vision model publishes a number; the newest one is the reward of a step,
or the progress that shapes it.
"""

from __future__ import annotations

import math
from typing import Any

from geometry_msgs.msg import PointStamped
from std_msgs.msg import Bool, Float32, Float64

from serl.errors import Silent
from serl.reward import RewardConfig, RewardedTask
from serl.ros.feed import Feed
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
    stamped = config.message == "PointStamped"
    return Feed(node, topic, _number, config.max_age_s, stamped=stamped, ordered=stamped)


def _number(message: Any) -> float:
    return float(message.point.x if isinstance(message, PointStamped) else message.data)
