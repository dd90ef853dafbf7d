"""`problems` and `mismatch`: errors in a described ROS graph."""

from __future__ import annotations

import math
from datetime import datetime
from pathlib import Path

import pytest

from serl.cli.doctor_graph import expected_nodes
from serl.ros.inspection import Endpoint, GraphInfo, TopicInfo, mismatch, problems
from serl.runs.config import TrainConfig, resolve
from serl.runs.folder import RunFolder

POSE = "geometry_msgs/msg/PoseStamped"
GUARD, ARM = Endpoint("/run/guard_left", POSE), Endpoint("/run/left/arm", POSE)


def make_graph(*topics: TopicInfo, nodes: tuple[str, ...] = ()) -> GraphInfo:
    return GraphInfo(nodes, topics)


def test_valid_graph_has_no_problem() -> None:
    topic = TopicInfo("/run/left/target_pose", (GUARD,), (ARM,), 100.0)
    stats = TopicInfo("/run/stats", (GUARD, ARM))
    assert not list(problems(make_graph(topic, stats, nodes=("/a", "/b")), ["/a"]))


def test_missing_and_duplicate_nodes_are_named() -> None:
    found = list(problems(make_graph(nodes=("/a", "/a")), ["/a", "/learner"]))
    assert found == ["/a: 2 nodes have this name", "/learner: this node is missing"]


@pytest.mark.parametrize("name", ["/run/left/target_pose", "/cartesian/target_frame"])
def test_second_target_publisher_besides_guard_is_a_problem(name: str) -> None:
    stranger = Endpoint("/moveit", POSE)
    (line,) = problems(make_graph(TopicInfo(name, (GUARD, stranger), (ARM,))))
    assert line == f"{name}: 2 publishers command: /moveit, /run/guard_left"


def test_two_command_publishers_are_a_problem_unlike_two_transition_ones() -> None:
    actors = Endpoint("/run/a", POSE), Endpoint("/run/b", POSE)
    (line,) = problems(make_graph(TopicInfo("/run/left/command/pose", actors)))
    assert "2 publishers command: /run/a, /run/b" in line
    assert not list(problems(make_graph(TopicInfo("/run/transitions", actors))))


def test_several_types_of_one_topic_are_one_problem() -> None:
    wrong = Endpoint("/driver", "geometry_msgs/msg/Pose", reliable=False)
    (line,) = problems(make_graph(TopicInfo("/pose", (wrong,), (ARM,))))
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
def test_mismatch_follows_dds_quality_of_service_rules(
    sender: dict[str, float], reader: dict[str, float], why: str
) -> None:
    found = mismatch(GUARD._replace(**sender), ARM._replace(**reader))  # type: ignore[arg-type]
    assert bool(found) == bool(why)
    assert why in found


def test_mismatch_problem_names_publisher_and_subscriber() -> None:
    topic = TopicInfo("/pose", (GUARD._replace(reliable=False),), (ARM,))
    (line,) = problems(make_graph(topic))
    expected = "/pose: /run/left/arm receives nothing from /run/guard_left: the publisher"
    assert line.startswith(expected)


def test_expected_nodes_are_those_of_all_stages_and_of_both_arms(tmp_path: Path) -> None:
    config = resolve(
        {"task": "reach", "stages": {"near": {"then": "far"}, "far": {"then": "near"}}}
    )
    staged = RunFolder.create(tmp_path, config, datetime.now())
    learners, links = (
        [f"/run/{stage}/{node}" for stage in ("near", "far")] for node in ("learner", "link_actor0")
    )
    assert expected_nodes(staged, "/run") == [*learners, "/run/actor0", *links]
    file = Path(__file__).parents[2] / "docs/examples/pair.yaml"
    arms = TrainConfig(task="handover", robot=str(file), intervention="none", demos=0)
    guards = ["/run/guard_sim_left", "/run/guard_sim_right"]
    pair = RunFolder.create(tmp_path, arms, datetime.now())
    assert expected_nodes(pair, "/run")[-2:] == guards
