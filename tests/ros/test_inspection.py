"""What is wrong with a graph, from what is seen of it."""

from __future__ import annotations

import math

import pytest

from serl.ros.inspection import Endpoint, GraphInfo, TopicInfo, mismatch, problems

POSE = "geometry_msgs/msg/PoseStamped"
GUARD, ARM = Endpoint("/run/guard_left", POSE), Endpoint("/run/left/arm", POSE)


def seen(*topics: TopicInfo, nodes: tuple[str, ...] = ()) -> GraphInfo:
    return GraphInfo(nodes, topics)


def test_a_graph_that_is_well_has_no_problem() -> None:
    topic = TopicInfo("/run/left/target_pose", (GUARD,), (ARM,), 100.0)
    stats = TopicInfo("/run/stats", (GUARD, ARM))
    assert not list(problems(seen(topic, stats, nodes=("/a", "/b")), ["/a"]))


def test_nodes_that_are_missing_or_there_twice_are_named() -> None:
    found = list(problems(seen(nodes=("/a", "/a")), ["/a", "/learner"]))
    assert found == ["/a: 2 nodes have this name", "/learner: this node is missing"]


@pytest.mark.parametrize("name", ["/run/left/target_pose", "/cartesian/target_frame"])
def test_a_second_publisher_beside_a_guard_is_a_problem(name: str) -> None:
    stranger = Endpoint("/moveit", POSE)
    (line,) = problems(seen(TopicInfo(name, (GUARD, stranger), (ARM,))))
    assert line == f"{name}: 2 publishers command: /moveit, /run/guard_left"


def test_two_actors_of_one_guard_are_a_problem_and_two_who_tell_are_none() -> None:
    actors = Endpoint("/run/a", POSE), Endpoint("/run/b", POSE)
    (line,) = problems(seen(TopicInfo("/run/left/command/pose", actors)))
    assert "2 publishers command: /run/a, /run/b" in line
    assert not list(problems(seen(TopicInfo("/run/transitions", actors))))


def test_several_types_on_a_name_are_a_problem_once() -> None:
    wrong = Endpoint("/driver", "geometry_msgs/msg/Pose", reliable=False)
    (line,) = problems(seen(TopicInfo("/pose", (wrong,), (ARM,))))
    assert line == "/pose: has several types: geometry_msgs/msg/Pose, geometry_msgs/msg/PoseStamped"


@pytest.mark.parametrize(
    ("sender", "reader", "why"),
    [
        ({"reliable": False}, {}, "best effort"),
        ({"reliable": False}, {"reliable": False}, ""),
        ({}, {"reliable": False}, ""),
        ({}, {"latched": True}, "volatile"),
        ({"latched": True}, {"latched": True}, ""),
        ({}, {"deadline_s": 0.1}, "a deadline of 0.1 s, offered: none"),
        ({"deadline_s": 0.2}, {"deadline_s": 0.1}, "offered: 0.2 s"),
        ({"deadline_s": 0.1}, {"deadline_s": 0.1}, ""),
        ({"deadline_s": 0.1}, {"deadline_s": math.inf}, ""),
    ],
)
def test_who_hears_whom_is_as_dds_has_it(
    sender: dict[str, float], reader: dict[str, float], why: str
) -> None:
    found = mismatch(GUARD._replace(**sender), ARM._replace(**reader))  # type: ignore[arg-type]
    assert bool(found) == bool(why)
    assert why in found


def test_a_mismatch_names_both_ends() -> None:
    topic = TopicInfo("/pose", (GUARD._replace(reliable=False),), (ARM,))
    (line,) = problems(seen(topic))
    expected = "/pose: /run/left/arm receives nothing from /run/guard_left: the publisher"
    assert line.startswith(expected)
