"""docs/launch.md: its files are valid, and it explains every key and argument."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from serl.runs.graph_file import ConsoleEntry, GraphConfig, RobotEntry
from serl.runs.settings import run_settings
from serl.system.settings_file import checked, read_yaml

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/launch.md").read_text(encoding="utf-8")
EXAMPLE = ROOT / "docs/examples/two_arms.yaml"


def first_cells() -> list[str]:
    """Return the names that the tables of the page explain."""
    return re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE)


def test_two_arm_example_is_valid_graph() -> None:
    graph = checked(GraphConfig, read_yaml(EXAMPLE))
    config = run_settings(graph.task, graph.run_settings, {})
    assert (config.actors, config.robot, graph.actors) == (2, "sim", ("left", "right"))
    assert f"serl up {EXAMPLE.relative_to(ROOT)}\n" in PAGE


def test_graph_of_real_arms_in_launch_page_is_valid() -> None:
    (text,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    graph = checked(GraphConfig, yaml.safe_load(text))
    assert graph.run_settings["robot"] == "left.yaml"
    assert graph.actors == ("left", "right")


@pytest.mark.parametrize("model", [GraphConfig, RobotEntry])
def test_launch_page_explains_every_key_of_graph_file(model: Any) -> None:
    assert set(model.model_fields) <= set(first_cells())
    assert all(f"`{key}`" in PAGE for key in ConsoleEntry.model_fields)


def test_launch_page_explains_every_launch_file_and_argument() -> None:
    pytest.importorskip("rclpy")
    from serl.cli import launch as launching

    for path in (ROOT / "launch").glob("*.launch.py"):
        assert f"| `{path.name}` |" in PAGE
        assert f"launch launch/{path.name}" in PAGE
    tables = (launching._ACTOR, launching._SIM, launching._GUARD, launching._FILE)
    for table in (*tables, launching._EVERYWHERE):
        for name, (default, _) in table.items():
            rows = re.findall(rf"^\| `{name}` \| [^|]+ \| ?(\S*) ?\|", PAGE, re.MULTILINE)
            assert (f"`{default}`" if default else "") in rows, name


def test_guards_of_real_arms_in_launch_page_have_a_taught_workspace() -> None:
    """Expect the file of an arm: an arm given by its name has no workspace, and is refused."""
    assert re.findall(r"profile:=(\S+)", PAGE) == ["right.yaml"]
