"""`serl list`: tasks, robots, and every setting with its value and what it means."""

from __future__ import annotations

import argparse
import inspect
import re
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from serl import plugins
from serl.config import TrainConfig

DONE = 0


def add_options(parser: argparse.ArgumentParser) -> None:
    """Of the command."""
    parser.add_argument(
        "task", nargs="?", help="show settings as a training of this task would have them"
    )


def show(options: argparse.Namespace) -> int:
    """Print the list; of a task, its settings alone.

    Raises:
        BadInput: there is no such task.
    """
    if options.task is not None:
        return _show_tuned(options.task)
    for kind in ("task", "robot"):
        for name in plugins.names(kind):
            made = plugins.load(kind, name)
            first = getattr(made, "summary", made.__doc__ or "").strip().splitlines()[0]
            print(f"{kind:8} {name:30} {first}")  # noqa: T201
    _show(TrainConfig(), "setting", {})
    print("a task has values of its own for some of these: serl list TASK")  # noqa: T201
    return DONE


def _show_tuned(task: str) -> int:
    """Each setting of a task's training, and of the task itself; * where it differs."""
    from serl.assignment import make_task
    from serl.config import resolve

    made = make_task(resolve({"task": task}))
    config = resolve(made.training_defaults(), {"task": task})
    defaults = dict(leaves(TrainConfig().model_dump(mode="json")))
    _show(config, "setting", defaults)
    _show(made.config, "setting", {}, "task_config.")
    print(f"*: {task}'s own value; without one it is the same for every task")  # noqa: T201
    return DONE


def _show(config: BaseModel, kind: str, defaults: Mapping[str, Any], prefix: str = "") -> None:
    told = meanings(type(config), prefix)
    for name, value in leaves(config.model_dump(mode="json"), prefix):
        mark = "*" if name in defaults and defaults[name] != value else " "
        shown = textwrap.shorten(str(value), 60, placeholder=" ...]")
        said = told.get(name, "")
        print(f"{kind:7}{mark} {name:30} {shown:12} {said}".rstrip())  # noqa: T201


def leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Each setting by its dotted name."""
    for name, value in tree.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def meanings(model: type[BaseModel], prefix: str = "") -> dict[str, str]:
    """What the docstrings of a model, its bases, and the models in it say of each setting."""
    said: dict[str, str] = {}
    for each in reversed(model.__mro__):
        if issubclass(each, BaseModel) and each is not BaseModel:
            said |= {f"{prefix}{name}": text for name, text in _attributes(each.__doc__ or "")}
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            said |= meanings(field.annotation, f"{prefix}{name}.")
    return said


def _attributes(text: str) -> Iterator[tuple[str, str]]:
    """The entries of "Attributes:" in a docstring, each as one line."""
    _, _, listed = inspect.cleandoc(text).partition("Attributes:\n")
    entries, *_ = listed.split("\n\n")
    for entry in re.split(r"\n(?=\w)", textwrap.dedent(entries)):
        name, colon, said = entry.partition(": ")
        if colon and name.isidentifier():
            yield name, " ".join(said.split())
