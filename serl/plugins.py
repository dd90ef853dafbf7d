"""Loading of plug-ins by name, path or entry point; no other code loads plug-ins.

A plug-in is a module with an attribute named after its kind: `task = PickCube`. An installed
package provides one by an entry point in the group of its kind (see `GROUPS`), which refers to that
module, or to the object in it: `td3 = "mypackage.td3"`.
"""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import re
import reprlib
import sys
from collections.abc import Iterator
from functools import cache
from importlib.metadata import EntryPoint, distributions
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

from pydantic import AfterValidator, BaseModel

from serl.errors import BadInput, SerlError, described, did_you_mean
from serl.real_task import read_task
from serl.robot import SimulatedRobot
from serl.system.files import check_utf8, expand_home
from serl.task import SimulatedTask

Kind = Literal[
    "task", "robot", "sim", "renderer", "agent", "reward", "device", "person", "transport"
]
Settings = TypeVar("Settings", bound=BaseModel)

_PACKAGES: dict[Kind, str] = {
    "task": "serl.tasks",
    "robot": "serl.robots",
    "sim": "serl.sim",
    "renderer": "serl.sim.render",
    "agent": "serl.agents",
    "reward": "serl.agents",
    "device": "serl.teleop",
    "person": "serl.teleop",
    "transport": "serl.ros",
}
GROUPS: dict[Kind, str] = {
    "task": "serl.tasks",
    "robot": "serl.robots",
    "agent": "serl.agents",
    "device": "serl.devices",
    "person": "serl.people",
    "transport": "serl.transports",
    "reward": "serl.rewards",
}
"""The entry point groups of installed packages."""

_WITHOUT_MODULE: dict[Kind, tuple[str, ...]] = {
    "person": ("none",),
    "reward": ("human", "pose", "task", "topic"),
    "transport": ("dds",),
}
"""Plug-in names implemented in the core, without a module."""

TASK_PREFIXES = {"gymnasium": "gymnasium", "gym_hil": "gymnasium"}
"""Modules of `serl.tasks` with a task for every name, by the prefix of `PREFIX:NAME`."""

_METHODS: dict[Kind, tuple[str, ...]] = {
    "agent": ("create",),
    "reward": ("create",),
    "device": ("open",),
    "person": ("create",),
    "transport": ("actor_end", "learner_end"),
}
"""Methods that external plug-ins must have, by kind."""


class InstalledPlugin(NamedTuple):
    """A plug-in of an installed package.

    Attributes:
        name: name of the plug-in.
        package: name of the package.
        entry: entry point that loads the plug-in.
    """

    name: str
    package: str
    entry: EntryPoint


def names(kind: Kind) -> list[str]:
    """Return the sorted names of serl's modules that are plug-ins of this kind; import none."""
    return list(_find_names(kind, _folder(kind)))


@cache
def _find_names(kind: Kind, folder: Path) -> tuple[str, ...]:
    """Return the sorted names of modules that declare a plug-in; each file is read once."""
    declaration = re.compile(rf"^{kind} = ", re.MULTILINE)
    return tuple(
        sorted(
            module.name
            for module in pkgutil.iter_modules([str(folder)])
            if not module.ispkg
            and declaration.search((folder / f"{module.name}.py").read_text(encoding="utf-8"))
        )
    )


def provided(kind: Kind) -> list[str]:
    """Return all sorted names of this kind that serl provides, including those without a module."""
    return sorted([*names(kind), *_WITHOUT_MODULE.get(kind, ())])


def installed(kind: Kind) -> list[InstalledPlugin]:
    """Return the plug-ins of this kind from installed packages, by name, without importing them.

    Names that serl also has, or that two packages have, are included; `load` resolves them.
    """
    found: dict[tuple[str, str], InstalledPlugin] = {}
    for package, entry in _entries():
        if entry.group == GROUPS.get(kind):
            found.setdefault((entry.name, package), InstalledPlugin(entry.name, package, entry))
    return [found[key] for key in sorted(found)]


def file_of(kind: Kind, name: str) -> Path:
    """Return the file of one of serl's own plug-ins, one of `names`."""
    return _folder(kind) / f"{name}.py"


def folders() -> list[str]:
    """Return the folders that contain serl's own plug-ins."""
    return [
        next(iter(importlib.import_module(package).__path__))
        for package in sorted(set(_PACKAGES.values()))
    ]


def absolute(name_or_path: str) -> str:
    """Return a known name unchanged, and a file as its absolute path, which must be UTF-8."""
    if not name_or_path.endswith((".py", ".yaml")):
        return name_or_path
    path = str(Path(expand_home(name_or_path)).resolve())
    check_utf8(path)
    return path


def stem(task: str) -> str:
    """Return the name of a task as a part of a path: the stem of a file, the ID of `PREFIX:ID`."""
    return Path(task).stem if task.endswith((".py", ".yaml")) else re.split(r"[/:]", task)[-1]


PluginName = Annotated[str, AfterValidator(absolute)]
"""Type of settings that name a plug-in; file paths become absolute."""


def load(kind: Kind, name_or_path: str) -> Any:
    """Load the attribute `<kind>` of a plug-in's module: a class, or a robot's `ArmProfile`.

    A name of serl's own takes precedence over the same name of an installed package.

    Args:
        kind: kind of the plug-in.
        name_or_path: a known name, the name of an installed package's entry point, or the path of a
            `.py` file, or, of a task, of a `.yaml` file (see `serl.real_task`) or `gymnasium:ID`.
            For a robot's `.yaml` file from `serl setup` see `serl.arm_profile`.

    Raises:
        BadInput: unknown name or file, a file or an entry point that cannot be loaded, a name that
            two packages have, or a module without the attribute `<kind>`.
        ImportError: one of serl's own plug-ins needs a package that is not installed.
        SerlError: a dependency does not work on this machine; the message gives the cause.
    """
    name_or_path = expand_home(name_or_path)
    if name_or_path.endswith(".py"):
        return _attribute(kind, load_file(Path(name_or_path)), name_or_path)
    if kind == "task" and name_or_path.endswith(".yaml"):
        return read_task(Path(name_or_path))
    prefix, colon, rest = name_or_path.partition(":")
    if kind == "task" and colon and prefix in TASK_PREFIXES:
        return _import(_PACKAGES[kind], TASK_PREFIXES[prefix]).named(prefix, rest)
    if name_or_path in names(kind):
        return getattr(_import(_PACKAGES[kind], name_or_path), kind)
    found = [each for each in installed(kind) if each.name == name_or_path]
    if len(found) > 1:
        packages = " and ".join(each.package for each in found)
        raise BadInput(f"{kind} {name_or_path!r}: the packages {packages} both have one")
    if found:
        return load_installed(kind, found[0])
    listed = sorted({*provided(kind), *(each.name for each in installed(kind))})
    files = {
        "robot": "a .py or .yaml file",
        "task": "gymnasium:ID, or a .py or .yaml file",
    }
    file = files.get(kind, "a .py file")
    raise BadInput(
        f"unknown {kind} {name_or_path!r}: expected one of {', '.join(listed) or 'none'}, or {file}"
        + did_you_mean(name_or_path, listed)
    )


def load_installed(kind: Kind, plugin: InstalledPlugin) -> Any:
    """Load the plug-in of an installed package; raise `BadInput` that names the package."""
    subject = f"{kind} {plugin.name!r} of the package {plugin.package}"
    try:
        made = plugin.entry.load()
    except (Exception, SystemExit) as error:  # each package fails in its own way
        raise BadInput(f"{subject}: {described(error)}") from error
    if isinstance(made, ModuleType):
        return _attribute(kind, made, subject)
    return _check_methods(kind, made, subject)


def settings(
    kind: Kind, name_or_path: str, contract: type[Settings], default: type[Settings]
) -> type[Settings]:
    """Return the settings model of a plug-in: its attribute `Config`, else `default`.

    One of serl's own plug-ins is imported only if its source declares a `Config`.

    Raises:
        BadInput: see `load`; or the plug-in's `Config` is not a subclass of `contract`.
    """
    if name_or_path in provided(kind) and not _declares_config(kind, name_or_path):
        return default
    model = getattr(load(kind, name_or_path), "Config", default)
    if isinstance(model, type) and issubclass(model, contract):
        return model
    expected = f"{contract.__module__}.{contract.__qualname__}"
    raise BadInput(f"{name_or_path}: Config: expected a subclass of {expected}")


def kinds_in(path: Path) -> list[Kind]:
    """Return the kinds of plug-ins that a `.py` file defines, in the order of `GROUPS`.

    Raises:
        BadInput: the file cannot be loaded, or defines no plug-in.
    """
    module = load_file(path)
    if found := [kind for kind in GROUPS if hasattr(module, kind)]:
        return found
    raise BadInput(f"{path}: expected a module with one of the attributes {', '.join(GROUPS)}")


def check_simulated(task: SimulatedTask) -> None:
    """Raise `BadInput` for a task without a simulation."""
    if not task.scene.simulated:
        raise BadInput(f"{task.name}: has no simulation, only a real arm: --robot NAME, if at all")


def make_simulation(task: SimulatedTask) -> SimulatedRobot:
    """Return a new simulated robot of the kind that the scene of `task` names.

    Raises:
        BadInput: the task has no simulation.
    """
    check_simulated(task)
    scene = task.scene
    robot: SimulatedRobot = load("sim", scene.robot)(scene, task.config)
    return robot


def make_renderer(
    robot: SimulatedRobot, supersampling: int = 1, name: str = "", shadows: bool = True
) -> Any:
    """Return a renderer of a simulation for people; `frame(camera, width, height)` is an image.

    The image is uint8 (H, W, 3). The caller closes the renderer, which draws with `name`, "gl" or
    "ray": by default with "gl" if this machine has OpenGL.

    Raises:
        SerlError: "gl" is needed and cannot be used on this machine.
    """
    if hasattr(robot, "people_renderer"):  # it draws itself
        return robot.people_renderer()
    people = _import(_PACKAGES["renderer"], "people")
    return people.PeopleRenderer(robot, supersampling, name, shadows)


def _import(package: str, name: str) -> ModuleType:
    try:
        return importlib.import_module(f"{package}.{name}")
    except Exception as error:  # each library fails in its own way
        explain = getattr(importlib.import_module(package), "explain", lambda error: "")
        if line := explain(error):
            raise SerlError(line) from error
        raise


def load_file(path: Path) -> ModuleType:
    """Load the module of a file, once per absolute path; raise `BadInput` on failure."""
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
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise BadInput(f"{path}: {described(error)}") from error
    return module


def _entries() -> Iterator[tuple[str, EntryPoint]]:
    """Yield the package name and entry point of all plug-ins; skip unreadable packages."""
    for package in distributions():
        try:
            entries = [each for each in package.entry_points if each.group in GROUPS.values()]
            name = package.metadata["Name"] if entries else None  # the metadata take long to read
        except Exception:
            continue
        yield from ((name or "unknown", entry) for entry in entries)


def _attribute(kind: Kind, module: ModuleType, subject: str) -> Any:
    """Return the module's attribute `<kind>`; else raise `BadInput` that lists the kinds it has."""
    if not hasattr(module, kind):
        others = [other for other in GROUPS if hasattr(module, other)]
        has = f", found {' and '.join(map(repr, others))}" if others else ""
        raise BadInput(f"{subject}: expected a module with the attribute {kind!r}{has}")
    return _check_methods(kind, getattr(module, kind), subject)


def _check_methods(kind: Kind, made: Any, subject: str) -> Any:
    """Return the plug-in if it has the methods of its kind; else raise `BadInput`."""
    if kind == "task" and not callable(made):
        own = type(made)
        name = "Task" if own.__module__ == "builtins" else own.__name__
        found = reprlib.repr(made) if name == "Task" else f"an object of {name}"
        raise BadInput(f"{subject}: expected a class, such as task = {name}, found {found}")
    needed = _METHODS.get(kind, ())
    if missing := [name for name in needed if not callable(getattr(made, name, None))]:
        raise BadInput(f"{subject}: expected {kind!r} with the method {missing[0]!r}")
    return made


def _declares_config(kind: Kind, name: str) -> bool:
    """Return whether the source of one of serl's modules declares `Config` in a class."""
    if name in _WITHOUT_MODULE.get(kind, ()):
        return False
    source = file_of(kind, name).read_text(encoding="utf-8")
    return bool(re.search(r"^    (class )?Config\b", source, re.MULTILINE))


def _folder(kind: Kind) -> Path:
    return Path(next(iter(importlib.import_module(_PACKAGES[kind]).__path__)))
