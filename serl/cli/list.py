"""`serl list`: plug-ins by kind, and settings with values and meanings; a word filters both.

A terminal gets lines of at most 100 columns; a pipe gets one line for each plug-in and setting.
"""

from __future__ import annotations

import argparse
import ast
import json
import sys
import textwrap
import threading
from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from serl import plugins
from serl.arm_profile import load_robot
from serl.cli.arguments import WIDTH
from serl.cli.settings import Setting, describe
from serl.cli.teleop import mapping_of
from serl.errors import BadInput, SerlError, described, did_you_mean
from serl.real_task import is_task_file
from serl.runs.config import TrainConfig, resolve
from serl.runs.plugin_settings import CHOICES
from serl.system.settings_file import leaves
from serl.teleop.config import TeleopConfig

_PLURALS = {group.partition(".")[2]: kind for kind, group in plugins.GROUPS.items()}
_IMPORT_S = 20.0
"""Time limit for the import of an installed plug-in."""


def show_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `serl list`."""
    parser.add_argument(
        "name",
        nargs="?",
        metavar="NAME",
        help=f"settings: those of a training; {', '.join(_PLURALS)}: the plug-ins of this kind; a "
        "task: its settings in a training; another plug-in, or the path of its .py or .yaml file: "
        "describe it and show its own settings",
    )
    parser.add_argument(
        "word",
        nargs="?",
        metavar="WORD",
        help="show only the settings of this group (agent), or those with this word in the name "
        "(discount), else in the meaning; of plug-ins, those with it in their line",
    )


def show(options: argparse.Namespace) -> int:
    """Print the plug-ins; for one of them or a word, only its settings.

    Raises:
        BadInput: the plug-in does not exist, or nothing has the word.
    """
    name, word = options.name, options.word
    if name == "settings":
        _print_settings(_settings(TrainConfig()), word)
        print("values of a task: serl list TASK")
    elif name in _PLURALS or name is None:
        _print_plugins([_PLURALS[name]] if name else [*plugins.GROUPS], word)
        if name is None:
            print("all settings: serl list settings; those of one group: serl list settings agent")
            print("values of a task: serl list TASK")
    else:
        _show_one(name, word)
    return 0


def _print_plugins(kinds: list[plugins.Kind], word: str | None) -> None:
    """Print a line for each plug-in of some kinds, if it has the word.

    Raises:
        BadInput: none has it.
    """
    rows = [
        (kind, name, line)
        for kind in kinds
        for name, line in (
            *((name, _own_line(kind, name)) for name in plugins.provided(kind)),
            *((each.name, _installed_line(kind, each)) for each in plugins.installed(kind)),
        )
    ]
    found = [row for row in rows if word is None or word.lower() in " ".join(row[1:]).lower()]
    if not found:
        raise BadInput(f"none of {', '.join(name for _, name, _ in rows)} has {word!r} in its line")
    for row in found:
        _print_plugin(*row)


def _print_plugin(kind: str, name: str, line: str) -> None:
    _print(f"{kind:9} {name:22}", line)


def _print(head: str, text: str, indent: int = 33) -> None:
    """Print a name and its description; on a terminal in lines that fit."""
    line = f"{head} {text}".rstrip()
    if sys.stdout.isatty():
        line = textwrap.fill(line, WIDTH, subsequent_indent=" " * indent, break_on_hyphens=False)
    print(line)


def _show_one(name: str, word: str | None) -> None:
    """Print the plug-ins of this name, of any kind; a task takes precedence."""
    if name.endswith(".yaml") and is_task_file(Path(name)):
        _show_task(name, word)
        return
    if name.endswith(".py"):
        kinds = plugins.kinds_in(Path(name))
    else:
        known = {kind: _all_names(kind) for kind in plugins.GROUPS}
        kinds = [kind for kind, names in known.items() if name in names]
        if not name.endswith(".yaml") and not kinds:
            if ":" not in name:
                raise BadInput(_unknown(name, known))
            kinds = ["task"]
        kinds = kinds or ["robot"]
    if "task" in kinds:
        _show_task(name, word)
        return
    for kind in kinds:
        _show_plugin(kind, name, word)


def _unknown(name: str, known: Mapping[plugins.Kind, list[str]]) -> str:
    """Return the error message for a name that no kind and no plug-in has."""
    words = ["settings", *_PLURALS]
    return (
        f"list: unknown name {name!r}: expected {', '.join(words)}, a task "
        f"({', '.join(known['task'])}), another plug-in of `serl list`, or a .py or .yaml file"
        f"{did_you_mean(name, [*words, *chain(*known.values())])}"
    )


def _all_names(kind: plugins.Kind) -> list[str]:
    return [*plugins.provided(kind), *(plugin.name for plugin in plugins.installed(kind))]


def _show_plugin(kind: plugins.Kind, name: str, word: str | None) -> None:
    """Print the summary of a plug-in, and its settings with their defaults."""
    builtin = name in plugins.provided(kind)
    _print_plugin(kind, name, _own_line(kind, name) if builtin else _summary(_load(kind, name), ""))
    choice = next((each for each in CHOICES.values() if each.kind == kind), None)
    if choice is not None:
        needs_more = ("classifier", "pose", "topic", "progress")  # a file, a pose or a topic
        bare = kind == "reward" and name in needs_more
        config = TrainConfig() if bare else resolve(choice.selection(name))
        found = _settings(getattr(config, choice.field), f"{choice.field}.")
    elif kind == "device":
        group = name if name in TeleopConfig.model_fields else "device"
        found = _settings(mapping_of(TeleopConfig(), name), f"teleop.{group}.")
    else:
        return
    _print_settings(found, word)


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
    ("reward", "topic"): "The number that a ROS node publishes.",
    ("transport", "dds"): "ROS 2 topics, with acknowledgements.",
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
            results.append(f"cannot be used: {described(error)}")

    thread = threading.Thread(target=load, daemon=True)
    thread.start()
    thread.join(_IMPORT_S)
    result = results[0] if results else f"cannot be used: not loaded within {_IMPORT_S:g} s"
    return f"{of} {result}".rstrip()


def _summary(made: Any, default: str) -> str:
    text = getattr(made, "summary", made.__doc__ or "") or default
    return next(iter(str(text).strip().splitlines()), default)


def _show_task(task: str, word: str | None) -> None:
    """Print all settings of a task's training and of the task; * marks the task's own values."""
    from serl.runs.task_setup import make_task

    made = make_task(resolve({"task": task}))
    config = resolve(made.training_defaults(), {"task": task})
    defaults = {setting.name: setting.value for setting in _settings(TrainConfig())}
    found = [*_settings(config), *_settings(made.config, "task_config.")]
    _print_settings(found, word, defaults)
    print(f"*: {task} sets this value; settings without * have the default of all tasks")


def _settings(config: BaseModel, prefix: str = "") -> list[Setting]:
    """Return the settings of a configuration; a mapping gives one setting for each entry."""
    return [
        setting._replace(name=name, value=value)
        for setting in describe(config, prefix)
        for name, value in dict(leaves({setting.name: setting.value})).items()
    ]


def _print_settings(
    settings: list[Setting], word: str | None, defaults: Mapping[str, Any] | None = None
) -> None:
    """Print the settings that have the word, with a * at values that come from the task.

    Raises:
        BadInput: none has it.
    """
    for each in settings if word is None else _matching(settings, word):
        is_own = (
            defaults is not None
            and not each.name.startswith("task_config.")
            and defaults.get(each.name) != each.value
        )
        shown = each.value if isinstance(each.value, str) else json.dumps(each.value)
        value = textwrap.shorten(shown, 60, placeholder=" ...]")
        meaning = f"({each.kind}) {each.meaning}"
        if sys.stdout.isatty():
            print(f"{'*' if is_own else ' '} {each.name} = {value}")
            _print(" " * 5, meaning, indent=6)
        else:
            print(f"setting{'*' if is_own else ' '} {each.name:30} {value:12} {meaning}".rstrip())


def _matching(settings: list[Setting], word: str) -> list[Setting]:
    """Return the settings of a group, else those with a word in their names or meanings."""
    found = [each for each in settings if f"{each.name}.".startswith(f"{word}.")]
    found = found or [each for each in settings if word.lower() in each.name.lower()]
    found = found or [each for each in settings if word.lower() in each.meaning.lower()]
    if not found:
        groups = {each.name.partition(".")[0] for each in settings if "." in each.name}
        raise BadInput(
            f"no setting has {word!r} in its name or meaning; the groups are "
            f"{', '.join(sorted(groups))}{did_you_mean(word, groups)}"
        )
    return found
