"""Rewards from another process, over real DDS."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest
from geometry_msgs.msg import PointStamped
from rclpy.time import Time

from serl import plugins
from serl.clock import VirtualClock
from serl.errors import BadInput, SerlError, Silent
from serl.loop import EpisodeKey, Observer, Result, run
from serl.policy import ZeroPolicy
from serl.reward import RewardedTask
from serl.robot import SimulatedRobot
from serl.ros.node import RosNode
from serl.ros.nodes.actor import _make_actor
from serl.ros.people.recorder import recording_station
from serl.ros.reward_topic import connect_reward, reward_feed
from serl.ros.testing.processes import eventually
from serl.ros.topics import Topic
from serl.runs.assembly import DrivenArm, RunSite
from serl.runs.config import resolve
from serl.runs.folder import RunFolder
from serl.runs.task_setup import make_rewarded_task, make_task
from serl.shaping import ShapedTask
from serl.task import Task
from serl.topic_reward import TimedNumber, TopicNumber
from serl.training.evaluation import void_cause
from serl.types import EndReason, Step

pytestmark = pytest.mark.ros

PROCESS = Path(__file__).parent / "support/reward_process.py"
STALE_S = 5.0  # generous for a busy machine
TOPIC = {"kind": "topic", "topic": "/cell/done", "max_age_s": STALE_S}


@contextmanager
def published(folder: Path, kind: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, str(PROCESS), str(folder), "/cell/done", kind]
    with subprocess.Popen(command, stdin=subprocess.PIPE, text=True, bufsize=1) as process:
        try:
            yield process
        finally:
            process.kill()


def put(process: subprocess.Popen[str], word: str) -> None:
    assert process.stdin is not None
    process.stdin.write(f"{word}\n")


def make_task_with_reward(kind: str, max_age_s: float = STALE_S) -> RewardedTask:
    reward = TOPIC | {"message": kind, "max_age_s": max_age_s}
    task = make_rewarded_task(resolve({"task": "reach", "reward": reward}))
    assert isinstance(task, RewardedTask)
    return task


class Steps(Observer):
    def __init__(self) -> None:
        self.steps: list[Step] = []

    def on_step(self, step: Step) -> None:
        self.steps.append(step)


def episode(task: RewardedTask, robot: SimulatedRobot, seen: Steps) -> Result:
    """Run an episode whose simulation advances only once a number of the episode was received."""
    robot.reset(0)

    def advance(dt_s: float) -> None:
        robot.advance(dt_s)
        eventually(lambda: not is_fresh(task) or number(task).taken_s > began_s)

    began_s = time.monotonic()
    clock, key = VirtualClock(advance, 10.0), EpisodeKey("run", "actor0", 0, 0)
    return run(robot, task, ZeroPolicy(robot.action_spec), clock, key, [seen])


def number(task: Task) -> TimedNumber:
    assert isinstance(task, RewardedTask)
    source = task.shaper.progress if isinstance(task, ShapedTask) else task.reward
    assert isinstance(source, TopicNumber)
    return source.number()


def newest(task: Task) -> float:
    return number(task).value


def is_fresh(task: Task) -> bool:
    try:
        newest(task)
    except Silent:
        return False
    return True


@pytest.mark.parametrize("kind", ["Bool", "PointStamped"])
def test_reward_from_another_process_ends_episode_as_success(tmp_path: Path, kind: str) -> None:
    task, seen = make_task_with_reward(kind), Steps()
    with published(tmp_path, kind) as process, RosNode("actor0", tmp_path, local=True) as node:
        connect_reward(node, task)
        put(process, "0")
        eventually(lambda: is_fresh(task))
        with plugins.make_simulation(task) as robot:
            cut = episode(task, robot, seen)
            assert (cut.reason, cut.success, cut.reward) == (EndReason.TIME_LIMIT, False, 0.0)
            assert {step.reward_provenance for step in seen.steps} == {"topic"}
            put(process, "1")
            eventually(lambda: newest(task) == 1.0)
            won = episode(task, robot, seen)
    assert (won.reason, won.success, won.steps) == (EndReason.SUCCESS, True, 1)
    assert (seen.steps[-1].reward, seen.steps[-1].terminated) == (1.0, True)


def test_reward_timeout_makes_episode_void(tmp_path: Path) -> None:
    task, seen = make_task_with_reward("Float32", 0.2), Steps()
    with published(tmp_path, "Float32") as process, RosNode("actor0", tmp_path, local=True) as node:
        connect_reward(node, task)
        put(process, "0.25")
        eventually(lambda: is_fresh(task))
        put(process, "-")
        eventually(lambda: not is_fresh(task))
        with plugins.make_simulation(task) as robot:
            result = episode(task, robot, seen)
    assert (result.steps, result.reason) == (1, EndReason.FAULT)
    line = r"reward: /cell/done: its newest message is \d+\.\d+ s old, over 0\.2 s"
    assert re.fullmatch(line, result.fault)
    assert void_cause(result.reason, result.fault) == "reward"
    assert (seen.steps[0].reward_provenance, seen.steps[0].truncated) == ("none", True)


@pytest.mark.parametrize("kind", ["topic", "progress"])
def test_actor_and_recorder_subscribe_to_reward_topic(tmp_path: Path, kind: str) -> None:
    reward = {"kind": kind, "topic": "/cell/done", "message": "Float32", "max_age_s": STALE_S}
    config = resolve({"task": "reach", "demos": 0, "reward": reward, "intervention": "none"})
    folder = RunFolder.create(tmp_path, config, datetime.now())
    with published(tmp_path, "Float32") as process:
        put(process, "0.25")
        with RosNode("actor0", folder.path, local=True) as node, ExitStack() as logs:
            robot = plugins.make_simulation(make_task(config))
            arm = DrivenArm(logs.enter_context(robot))
            actor = _make_actor(node, folder, config, "actor0", arm, RunSite(), [], logs)
            eventually(lambda: is_fresh(actor.task))
            assert newest(actor.task) == 0.25
        task, clock = make_rewarded_task(config), VirtualClock(lambda dt_s: None, 10.0)
        with recording_station(folder, robot, clock, [], {}, lambda: None) as station:
            station.connect(task)
            eventually(lambda: is_fresh(task))
            assert newest(task) == 0.25


class Sender:
    """A publisher of stamped numbers in the same process as the task that subscribes to them."""

    def __init__(self, node: RosNode, max_age_s: float = STALE_S) -> None:
        self._clock = node.handle.get_clock()
        self._publisher = node.publisher(Topic("/cell/done", PointStamped, 10))
        self.task = make_task_with_reward("PointStamped", max_age_s)
        connect_reward(node, self.task)
        self.feed = reward_feed(node, self.task.reward.config)  # type: ignore[attr-defined]
        eventually(lambda: self._publisher.get_subscription_count() == 2)

    def send(self, x: float, age_s: float = 0.0) -> None:
        message = PointStamped()
        message.point.x = x
        now_ns = self._clock.now().nanoseconds - round(age_s * 1e9)
        message.header.stamp = Time(nanoseconds=now_ns).to_msg()
        self._publisher.publish(message)


def test_reward_value_expires_by_its_stamp(tmp_path: Path) -> None:
    with RosNode("actor0", tmp_path, local=True) as node:
        sender = Sender(node, 2.0)
        with pytest.raises(Silent, match=r"^/cell/done: no message$"):
            sender.feed.newest()
        sender.send(0.5, 3.0)
        eventually(lambda: sender.feed.stamp_ns > 0)
        with pytest.raises(Silent, match=r"newest message is 3\.\d+ s old, over 2 s"):
            sender.feed.newest()


@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_number_that_is_not_finite_replaces_a_fresh_one(tmp_path: Path, number: float) -> None:
    with RosNode("actor0", tmp_path, local=True) as node:
        sender = Sender(node)
        sender.send(1.0)
        eventually(lambda: is_fresh(sender.task))
        sender.send(number)
        eventually(lambda: not is_fresh(sender.task))
        with pytest.raises(Silent, match=rf"^reward: /cell/done: its newest number is {number}$"):
            newest(sender.task)
        sender.send(0.25)
        eventually(lambda: is_fresh(sender.task))


def test_late_message_does_not_replace_newer_one(tmp_path: Path) -> None:
    with RosNode("actor0", tmp_path, local=True) as node:
        sender = Sender(node, 60.0)
        sender.send(1.0)
        eventually(lambda: is_fresh(sender.task) and sender.feed.is_fresh)
        sender.send(0.25, age_s=2.0)
        eventually(lambda: sender.feed.refused)
        assert sender.feed.newest().value == 1.0
        sender.send(0.5)
        eventually(lambda: newest(sender.task) == 0.5)


def test_message_that_arrives_during_subscription_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reward = resolve({"task": "reach", "reward": TOPIC | {"message": "PointStamped"}}).reward
    with RosNode("actor0", tmp_path, local=True) as node:
        message = PointStamped()
        message.point.x = 0.5
        message.header.stamp = node.handle.get_clock().now().to_msg()
        monkeypatch.setattr(RosNode, "subscribe", lambda self, topic, take, **_: take(message))
        assert reward_feed(node, reward).newest().value == 0.5


def test_reward_topic_settings_are_validated() -> None:
    for reward, line in (
        ({"kind": "topic"}, "topic: expected the name of a ROS topic"),
        ({"kind": "topic", "topic": "a b"}, "topic"),
        ({"kind": "topic", "topic": "/a", "message": "Int8"}, "message"),
        ({"kind": "classifier", "threshold": 2.0, "model": "m"}, "expected a number between 0"),
    ):
        with pytest.raises(BadInput, match=line):
            resolve({"task": "reach", "reward": reward})
    task = make_task_with_reward("Bool")
    with plugins.make_simulation(task) as robot:
        robot.reset(0)
        with pytest.raises(SerlError, match="no topic"):
            task.outcome(robot.observe(), 0)
