"""Who may import whom: the dependency rule of the architecture, read from the sources."""

from __future__ import annotations

import ast
import graphlib
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

pytestmark = pytest.mark.xdist_group("layers")  # each source is parsed once

ROOT = Path(__file__).parent.parent
PACKAGES = {"serl": "serl", "robots": "serl.robots", "tasks": "serl.tasks", "sim": "serl.sim"}

# The folders at the top are never import names of their own.
NOBODY = {"robots", "tasks", "sim"}
BY_NAME_ONLY = {"serl.robots", "serl.tasks", "serl.sim"}
FOREIGN = {"torch", "rclpy", "mujoco"}
MAY_NOT_IMPORT = {
    "serl/*.py": FOREIGN | BY_NAME_ONLY,
    "serl/loop.py": {"serl.transport", "serl.training.replay", "serl.log.episode_log", "serl.training.actor"},
    "serl/actor.py": {"serl.training.learner", "serl.training.replay"},
    "serl/learner.py": {"serl.training.actor", "serl.loop"},
    "serl/agents/*.py": {"rclpy", "mujoco", "serl.ros"} | BY_NAME_ONLY,
    "serl/ros/*.py": {"torch", "mujoco"} | BY_NAME_ONLY,
    "serl/console/*.py": FOREIGN | BY_NAME_ONLY | {"serl.agents", "serl.ros"},
    "serl/teleop/*.py": FOREIGN | BY_NAME_ONLY | {"serl.agents", "serl.ros"},
    "serl/testing/*.py": FOREIGN | BY_NAME_ONLY | {"serl.ros"},
    "robots/*.py": {"torch", "mujoco", "serl.agents"} | BY_NAME_ONLY,
    "tasks/*.py": FOREIGN | {"serl.agents", "serl.ros", "serl.robots", "serl.sim"},
    "sim/*.py": {"torch", "rclpy", "serl.agents", "serl.ros", "serl.robots", "serl.tasks"},
}


def module_name(root: Path, path: Path) -> str:
    folder, *rest = path.relative_to(root).with_suffix("").parts
    return ".".join([PACKAGES[folder], *(part for part in rest if part != "__init__")])


@cache
def imports(root: Path, path: Path) -> frozenset[str]:
    """Every module that a file may import, `from a import b` as both `a` and `a.b`."""
    return frozenset(_imports(root, path))


def _imports(root: Path, path: Path) -> Iterator[str]:
    package = module_name(root, path).split(".")
    if path.name != "__init__.py":
        package.pop()
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=module, names=names, level=level):
                above = package[: len(package) - level + 1] if level else []
                origin = ".".join([*above, *([module] if module else [])])
                yield origin
                yield from (f"{origin}.{alias.name}" for alias in names)
            case ast.Call(
                func=ast.Name(id="import_module" | "__import__")
                | ast.Attribute(attr="import_module"),
                args=[ast.Constant(value=str(name)), *_],
            ):
                yield name


def violations(root: Path) -> list[str]:
    return [
        f"{path.relative_to(root)} imports {name}"
        for pattern, forbidden in MAY_NOT_IMPORT.items()
        for path in sorted(root.glob(pattern))
        for name in sorted(imports(root, path))
        if any(name == bad or name.startswith(bad + ".") for bad in forbidden | NOBODY)
    ]


def test_layers_hold() -> None:
    assert violations(ROOT) == []


def test_every_source_folder_has_a_rule() -> None:
    ruled = {path for pattern in MAY_NOT_IMPORT for path in ROOT.glob(pattern)}
    assert ruled == {path for folder in PACKAGES for path in (ROOT / folder).rglob("*.py")}


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("serl/core.py", "import torch"),
        ("serl/core.py", "import torch.nn as nn"),
        ("serl/core.py", "from torch import nn"),
        ("serl/core.py", "from serl import robots"),
        ("serl/core.py", "from . import robots"),
        ("serl/core.py", "from .sim.arm import SimArm"),
        ("serl/core.py", "def late():\n    import rclpy"),
        ("serl/core.py", "import importlib\nimportlib.import_module('mujoco')"),
        ("serl/agents/sac.py", "from rclpy.node import Node"),
        ("serl/agents/sac.py", "from ..ros import node"),
        ("serl/ros/node.py", "import torch"),
        ("serl/teleop/keyboard.py", "import rclpy"),
        ("robots/franka.py", "from serl.agents import sac"),
        ("robots/franka.py", "from serl.robots import ur5e"),
        ("tasks/reach.py", "from serl.sim.arm import SimArm"),
        ("tasks/reach.py", "from ..sim import arm"),
        ("tasks/reach.py", "import sim"),
        ("sim/arm.py", "from serl import tasks"),
        ("serl/loop.py", "from serl.training.actor import run"),
    ],
)
def test_a_planted_import_is_caught(tmp_path: Path, file: str, line: str) -> None:
    path = tmp_path / file
    path.parent.mkdir(parents=True)
    path.write_text(line)
    found = violations(tmp_path)
    assert found
    assert all(text.startswith(f"{file} imports ") for text in found)


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("serl/core.py", "from serl import robot, task"),
        ("serl/core.py", "import simplejson\nfrom . import errors"),
        ("serl/agents/sac.py", "import torch\nfrom serl.types import Batch"),
        ("serl/ros/node.py", "import rclpy\nfrom serl.agent import Agent"),
        ("robots/franka.py", "from serl.ros.arm.robot import RosArm"),
        ("sim/arm.py", "import mujoco\nfrom . import scene"),
    ],
)
def test_an_allowed_import_passes(tmp_path: Path, file: str, line: str) -> None:
    path = tmp_path / file
    path.parent.mkdir(parents=True)
    path.write_text(line)
    assert violations(tmp_path) == []


def test_importing_the_core_loads_no_framework() -> None:
    """Also through what the core imports, whoever wrote it."""
    core = [module_name(ROOT, path) for path in sorted((ROOT / "serl").glob("[!_]*.py"))]
    program = (
        f"import importlib, sys; [importlib.import_module(name) for name in {core}]; "
        f"print(*({FOREIGN} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr


def test_modules_do_not_import_each_other_in_circles() -> None:
    files = [path for folder in PACKAGES for path in (ROOT / folder).rglob("*.py")]
    graph = {module_name(ROOT, path): imports(ROOT, path) for path in files}
    own = graph.keys() - {"serl"}
    sorter = graphlib.TopologicalSorter(
        {name: (names & own) - {name} for name, names in graph.items() if name in own}
    )
    sorter.prepare()  # raises CycleError, which names the circle


def test_launch_is_not_a_package() -> None:
    assert not (ROOT / "launch/__init__.py").exists(), "it would hide ROS's own `launch`"
