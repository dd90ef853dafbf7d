"""What a guard hears when its machine is busy: the newest, not what waited longest."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from serl.guard import Guard
from serl.ros.arm_topics import SENSOR, topic_of
from serl.ros.conversions import pose_message
from serl.ros.guard_inbox import GuardInbox
from serl.ros.node import RosNode

from ..guarding import config
from .cell import PROFILE, ROBOT
from .conftest import eventually
from .starved import Waiting

pytestmark = pytest.mark.ros

LAST = 30


def test_a_guard_that_was_busy_hears_the_newest_pose_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    guard, busy, heard = Guard(config()), threading.Lock(), list[float]()
    monkeypatch.setattr(guard, "pose", lambda values, _: heard.append(values[0]))
    with (
        RosNode("guard", tmp_path, local=True) as node,
        RosNode("arm", tmp_path, local=True) as arm,
    ):
        GuardInbox(node, ROBOT, PROFILE, (), guard, busy)
        poses = topic_of(PROFILE.pose, ROBOT, SENSOR)
        waiting, publisher = Waiting(node, poses), arm.publisher(poses)
        eventually(lambda: publisher.get_subscription_count() == 2)
        with busy:
            for x in range(LAST + 1):
                values = [float(x), 0.0, 0.2, 1.0, 0.0, 0.0, 0.0]
                publisher.publish(pose_message(values, "base", time.time_ns()))
            eventually(lambda: waiting.newest().pose.position.x == LAST)
        eventually(lambda: heard and heard[-1] == LAST)
    assert len(heard) <= 2, "that which it was busy with, and the newest"
