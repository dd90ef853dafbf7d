"""Competing publishers of an arm's measurements and commands, in an emulated ROS graph."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from serl.ros.arm.competitors import CommandPublishers, DuplicatePublishers, OtherPublishers
from serl.ros.node import RosNode

pytestmark = pytest.mark.ros

POSE, WRENCH = "/arm/current_pose", "/arm/wrench"


class Graph:
    """A stand-in for a node: the publishers of each topic as (process, node name)."""

    def __init__(self) -> None:
        self.handle, self.now_s = self, 100.0
        self.publishers: dict[str, list[tuple[int, str]]] = {POSE: [], WRENCH: []}
        self.missing: set[str] = set()
        self.doubles = DuplicatePublishers(cast(RosNode, self), [POSE, WRENCH], lambda: self.now_s)

    def get_publishers_info_by_topic(self, topic: str) -> list[Any]:
        return [
            SimpleNamespace(
                node_namespace="/" if name != "_NODE_NAME_UNKNOWN_" else "",
                node_name=name,
                endpoint_gid=[process] * 12 + [ord(name[0]), len(topic), 0, 0],
            )
            for process, name in self.publishers[topic]
        ]

    def get_fully_qualified_name(self) -> str:
        return "/driver"

    def check(
        self, later_s: float = 0.5, shared: tuple[str, ...] = (), accepts: bool = False
    ) -> str:
        self.now_s += later_s
        return self.doubles.check(self.missing.__contains__, shared, accepts)


def test_one_node_with_several_topics_is_no_duplicate() -> None:
    graph = Graph()
    assert graph.check() == ""
    graph.publishers = {POSE: [(1, "driver")], WRENCH: [(1, "driver")]}
    assert [graph.check(40.0) for _ in range(3)] == [""] * 3


@pytest.mark.parametrize("process", [1, 2])
def test_second_publisher_is_named_with_its_topic_until_3_s_after_its_end(process: int) -> None:
    graph = Graph()
    graph.publishers[WRENCH] = [(1, "driver")]
    graph.check()
    graph.publishers[WRENCH].append((process, "stranger"))
    words = f"several nodes publish {WRENCH}: /driver, /stranger"
    assert graph.check() == words
    graph.publishers[WRENCH].pop()
    assert graph.check(2.9) == words
    assert graph.check(0.1) == ""


def test_new_publisher_of_shared_topic_is_a_fault_while_arm_is_armed() -> None:
    """Report new publishers of a shared topic unless `accepts` is set."""
    graph = Graph()
    graph.publishers[WRENCH] = [(1, "driver"), (2, "gripper")]
    assert graph.check(shared=(WRENCH,), accepts=True) == ""
    assert graph.check(shared=(WRENCH,)) == ""
    graph.publishers[WRENCH][1] = (3, "gripper")  # it restarted
    assert graph.check(shared=(WRENCH,)) == ""
    graph.publishers[WRENCH].append((4, "stranger"))
    words = f"several nodes publish {WRENCH}: /driver, /gripper, /stranger"
    assert graph.check(shared=(WRENCH,)) == words
    assert graph.check(shared=(WRENCH,)) == words
    assert graph.check(100.0, shared=(WRENCH,), accepts=True) == ""
    graph.publishers[WRENCH] = [(1, "driver"), (3, "gripper"), (5, "driver")]
    words = f"several nodes publish {WRENCH}: /driver, /gripper, another /driver"
    assert graph.check(shared=(WRENCH,)) == words


def test_node_without_a_name_is_reported_from_the_second_check_on() -> None:
    graph = Graph()
    graph.publishers[POSE] = [(1, "driver"), (2, "_NODE_NAME_UNKNOWN_")]
    assert graph.check() == ""
    assert graph.check() == f"several nodes publish {POSE}: /driver, one without a name"


def test_restarted_driver_is_accepted_as_successor_for_half_a_minute() -> None:
    graph = Graph()
    graph.publishers[POSE] = [(1, "driver")]
    graph.check(100.0)
    graph.missing.add(POSE)
    graph.publishers[POSE].append((2, "driver"))
    assert graph.check() == ""
    graph.missing.clear()
    assert graph.check(29.0) == ""
    assert graph.check(2.0) == f"several nodes publish {POSE}: /driver, another /driver"
    graph.publishers[POSE].pop(0)
    assert graph.check(3.0) == ""


def test_second_driver_of_same_name_is_reported_while_first_publishes() -> None:
    graph = Graph()
    graph.publishers[POSE] = [(1, "driver")]
    graph.check()
    graph.check(100.0)
    graph.publishers[POSE].append((2, "driver"))
    assert graph.check() == f"several nodes publish {POSE}: /driver, another /driver"


def test_restarted_actor_of_same_name_is_accepted_once_it_drives() -> None:
    graph = Graph()
    watch = CommandPublishers(cast(RosNode, graph), [POSE, WRENCH], lambda: graph.now_s)
    graph.publishers[POSE] = [(1, "actor0")]
    assert watch.check(since_s=90.0) == ""
    graph.publishers[POSE].append((2, "actor0"))  # the first one was killed, and stays visible
    assert watch.check(since_s=90.0) == "several nodes command: /actor0, another /actor0"
    graph.now_s += 0.5
    assert watch.check(since_s=100.4) == ""
    graph.publishers[POSE].append((3, "stranger"))
    assert watch.check(since_s=100.4) == "several nodes command: /actor0, /stranger"
    graph.publishers[POSE].pop()
    graph.now_s += 2.9
    assert watch.check(since_s=103.3) == "several nodes command: /actor0, /stranger"
    graph.now_s += 0.1
    assert watch.check(since_s=103.3) == ""


def _commands(graph: Graph) -> Callable[[], str]:
    watch = CommandPublishers(cast(RosNode, graph), [POSE, WRENCH], lambda: graph.now_s)
    return lambda: watch.check(100.0)


def _measurements(graph: Graph) -> Callable[[], str]:
    return lambda: graph.check(0.0)


def _setpoints(graph: Graph) -> Callable[[], str]:
    watch = OtherPublishers(cast(RosNode, graph), [POSE, WRENCH], lambda: graph.now_s)
    watch.own = 1
    return lambda: watch.report


@pytest.mark.parametrize("watch", [_commands, _measurements, _setpoints])
def test_competitor_that_publishes_for_short_moments_is_reported_between_them(
    watch: Callable[[Graph], Callable[[], str]],
) -> None:
    graph = Graph()
    look = watch(graph)
    graph.publishers[POSE] = [(1, "driver")]
    assert look() == ""
    for process in (2, 3):
        graph.publishers[POSE].append((process, "stranger"))
        words = look()
        assert "/stranger" in words
        graph.publishers[POSE].pop()
        for _ in range(5):
            graph.now_s += 0.5
            assert look() == words
    graph.now_s += 0.5
    assert look() == ""
