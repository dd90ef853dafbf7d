"""`serl list`: all plug-ins, and every setting with its value and its meaning."""

from __future__ import annotations

import argparse
import ast
import textwrap
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from serl import plugins
from serl.arm_profile import load_robot
from serl.cli.settings import describe
from serl.cli.teleop import mapping_of
from serl.errors import SerlError
from serl.real_task import is_task_file
from serl.runs.config import TrainConfig, resolve
from serl.runs.plugin_settings import CHOICES
from serl.system.settings_file import leaves
from serl.teleop.config import TeleopConfig

DONE = 0
_IMPORT_S = 20.0
"""Time for the import of a package's plug-in, after which the list goes on without it."""


def show_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `serl list`."""
    parser.add_argument(
        "task",
        nargs="?",
        metavar="NAME",
        help="a task: show its settings in a training; any other plug-in, or the path of its .py "
        "file: describe it and show its own settings",
    )


def show(options: argparse.Namespace) -> int:
    """Print the list; for one plug-in, only its settings.

    Raises:
        BadInput: the plug-in does not exist.
    """
    if options.task is not None:
        return _show_one(options.task)
    for kind in plugins.GROUPS:
        for name in plugins.provided(kind):
            print(f"{kind:9} {name:29} {_own_line(kind, name)}".rstrip())
        for plugin in plugins.installed(kind):
            print(f"{kind:9} {plugin.name:29} {_installed_line(kind, plugin)}")
    _show(TrainConfig(), {})
    print("a task has values of its own for some of these: serl list TASK")
    return DONE


def _show_one(name: str) -> int:
    """Print the plug-ins of this name of any kind; a task takes precedence."""
    if name.endswith(".yaml") and is_task_file(Path(name)):
        return _show_tuned(name)
    if name.endswith(".py"):
        kinds = plugins.kinds_in(Path(name))
    else:
        kinds = [kind for kind in plugins.GROUPS if name in _all_names(kind)]
        if not name.endswith(".yaml") and not kinds:
            plugins.load("task", name)  # raises with the known names
        kinds = kinds or ["robot"]
    if "task" in kinds:
        return _show_tuned(name)
    for kind in kinds:
        _show_plugin(kind, name)
    return DONE


def _all_names(kind: plugins.Kind) -> list[str]:
    return [*plugins.provided(kind), *(plugin.name for plugin in plugins.installed(kind))]


def _show_plugin(kind: plugins.Kind, name: str) -> None:
    """Print the summary of a plug-in, and its settings with their defaults."""
    builtin = name in plugins.provided(kind)
    line = _own_line(kind, name) if builtin else _summary(_load(kind, name), "")
    print(f"{kind:9} {name:29} {line}".rstrip())
    choice = next((each for each in CHOICES.values() if each.kind == kind), None)
    if choice is not None:
        config = resolve(choice.selecting(name))
        _show(getattr(config, choice.field), {}, f"{choice.field}.")
    elif kind == "device" and name not in TeleopConfig.model_fields:
        _show(mapping_of(TeleopConfig(), name), {}, "teleop.device.")
    elif kind == "device":
        _show(mapping_of(TeleopConfig(), name), {}, f"teleop.{name}.")


def _load(kind: plugins.Kind, name: str) -> Any:
    return load_robot(name) if kind == "robot" else plugins.load(kind, name)


def _own_line(kind: plugins.Kind, name: str) -> str:
    """Return the summary of a built-in plug-in: the first line of its module's docstring.

    The module is parsed, not imported, as it may need packages that are not installed. Tasks and
    robots are loaded, and have a summary of their own.
    """
    if line := _WITHOUT_MODULE.get((kind, name)):
        return line
    if kind in ("task", "robot"):
        return _summary(plugins.load(kind, name), "")
    text = Path(plugins.file_of(kind, name)).read_text(encoding="utf-8")
    return (ast.get_docstring(ast.parse(text)) or "").partition("\n")[0]


_WITHOUT_MODULE = {
    ("person", "none"): "No person takes over.",
    ("reward", "human"): "A person's keys for success and failure.",
    ("reward", "pose"): "The place and the orientation of the tool.",
    ("reward", "task"): "The task's own outcome.",
    ("transport", "dds"): "Topics of ROS 2, acknowledged.",
}


def _installed_line(kind: plugins.Kind, plugin: plugins.InstalledPlugin) -> str:
    """Return the package and the summary of an installed plug-in, or why it cannot be used."""
    of = f"[{plugin.package}]"
    if plugin.name in plugins.provided(kind):
        article = "an" if kind == "agent" else "a"
        return f"{of} not used: serl has {article} {kind} of that name"
    results: list[str] = []

    def load() -> None:
        try:
            results.append(_summary(plugins.load(kind, plugin.name), ""))
        except SerlError as error:
            results.append(f"cannot be used: {error}")
        except BaseException as error:  # foreign code raises anything, even KeyboardInterrupt
            cause = " ".join(f"{type(error).__name__}: {error}".split())
            results.append(f"cannot be used: {cause}")

    thread = threading.Thread(target=load, daemon=True)
    thread.start()
    thread.join(_IMPORT_S)
    result = results[0] if results else f"cannot be used: not loaded within {_IMPORT_S:g} s"
    return f"{of} {result}".rstrip()


def _summary(made: Any, default: str) -> str:
    text = getattr(made, "summary", made.__doc__ or "") or default
    return next(iter(str(text).strip().splitlines()), default)


def _show_tuned(task: str) -> int:
    """Print all settings of a task's training and of the task; * marks the task's own values."""
    from serl.runs.task_setup import make_task

    made = make_task(resolve({"task": task}))
    config = resolve(made.training_defaults(), {"task": task})
    defaults = {setting.name: setting.value for setting in describe(TrainConfig())}
    _show(config, defaults)
    _show(made.config, {}, "task_config.")
    print(f"*: {task}'s own value; without one it is the same for every task")
    return DONE


def _show(config: BaseModel, defaults: Mapping[str, Any], prefix: str = "") -> None:
    for setting in describe(config, prefix):
        mark = "*" if defaults.get(setting.name, setting.value) != setting.value else " "
        values = dict(leaves({setting.name: setting.value}))
        for name, value in values.items():
            shown = textwrap.shorten(str(value), 60, placeholder=" ...]")
            kind = f"({setting.kind})"
            print(f"setting{mark} {name:30} {shown:12} {kind} {setting.meaning}".rstrip())
