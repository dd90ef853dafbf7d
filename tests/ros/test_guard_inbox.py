"""What a guard hears when its machine is busy: the newest pose, and all joints and forces."""

from __future__ import annotations

import threading
import time
from functools import partial
from pathlib import Path

import pytest
from geometry_msgs.msg import WrenchStamped
from sensor_msgs.msg import JointState

from serl.arm_profile import Channel
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

LAST = 12


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


ARM, GRIPPER = tuple(f"joint{number}" for number in range(7)), ("finger",)


def waits_with(waiting: Waiting, value: float) -> bool:
    return list(waiting.newest().position) == [value]


def ends_with(heard: list[float], value: float) -> bool:
    return heard[-1:] == [value]


def test_a_guard_that_was_busy_hears_its_joints_before_a_grippers_on_the_same_topic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    guard, busy, heard = Guard(config()), threading.Lock(), list[float]()
    monkeypatch.setattr(guard, "joints", lambda values, _: heard.append(values[0]))
    shared = Channel(name="/joint_states", type=PROFILE.joint_states.type)
    profile = PROFILE.model_copy(update={"joint_states": shared})
    with (
        RosNode("guard", tmp_path, local=True) as node,
        RosNode("arm", tmp_path, local=True) as arm,
    ):
        GuardInbox(node, ROBOT, profile, ARM, guard, busy)
        joints = topic_of(shared, ROBOT, SENSOR)
        waiting, publisher = Waiting(node, joints), arm.publisher(joints)
        eventually(lambda: publisher.get_subscription_count() == 2)
        for value in (1.0, 2.0):
            with busy:
                for names in (GRIPPER, ARM, GRIPPER):
                    positions = [value] * len(names)
                    publisher.publish(JointState(name=list(names), position=positions))
                eventually(partial(waits_with, waiting, value))
            eventually(partial(ends_with, heard, value))
    assert heard == [1.0, 2.0]


def test_a_guard_that_was_busy_hears_of_a_blow_that_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    guard, busy, heard = Guard(config()), threading.Lock(), list[float]()
    monkeypatch.setattr(guard, "wrench", lambda values, _: heard.append(values[2]))
    assert PROFILE.wrench is not None
    with (
        RosNode("guard", tmp_path, local=True) as node,
        RosNode("arm", tmp_path, local=True) as arm,
    ):
        GuardInbox(node, ROBOT, PROFILE, (), guard, busy)
        forces = topic_of(PROFILE.wrench, ROBOT, SENSOR)
        waiting, publisher = Waiting(node, forces), arm.publisher(forces)
        eventually(lambda: publisher.get_subscription_count() == 2)
        with busy:
            for force_n in (1.0, 40.0, 2.0, 3.0):
                message = WrenchStamped()
                message.wrench.force.z = force_n
                publisher.publish(message)
            eventually(lambda: waiting.newest().wrench.force.z == 3.0)
        eventually(lambda: heard and heard[-1] == 3.0)
    assert heard == [1.0, 40.0, 2.0, 3.0]
