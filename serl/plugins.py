"""Tasks, robots, simulators and agents by name or by file: the only way in which they are loaded.

A plug-in is a module with an attribute of its kind's name: `task = PickCube`.
"""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from serl.errors import BadInput, SerlError
from serl.robot import SimulatedRobot
from serl.task import SimulatedTask

Kind = Literal["task", "robot", "sim", "renderer", "agent", "reward"]
_PACKAGES: dict[Kind, str] = {
    "task": "serl.tasks",
    "robot": "serl.robots",
    "sim": "serl.sim",
    "renderer": "serl.sim",
    "agent": "serl.agents",
    "reward": "serl.agents",
}


def names(kind: Kind) -> list[str]:
    """The names that `load` knows for this kind, sorted; imports none of them."""
    folder = Path(next(iter(importlib.import_module(_PACKAGES[kind]).__path__)))
    declaration = re.compile(rf"^{kind} = ", re.MULTILINE)
    return sorted(
        module.name
        for module in pkgutil.iter_modules([str(folder)])
        if declaration.search((folder / f"{module.name}.py").read_text(encoding="utf-8"))
    )


def folders() -> list[str]:
    """Where plug-ins that are known by name lie."""
    return [
        next(iter(importlib.import_module(package).__path__))
        for package in sorted(set(_PACKAGES.values()))
    ]


def absolute(name_or_path: str) -> str:
    """A known name as it is, a file by its absolute path."""
    return (
        str(Path(name_or_path).resolve())
        if name_or_path.endswith((".py", ".yaml"))
        else name_or_path
    )


def load(kind: Kind, name_or_path: str) -> Any:
    """The attribute `<kind>` of a plug-in's module: a class, or of a robot its `ArmProfile`.

    Args:
        kind: what is wanted.
        name_or_path: a known name, or the path of a `.py` file; of a robot also of a `.yaml`, as
            `serl setup` writes it.

    Raises:
        BadInput: no such name or file, a file that cannot be loaded, or a module without the
            attribute `<kind>`.
        ImportError: a plug-in of ours needs something that is not installed.
        SerlError: what it needs does not work as this machine is set up; the line says why.
    """
    if kind == "robot" and name_or_path.endswith(".yaml"):
        from serl.robot_file import read_robot  # which knows more than names

        return read_robot(Path(name_or_path))
    if name_or_path.endswith(".py"):
        module = _load_file(Path(name_or_path))
    elif name_or_path in (known := names(kind)):
        module = _import(_PACKAGES[kind], name_or_path)
    else:
        listed = ", ".join(known) or "none"
        file = "a .py or .yaml file" if kind == "robot" else "a .py file"
        raise BadInput(f"unknown {kind} {name_or_path!r}: expected one of {listed}, or {file}")
    if not hasattr(module, kind):
        raise BadInput(f"{name_or_path}: expected a module with the attribute {kind!r}")
    return getattr(module, kind)


def make_simulation(task: SimulatedTask) -> SimulatedRobot:
    """A new simulated arm, or whatever else the scene of `task` is one of."""
    scene = task.scene
    robot: SimulatedRobot = load("sim", scene.robot)(scene, task.config)
    return robot


def make_renderer(robot: SimulatedRobot, supersampling: int = 1, name: str = "ray") -> Any:
    """A renderer of a simulated arm: `frame(camera, width, height)` is uint8 (H, W, 3)."""
    arm: Any = robot
    return load("renderer", name)(arm.model, arm.data, supersampling)


def _import(package: str, name: str) -> ModuleType:
    try:
        return importlib.import_module(f"{package}.{name}")
    except Exception as error:  # each library fails in its own way
        explain = getattr(importlib.import_module(package), "explain", lambda error: "")
        if line := explain(error):
            raise SerlError(line) from error
        raise


def _load_file(path: Path) -> ModuleType:
    """The module of a file, loaded once for each absolute path."""
    path = path.resolve()
    name = f"serl_plugin:{path}"
    if name in sys.modules:
        return sys.modules[name]
    if not path.is_file():
        raise BadInput(f"{path}: no such file")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise BadInput(f"{path}: {type(error).__name__}: {error}") from error
    return module
