"""Fault reports of arm drivers, as in the sources that `tests/ros/data` cites."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest
from rclpy.qos import DurabilityPolicy, QoSProfile
from rclpy.serialization import serialize_message
from std_msgs.msg import Bool

from serl import plugins
from serl.arm_profile import FRANKA_STATE, RUNNING, ArmProfile, Channel
from serl.ros.arm.faults import FaultWatch, fault_words
from serl.ros.node import RosNode
from serl.ros.topics import Topic
from serl.system.settings_file import read_yaml

from ...support.upstream import DATA, FAMILIES

pytestmark = pytest.mark.ros


class Graph:
    """A stand-in for a node: the messages and publishers of one topic."""

    def __init__(self) -> None:
        self.publishers, self.handle = 0, self
        self.infos: list[Any] = []
        self._heed: Callable[[bytes], None] = lambda message: None

    def absolute(self, name: str) -> str:
        return f"/{name}"

    def subscribe(self, topic: Topic, callback: Callable[[bytes], None], *, raw: bool) -> None:
        self._heed = callback

    def count_publishers(self, name: str) -> int:
        return self.publishers

    def get_publishers_info_by_topic(self, name: str) -> list[Any]:
        return self.infos

    def deliver(self, running: bool) -> None:
        self._heed(serialize_message(Bool(data=running)))


def make_watch(latched: bool, needed: bool = True) -> tuple[Graph, FaultWatch, list[str]]:
    graph, reports = Graph(), list[str]()
    kind = DurabilityPolicy.TRANSIENT_LOCAL if latched else DurabilityPolicy.VOLATILE
    topic = Topic("running", Bool, QoSProfile(depth=1, durability=kind))
    fault_text = partial(fault_words, Channel(name="running", type=RUNNING))
    return (
        graph,
        FaultWatch(cast(RosNode, graph), topic, fault_text, reports.append, needed),
        reports,
    )


@pytest.mark.parametrize("late", [False, True])
def test_fault_watch_reports_missing_and_ended_fault_publisher(late: bool) -> None:
    graph, watch, reports = make_watch(latched=True)
    for _ in range(3 if late else 0):
        assert watch.check() == "/running: no fault reports of the driver"
    graph.publishers = 1
    assert watch.check() == "/running: no fault reports of the driver"
    graph.deliver(True)
    assert [watch.check() for _ in range(3)] == [""] * 3
    graph.publishers = 0
    assert watch.check() == "/running: the driver's fault reports have ended"
    graph.publishers = 1
    assert watch.check(), "the new publisher has sent nothing yet"
    graph.deliver(False)
    assert watch.check() == ""
    assert reports == ["", "that its program does not run"]


def test_fault_watch_accepts_message_before_publisher_discovery() -> None:
    graph, watch, _ = make_watch(latched=True)
    graph.deliver(True)
    assert watch.check() == ""
    graph.publishers = 1
    assert watch.check() == ""


def test_fault_watch_reports_periodic_topic_that_ends_after_a_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s = 0.0
    monkeypatch.setattr("serl.ros.arm.faults.time", SimpleNamespace(monotonic=lambda: now_s))
    graph, watch, _ = make_watch(latched=False)
    graph.publishers = 1
    graph.deliver(True)
    for now_s in (0.2, 0.9):  # noqa: B007
        assert watch.check() == ""
    now_s = 1.1
    assert watch.check() == "/running: the driver's fault reports have ended"
    graph.deliver(True)
    assert watch.check() == ""


def test_fault_watch_reports_end_of_optional_topic_once_received() -> None:
    graph, watch, _ = make_watch(latched=True, needed=False)
    assert watch.check() == ""
    graph.publishers = 1
    graph.deliver(True)
    assert watch.check() == ""
    graph.publishers = 0
    assert watch.check()


def test_fault_watch_ignores_optional_publisher_without_messages() -> None:
    graph, watch, _ = make_watch(latched=True, needed=False)
    graph.publishers = 1
    watch.check()
    graph.publishers = 0
    assert watch.check() == ""


@pytest.mark.parametrize("needed", [False, True])
@pytest.mark.parametrize(
    ("kind", "durability", "expected"),
    [
        (
            "std_msgs/msg/String",
            DurabilityPolicy.TRANSIENT_LOCAL,
            "/running: /arm/driver publishes std_msgs/msg/String, expected std_msgs/msg/Bool: "
            "not received",
        ),
        ("std_msgs/msg/Bool", DurabilityPolicy.VOLATILE, "/running: /arm/driver is not received: "),
        ("std_msgs/msg/Bool", DurabilityPolicy.TRANSIENT_LOCAL, ""),
    ],
)
def test_fault_watch_names_incompatible_publisher_while_it_exists(
    needed: bool, kind: str, durability: DurabilityPolicy, expected: str
) -> None:
    graph, watch, _ = make_watch(latched=True, needed=needed)
    graph.deliver(True)
    graph.publishers = 1
    info = SimpleNamespace(
        node_namespace="/arm",
        node_name="driver",
        topic_type=kind,
        qos_profile=QoSProfile(depth=1, durability=durability),
    )
    graph.infos = [info]
    found = watch.check()
    assert found.startswith(expected)
    assert bool(found) == bool(expected)
    graph.infos = []
    assert watch.check() == ""


def fault_message(robot: str, state: str) -> dict[str, Any]:
    rows: dict[str, Any] = read_yaml(DATA / "fault_messages.yaml")[FAMILIES[robot]][state]
    return rows


def fault_text(robot: str, message: Any) -> str:
    profile: ArmProfile = plugins.load("robot", robot)
    assert profile.fault is not None
    return fault_words(profile.fault, message)


@pytest.mark.parametrize("robot", ["ur5e", "ur5e_servo"])
def test_ur_driver_whose_program_ended_is_a_fault(robot: str) -> None:
    assert fault_text(robot, Bool(data=True)) == ""
    assert fault_text(robot, Bool(data=False)) == "that its program does not run"


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ("well", ""),
        ("guided", ""),
        ("reflex", "a reflex: cartesian_reflex, joint_reflex"),
        ("stopped", "that its user stopped it"),
        ("recovering", "that it recovers from an error"),
        ("ill", "an error: communication_constraints_violation"),
    ],
)
def test_franka_state_reports_mode_and_errors(state: str, expected: str) -> None:
    """Emulate the message that the fixture cites, as no wheel contains franka_msgs."""
    row = fault_message("franka", state)
    names = ["joint_reflex", "cartesian_reflex", "communication_constraints_violation"]
    flags = {name: name in row["current_errors"] for name in sorted(names)}
    errors = SimpleNamespace(**flags, get_fields_and_field_types=lambda: flags)
    message = SimpleNamespace(robot_mode=row["robot_mode"], current_errors=errors)
    channel = Channel(name="franka_robot_state_broadcaster/robot_state", type=FRANKA_STATE)
    assert fault_words(channel, message) == expected


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ("well", ""),
        ("ready", ""),
        ("paused", "that it is paused"),
        ("stopped", "that it is stopped"),
        ("changed", "that it is stopped"),
        ("guided", "the mode 2, in which its driver sends no targets"),
        ("collided", "error 31"),
    ],
)
def test_xarm_state_reports_stop_mode_and_error_code(state: str, expected: str) -> None:
    """Emulate the message that the fixture cites, as no wheel contains xarm_msgs."""
    row = fault_message("xarm7", state)
    assert fault_text("xarm7", SimpleNamespace(**row)) == expected


@pytest.mark.parametrize(("state", "expected"), [("well", ""), ("faulted", "that it has a fault")])
def test_gen3_state_reports_fault(state: str, expected: str) -> None:
    """Emulate the message that the fixture cites, as no wheel contains example_interfaces."""
    row = fault_message("kinova_gen3", state)
    assert fault_text("kinova_gen3", SimpleNamespace(**row)) == expected
