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
from serl.reward import RewardConfig, RewardedTask, TopicNumber
from serl.ros.feed import Feed
from serl.ros.node import RosNode
from serl.ros.topics import Topic, latest_only
from serl.shaping import ShapedTask
from serl.task import Task

KINDS = {kind.__name__: kind for kind in (Float32, Float64, Bool, PointStamped)}


def connect_reward(node: RosNode, task: Task) -> None:
    """Subscribe to the topic of a task's reward; do nothing for other rewards."""
    if not isinstance(task, RewardedTask):
        return
    source = task.shaper.progress if isinstance(task, ShapedTask) else task.reward
    if not isinstance(source, TopicNumber):
        return
    feed = reward_feed(node, source.config)

    def newest() -> float:
        try:
            return feed.newest().value
        except Silent as error:
            raise Silent(f"reward: {error}") from None

    source.newest = newest


def reward_feed(node: RosNode, config: RewardConfig) -> Feed[float]:
    """Return a subscription to the reward's topic, whose samples are stale after `max_age_s`."""
    assert config.topic is not None  # the configuration was checked
    topic = Topic(config.topic, KINDS[config.message], latest_only())
    stamped = config.message == "PointStamped"
    return Feed(node, topic, _number, config.max_age_s, stamped=stamped)


def _number(message: Any) -> float:
    """Return the number of a message; raise `BadInput` unless it is finite."""
    number = float(message.point.x if isinstance(message, PointStamped) else message.data)
    if not math.isfinite(number):
        raise BadInput(f"its number is {number}")
    return number
