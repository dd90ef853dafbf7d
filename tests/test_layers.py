"""Import rules: the order of the rooms, checked in the sources, lazy imports included."""

from __future__ import annotations

import ast
import graphlib
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = {"serl": "serl", "robots": "serl.robots", "tasks": "serl.tasks", "sim": "serl.sim"}

VALUES = {"errors", "types", "specs", "geometry", "version"}
ENTRY_POINTS = {"serl", "serl.api", "serl.gymnasium_env"}
"""Modules above all rooms: the Python interface and the environments."""

ORDER = [
    "values",
    "system",
    "contracts",
    "guard",
    "log",
    "teleop",
    "training",
    "agents",
    "runs",
    "datasets",
    "report",
    "console",
    "ros",
    "cli",
]
"""The rooms, lowest first: a room imports only from those before it."""

UP_TO = {"testing": "teleop", "robots": "contracts", "tasks": "contracts", "sim": "contracts"}
"""Rooms outside the order, with the highest room that they may import. No room imports them."""

HOME = {
    **{"torch": "agents", "rclpy": "ros", "mujoco": "sim", "aiohttp": "console"},
    "segno": "console",
    "onnx": "agents",
    **{"jinja2": "report", "matplotlib": "report", "av": "system", "psutil": "system"},
    **{"mcap": "log", "msgspec": "log", "wandb": "log", "pyarrow": "datasets"},
    **dict.fromkeys(("h5py", "huggingface_hub", "minari", "pandas"), "datasets"),
}
"""The one room of each foreign library."""

LIGHT = {"mcap", "msgspec"}
"""Libraries that take little time and memory: entry points may load them."""

TOP_FOLDERS = {"robots", "tasks", "sim"}
"""Folders at the top of the repository, which are never import names of their own."""


def module_name(root: Path, path: Path) -> str:
    folder, *rest = path.relative_to(root).with_suffix("").parts
    return ".".join([PACKAGES[folder], *(part for part in rest if part != "__init__")])


def room_of(module: str) -> str:
    """Return the room of a module of serl: values, contracts, an entry point, or a folder."""
    if module in ENTRY_POINTS:
        return "entry"
    name = module.split(".")[1]
    if name in ORDER or name in UP_TO:
        return name
    return "values" if name in VALUES else "contracts"


def imports(root: Path, path: Path) -> Iterator[str]:
    """Yield every module that a file may import, `from a import b` as both `a` and `a.b`."""
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
                if origin != "serl":
                    yield origin
                yield from (f"{origin}.{alias.name}" for alias in names)
            case ast.Call(
                func=ast.Name(id="import_module" | "__import__")
                | ast.Attribute(attr="import_module"),
                args=[ast.Constant(value=str(name)), *_],
            ):
                yield name


def is_allowed(importer: str, imported: str) -> bool:
    """Return whether a module of serl may import another module or a foreign library."""
    package, own = imported.split(".")[0], room_of(importer)
    if package in TOP_FOLDERS:
        return False
    if package != "serl":
        return HOME.get(package, own) == own
    other = room_of(imported)
    if own == other or own == "entry" or importer.startswith(f"{imported}."):
        return True
    if other not in ORDER:
        return False
    return ORDER.index(other) <= ORDER.index(UP_TO.get(own, own))


def imports_of_modules(root: Path) -> dict[str, set[str]]:
    files = sorted(path for folder in PACKAGES for path in (root / folder).rglob("*.py"))
    return {module_name(root, path): set(imports(root, path)) for path in files}


def violations(graph: dict[str, set[str]]) -> list[str]:
    return [
        f"{module} imports {name}"
        for module, names in graph.items()
        for name in sorted(names)
        if not is_allowed(module, name)
    ]


def test_imports_follow_order_of_rooms_and_have_no_cycle() -> None:
    graph = imports_of_modules(ROOT)
    assert violations(graph) == []
    own = graph.keys() - {"serl"}
    sorter = graphlib.TopologicalSorter(
        {name: (names & own) - {name} for name, names in graph.items() if name in own}
    )
    sorter.prepare()  # raises CycleError, which names the cycle


def test_every_folder_is_a_room() -> None:
    inside = [path for path in (ROOT / "serl").iterdir() if not path.is_symlink()]
    folders = {path.name for path in inside if (path / "__init__.py").exists()}
    assert folders == (set(ORDER) - {"values", "contracts"}) | {"testing"}


def graph_of_file(root: Path, file: str, line: str) -> dict[str, set[str]]:
    (root / file).parent.mkdir(parents=True)
    (root / file).write_text(line)
    return imports_of_modules(root)


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("serl/loop.py", "import torch"),
        ("serl/loop.py", "import torch.nn as nn"),
        ("serl/loop.py", "from torch import nn"),
        ("serl/loop.py", "from serl import robots"),
        ("serl/loop.py", "from . import robots"),
        ("serl/loop.py", "from .sim.arm import SimArm"),
        ("serl/loop.py", "from serl.training.actor import Actor"),
        ("serl/loop.py", "def late():\n    import rclpy"),
        ("serl/loop.py", "import importlib\nimportlib.import_module('mujoco')"),
        ("serl/types.py", "from serl.system import files"),
        ("serl/system/files.py", "from serl.task import Task"),
        ("serl/guard/guard.py", "from serl.log.tail import Tail"),
        ("serl/agents/sac.py", "from rclpy.node import Node"),
        ("serl/agents/sac.py", "from ..ros import node"),
        ("serl/ros/node.py", "import torch"),
        ("serl/ros/node.py", "from serl.cli import main"),
        ("serl/report/page.py", "import aiohttp"),
        ("serl/teleop/keyboard.py", "import rclpy"),
        ("serl/testing/task.py", "from serl.training.replay import Replay"),
        ("serl/testing/task.py", "from serl.ros.testing.laws import Law"),
        ("robots/franka.py", "from serl.agents import sac"),
        ("robots/franka.py", "from serl.robots import ur5e\nfrom serl import tasks"),
        ("tasks/reach.py", "from serl.sim.arm import SimArm"),
        ("tasks/reach.py", "from ..sim import arm"),
        ("tasks/reach.py", "import sim"),
        ("sim/arm.py", "from serl import tasks"),
    ],
)
def test_forbidden_import_is_detected(tmp_path: Path, file: str, line: str) -> None:
    assert violations(graph_of_file(tmp_path, file, line))


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("serl/loop.py", "from serl import robot, task"),
        ("serl/loop.py", "import simplejson\nfrom . import errors"),
        ("serl/agents/sac.py", "import torch\nfrom serl.types import Batch"),
        ("serl/ros/node.py", "import rclpy\nfrom serl.agent import Agent"),
        ("serl/testing/device.py", "from serl.teleop.device import Device"),
        ("sim/arm.py", "import mujoco\nfrom . import scene"),
        ("tasks/pick_cube.py", "from serl.tasks.parts import cube"),
    ],
)
def test_allowed_import_is_accepted(tmp_path: Path, file: str, line: str) -> None:
    assert violations(graph_of_file(tmp_path, file, line)) == []


def test_importing_top_modules_loads_no_framework() -> None:
    """Check this including the libraries that the top modules import."""
    top = [module_name(ROOT, path) for path in sorted((ROOT / "serl").glob("[!_]*.py"))]
    program = (
        f"import importlib, sys; [importlib.import_module(name) for name in {top}]; "
        f"print(*({set(HOME) - LIGHT} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr


def test_launch_is_not_a_package() -> None:
    assert not (ROOT / "launch/__init__.py").exists(), "it would hide ROS's own `launch`"


def test_public_class_name_has_one_meaning() -> None:
    names = Counter(
        node.name
        for folder in PACKAGES
        for path in (ROOT / folder).rglob("*.py")
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert [name for name, count in names.items() if count > 1] == []
