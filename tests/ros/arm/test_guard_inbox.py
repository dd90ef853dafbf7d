"""Messages that a busy guard receives: the newest pose, and all joints and wrenches."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from geometry_msgs.msg import WrenchStamped
from sensor_msgs.msg import JointState

from serl.arm_profile import RUNNING, ArmProfile, Channel
from serl.guard.guard import Guard
from serl.ros.arm.guard_inbox import GuardInbox
from serl.ros.arm.topics import SENSOR, topic_of
from serl.ros.conversions import pose_message
from serl.ros.node import RosNode
from serl.ros.testing.processes import ROBOT, eventually

from ...support.guarding import config
from ..support.guard_bench import PROFILE
from ..support.starved import Waiting

pytestmark = pytest.mark.ros

LAST = 12
ARM, GRIPPER = tuple(f"joint{number}" for number in range(7)), ("finger",)


@contextmanager
def arm_and_busy_guard(
    folder: Path, guard: Guard, channel: Channel, profile: ArmProfile = PROFILE
) -> Iterator[tuple[Any, Waiting, threading.Lock]]:
    """Yield a publisher of an arm channel, its waiting messages, and the lock of a busy guard."""
    busy = threading.Lock()
    with RosNode("guard", folder, local=True) as node, RosNode("arm", folder, local=True) as arm:
        GuardInbox(node, ROBOT, profile, ARM, guard, busy)
        topic = topic_of(channel, ROBOT, SENSOR)
        waiting, publisher = Waiting(node, topic), arm.publisher(topic)
        eventually(lambda: waiting.hears(publisher))
        yield publisher, waiting, busy


def test_guard_inbox_delivers_only_newest_pose_after_busy_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    guard, received = Guard(config()), list[float]()
    monkeypatch.setattr(guard, "pose", lambda values, _: received.append(values[0]))
    with arm_and_busy_guard(tmp_path, guard, PROFILE.pose) as (poses, waiting, busy):
        with busy:
            for x in range(LAST + 1):
                values = [float(x), 0.0, 0.2, 1.0, 0.0, 0.0, 0.0]
                poses.publish(pose_message(values, "base", time.time_ns()))
            eventually(lambda: waiting.newest().pose.position.x == LAST)
        eventually(lambda: received and received[-1] == LAST)
    assert len(received) <= 2, "only the pose in progress and the newest one"


def waits_with(waiting: Waiting, value: float) -> bool:
    return list(waiting.newest().position) == [value]


def ends_with(received: list[float], value: float) -> bool:
    return received[-1:] == [value]


def test_guard_inbox_delivers_arm_joints_when_gripper_shares_topic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    guard, received = Guard(config()), list[float]()
    monkeypatch.setattr(guard, "joints", lambda values, _: received.append(values[0]))
    shared = Channel(name="/joint_states", type=PROFILE.joint_states.type)
    profile = PROFILE.model_copy(update={"joint_states": shared})
    with arm_and_busy_guard(tmp_path, guard, shared, profile) as (joints, waiting, busy):
        for value in (1.0, 2.0):
            with busy:
                for names in (GRIPPER, ARM, GRIPPER):
                    positions = [value] * len(names)
                    joints.publish(JointState(name=list(names), position=positions))
                eventually(partial(waits_with, waiting, value))
            eventually(partial(ends_with, received, value))
    assert received == [1.0, 2.0]


def test_guard_inbox_delivers_every_wrench_after_busy_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    guard, received = Guard(config()), list[float]()
    monkeypatch.setattr(guard, "wrench", lambda values, _: received.append(values[2]))
    assert PROFILE.wrench is not None
    with arm_and_busy_guard(tmp_path, guard, PROFILE.wrench) as (forces, waiting, busy):
        with busy:
            for force_n in (1.0, 40.0, 2.0, 3.0):
                message = WrenchStamped()
                message.wrench.force.z = force_n
                forces.publish(message)
            eventually(lambda: waiting.newest().wrench.force.z == 3.0)
        eventually(lambda: received and received[-1] == 3.0)
    assert received == [1.0, 40.0, 2.0, 3.0]


def test_guard_inbox_does_not_watch_arm_before_its_driver_reports_no_fault(tmp_path: Path) -> None:
    fault = Channel(name="/running", type=RUNNING)
    profile, guard = PROFILE.model_copy(update={"fault": fault}), Guard(config())
    with RosNode("guard", tmp_path, local=True) as node:
        GuardInbox(node, ROBOT, profile, ARM, guard, threading.Lock())
    assert guard.measured.unwatched == "/running: no fault reports of the driver"


def test_guard_inbox_names_new_joint_publisher_that_sends_other_joints(
    tmp_path: Path,
) -> None:
    guard, topic = Guard(config()), topic_of(PROFILE.joint_states, ROBOT, SENSOR)
    with (
        RosNode("guard", tmp_path, local=True) as node,
        RosNode("arm", tmp_path, local=True) as arm,
        RosNode("forger", tmp_path, local=True) as forger,
    ):
        inbox = GuardInbox(node, ROBOT, PROFILE, ARM, guard, threading.Lock())
        arm.publisher(topic)
        eventually(lambda: node.handle.count_publishers(node.absolute(topic.name)) == 1)
        inbox.check()
        guard.active = True
        forged = forger.publisher(topic)

        def is_driven() -> bool:
            forged.publish(JointState(name=list(GRIPPER), position=[0.0]))
            return inbox._shares_joints

        eventually(is_driven)

        def is_named() -> bool:
            inbox.check()
            return "/forger" in guard.measured.rivals

        eventually(is_named)


def test_guard_inbox_names_second_publisher_of_each_measurement(tmp_path: Path) -> None:
    twist = Channel(name="twist", type="geometry_msgs/msg/TwistStamped")
    profile, guard = PROFILE.model_copy(update={"twist": twist}), Guard(config())
    assert PROFILE.wrench is not None
    assert PROFILE.gripper is not None
    doubled = [PROFILE.wrench, twist, PROFILE.gripper.state, PROFILE.joint_states, PROFILE.pose]
    with (
        RosNode("guard", tmp_path, local=True) as node,
        RosNode("arm", tmp_path, local=True) as arm,
        RosNode("forger", tmp_path, local=True) as forger,
    ):
        inbox = GuardInbox(node, ROBOT, profile, ARM, guard, threading.Lock())
        for channel in doubled:
            arm.publisher(topic_of(channel, ROBOT, SENSOR))
            forger.publisher(topic_of(channel, ROBOT, SENSOR))
        names = [node.absolute(topic_of(each, ROBOT, SENSOR).name) for each in doubled]

        def are_named() -> bool:
            inbox.check()
            return all(f"{name}: " in guard.measured.rivals for name in names)

        eventually(are_named)
