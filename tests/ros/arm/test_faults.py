"""What drivers tell of their arms, as the files say that `tests/ros/data` cites."""

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
    """In the place of a node: the messages and publishers of one topic."""

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

    def tell(self, running: bool) -> None:
        self._heed(serialize_message(Bool(data=running)))


def watched(latched: bool, needed: bool = True) -> tuple[Graph, FaultWatch, list[str]]:
    graph, told = Graph(), list[str]()
    kind = DurabilityPolicy.TRANSIENT_LOCAL if latched else DurabilityPolicy.VOLATILE
    topic = Topic("running", Bool, QoSProfile(depth=1, durability=kind))
    words = partial(fault_words, Channel(name="running", type=RUNNING))
    return graph, FaultWatch(cast(RosNode, graph), topic, words, told.append, needed), told


@pytest.mark.parametrize("late", [False, True])
def test_who_tells_of_errors_may_come_late_and_go(late: bool) -> None:
    graph, watch, told = watched(latched=True)
    for _ in range(3 if late else 0):
        assert watch.check() == "/running: no fault reports of the driver"
    graph.publishers = 1
    assert watch.check() == "/running: no fault reports of the driver"
    graph.tell(True)
    assert [watch.check() for _ in range(3)] == [""] * 3
    graph.publishers = 0
    assert watch.check() == "/running: the driver's fault reports have ended"
    graph.publishers = 1
    assert watch.check(), "it is there again, and has said nothing yet"
    graph.tell(False)
    assert watch.check() == ""
    assert told == ["", "that its program does not run"]


def test_who_was_heard_before_it_is_seen_in_the_graph_is_not_gone() -> None:
    graph, watch, _ = watched(latched=True)
    graph.tell(True)
    assert watch.check() == ""
    graph.publishers = 1
    assert watch.check() == ""


def test_what_is_told_again_and_again_is_missed_after_a_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s = 0.0
    monkeypatch.setattr("serl.ros.arm.faults.time", SimpleNamespace(monotonic=lambda: now_s))
    graph, watch, _ = watched(latched=False)
    graph.publishers = 1
    graph.tell(True)
    for now_s in (0.2, 0.9):  # noqa: B007
        assert watch.check() == ""
    now_s = 1.1
    assert watch.check() == "/running: the driver's fault reports have ended"
    graph.tell(True)
    assert watch.check() == ""


def test_what_no_driver_has_to_tell_is_missed_once_somebody_told_it() -> None:
    graph, watch, _ = watched(latched=True, needed=False)
    assert watch.check() == ""
    graph.publishers = 1
    graph.tell(True)
    assert watch.check() == ""
    graph.publishers = 0
    assert watch.check()


def test_a_passer_by_who_was_never_heard_is_not_missed() -> None:
    graph, watch, _ = watched(latched=True, needed=False)
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
def test_who_cannot_be_heard_is_named_while_it_is_there(
    needed: bool, kind: str, durability: DurabilityPolicy, expected: str
) -> None:
    graph, watch, _ = watched(latched=True, needed=needed)
    graph.tell(True)
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


def words(robot: str, message: Any) -> str:
    profile: ArmProfile = plugins.load("robot", robot)
    assert profile.fault is not None
    return fault_words(profile.fault, message)


@pytest.mark.parametrize("robot", ["ur5e", "ur5e_servo"])
def test_a_robot_of_universal_robots_whose_program_ended_is_ill(robot: str) -> None:
    assert words(robot, Bool(data=True)) == ""
    assert words(robot, Bool(data=False)) == "that its program does not run"


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
def test_a_franka_says_in_which_mode_it_is_and_which_errors_it_has(
    state: str, expected: str
) -> None:
    """A message of the shape that the fixture cites: franka_msgs is in no wheel."""
    row = fault_message("franka", state)
    names = ["joint_reflex", "cartesian_reflex", "communication_constraints_violation"]
    told = {name: name in row["current_errors"] for name in sorted(names)}
    errors = SimpleNamespace(**told, get_fields_and_field_types=lambda: told)
    message = SimpleNamespace(robot_mode=row["robot_mode"], current_errors=errors)
    channel = Channel(name="franka_robot_state_broadcaster/robot_state", type=FRANKA_STATE)
    assert fault_words(channel, message) == expected


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ("well", ""),
        ("ready", ""),
        ("stopped", "that it is stopped"),
        ("changed", "that it is stopped"),
        ("collided", "error 31"),
    ],
)
def test_an_xarm_says_that_it_is_stopped_and_by_which_error(state: str, expected: str) -> None:
    """A message of the shape that the fixture cites: xarm_msgs is in no wheel."""
    row = fault_message("xarm7", state)
    assert words("xarm7", SimpleNamespace(**row)) == expected


@pytest.mark.parametrize(("state", "expected"), [("well", ""), ("faulted", "that it has a fault")])
def test_a_gen3_says_whether_it_has_a_fault(state: str, expected: str) -> None:
    """A message of the shape that the fixture cites: example_interfaces is in no wheel."""
    row = fault_message("kinova_gen3", state)
    assert words("kinova_gen3", SimpleNamespace(**row)) == expected
