"""Second publishers of what an arm measures, in a graph that the tests make up."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from serl.ros.arm.competitors import DuplicatePublishers
from serl.ros.node import RosNode

pytestmark = pytest.mark.ros

POSE, WRENCH = "/arm/current_pose", "/arm/wrench"


class Graph:
    """In the place of a node: the publishers of topics, as (process, node) each."""

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

    def check(
        self, later_s: float = 0.5, shared: tuple[str, ...] = (), accepts: bool = False
    ) -> str:
        self.now_s += later_s
        return self.doubles.check(self.missing.__contains__, shared, accepts)


def test_one_node_that_publishes_several_topics_is_alone() -> None:
    graph = Graph()
    assert graph.check() == ""
    graph.publishers = {POSE: [(1, "driver")], WRENCH: [(1, "driver")]}
    assert [graph.check(40.0) for _ in range(3)] == [""] * 3


@pytest.mark.parametrize("process", [1, 2])
def test_a_second_node_is_named_with_its_topic_until_it_is_gone(process: int) -> None:
    graph = Graph()
    graph.publishers[WRENCH] = [(1, "driver")]
    graph.check()
    graph.publishers[WRENCH].append((process, "stranger"))
    assert graph.check() == f"several nodes publish {WRENCH}: /driver, /stranger"
    graph.publishers[WRENCH].pop()
    assert graph.check() == ""


def test_a_node_that_comes_to_a_shared_topic_while_the_arm_is_held_is_a_fault() -> None:
    """One message about other joints, from anybody, makes a topic a shared one."""
    graph = Graph()
    graph.publishers[WRENCH] = [(1, "driver"), (2, "gripper")]
    assert graph.check(shared=(WRENCH,), accepts=True) == ""
    assert graph.check(shared=(WRENCH,)) == ""
    graph.publishers[WRENCH][1] = (3, "gripper")  # it was started anew
    assert graph.check(shared=(WRENCH,)) == ""
    graph.publishers[WRENCH].append((4, "stranger"))
    words = f"several nodes publish {WRENCH}: /driver, /gripper, /stranger"
    assert graph.check(shared=(WRENCH,)) == words
    assert graph.check(shared=(WRENCH,)) == words
    assert graph.check(shared=(WRENCH,), accepts=True) == ""


def test_a_node_without_a_name_counts_from_the_second_look_on() -> None:
    graph = Graph()
    graph.publishers[POSE] = [(1, "driver"), (2, "_NODE_NAME_UNKNOWN_")]
    assert graph.check() == ""
    assert graph.check() == f"several nodes publish {POSE}: /driver, one without a name"


def test_a_driver_that_starts_again_after_a_silence_is_its_own_successor_for_half_a_minute() -> (
    None
):
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
    assert graph.check() == ""


def test_a_namesake_that_comes_while_the_driver_measures_is_no_successor() -> None:
    graph = Graph()
    graph.publishers[POSE] = [(1, "driver")]
    graph.check()
    graph.check(100.0)
    graph.publishers[POSE].append((2, "driver"))
    assert graph.check() == f"several nodes publish {POSE}: /driver, another /driver"
