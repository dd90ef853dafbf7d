"""Test what a graph file may describe, and its one-line error messages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from serl.arm_pair import PairedArm
from serl.errors import BadInput
from serl.runs.graph_file import GraphConfig
from serl.system.settings_file import checked

TWO = [{"name": "left"}, {"name": "right"}]


def graph(**fields: Any) -> GraphConfig:
    return checked(GraphConfig, {"task": "reach", "robots": TWO, **fields})


def test_actors_and_robot_are_derived_from_robots() -> None:
    made = graph(settings={"seed": 3})
    assert made.actors == ("left", "right")
    assert made.run_settings == {"seed": 3, "actors": 2, "robot": "sim"}
    alone = graph(robots=[{"name": "left", "profile": None}])
    assert alone.run_settings == {"actors": 1, "robot": None}
    assert graph(robots=[]).run_settings == {"actors": 1}


def test_console_enables_state_topics_of_simulated_arms() -> None:
    shown = graph(console={"robot": "left"}, settings={"seed": 3}).run_settings
    assert shown == {"seed": 3, "actors": 2, "robot": "sim", "ros": {"publish_state": True}}
    hidden = graph(console={"robot": "left"}, settings={"ros": {"publish_state": False}})
    assert hidden.run_settings["ros"] == {"publish_state": False}


def test_real_arms_must_differ_by_profile_or_namespace() -> None:
    arms = [
        {"name": "a", "profile": "franka", "namespace": "/left"},
        {"name": "b", "profile": "franka", "namespace": "/right"},
    ]
    made = graph(robots=arms)
    assert made.run_settings == {"actors": 2, "robot": "franka", "namespace": "/left"}
    assert graph(robots=[arms[0], {"name": "b", "profile": "other.yaml"}]).actors == ("a", "b")


def test_tilde_in_paths_is_home_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/lab")
    made = graph(task=None, run="~/run", runs="~/runs", robots=[{"name": "a", "profile": "~/a.py"}])
    assert (made.run, made.runs) == (Path("/home/lab/run"), Path("/home/lab/runs"))
    assert made.robots[0].profile == "/home/lab/a.py"
    assert PairedArm(profile="~/left.yaml").profile == "/home/lab/left.yaml"


def test_real_arm_may_have_guard_without_actor() -> None:
    arm = {"name": "arm", "profile": "franka", "namespace": "/left", "actor": False}
    assert graph(robots=[*TWO, arm]).actors == ("left", "right")


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"robots": [{"name": "Left arm"}]}, "robots.0.name: "),
        ({"robots": [{"name": "learner"}]}, "robots.0.name: 'learner' is the name of another"),
        ({"robots": [TWO[0], TWO[0]]}, "robots: left: each name once"),
        ({"robots": [TWO[0], {"name": "b", "profile": "franka"}]}, "expected the same wherever"),
        (
            {"robots": [{"name": name, "profile": "franka"} for name in "ab"]},
            "two actors would drive one arm",
        ),
        ({"settings": {"namespace": "/left"}}, "settings.namespace: follows from the rest"),
        ({"robots": [{"name": "a", "guard": False}]}, "nothing drives this arm without one"),
        ({"robots": [{"name": "a", "profile": None, "actor": False}]}, "it is nothing"),
        ({"robots": [TWO[0], {"name": "b", "profile": None}]}, "expected the same wherever"),
        ({"robots": [{"name": "a", "namespace": "left"}]}, "robots.0.namespace: "),
        ({"run": "somewhere"}, "expected `task` for a new run, or `run`"),
        ({"task": None}, "expected `task` for a new run, or `run`"),
        ({"task": None, "run": "x", "settings": {"seed": 1}}, "settings: a run has its own"),
        ({"learner": False}, "learner: false needs the `run`"),
        ({"task": None, "run": "x", "learner": False, "robots": []}, "expected at least one"),
        ({"settings": {"actors": 2}}, "settings.actors: follows from the rest"),
        ({"console": {"robot": "up"}}, "console.robot: 'up': expected one of left, right"),
        ({"console": {"robot": "left", "port": 80}}, "console.port: "),
    ],
)
def test_invalid_graph_is_refused_in_one_line_naming_the_key(
    fields: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(BadInput) as caught:
        graph(**fields)
    assert complaint in str(caught.value)
    assert "\n" not in str(caught.value)
