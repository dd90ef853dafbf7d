"""Settings as options of a command: their description for help and lists, and their parsing.

Types, choices and bounds come from pydantic's JSON schema of a model. Values are read as YAML, also
those of settings that no model declares, such as `--task_config.motion.axes "[x, z, pitch]"`.
"""

from __future__ import annotations

import argparse
import inspect
import json
import re
import textwrap
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from pydantic import BaseModel

from serl.agents.config import ClassifierConfig, PretrainingConfig, TimeToGoConfig
from serl.runs.config import TrainConfig, is_bare, parse_overrides, resolve
from serl.runs.plugin_settings import CHOICES
from serl.system.settings_file import leaves, merge, unit_of

_BOUNDS = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}


MOST_USED = ("steps", "seed", "demos", "robot", "observe", "trials")
"""The settings of a run at the top of the help, in this order."""


class Setting(NamedTuple):
    """A setting of a model.

    Attributes:
        kind: type or choices, with unit and bounds.
        choices: allowed values, if there are few.
        value: value as JSON-compatible data.
        meaning: description from the docstring of its model.
    """

    name: str
    kind: str
    choices: tuple[str, ...]
    value: Any
    meaning: str


def describe(config: BaseModel, prefix: str = "") -> Iterator[Setting]:
    """Yield all settings of a configuration and of the models in it, with their values."""
    model = type(config)
    schema, descriptions = model.model_json_schema(), meanings(model)
    values = config.model_dump(mode="json")
    for name in model.model_fields:
        value = getattr(config, name)
        if isinstance(value, BaseModel):
            yield from describe(value, f"{prefix}{name}.")
            continue
        own = schema["properties"][name]
        kind = _kind(own, schema.get("$defs", {}))
        if unit := unit_of(name):
            kind += f", {unit}"
        choices = tuple(map(str, own.get("enum", ())))
        yield Setting(f"{prefix}{name}", kind, choices, values[name], descriptions.get(name, ""))


def _kind(schema: Mapping[str, Any], models: Mapping[str, Any]) -> str:
    """Return a type of JSON schema as text, with choices and bounds."""
    if "$ref" in schema:
        schema = models[schema["$ref"].rpartition("/")[2]]
    if "anyOf" in schema:
        return " or ".join(_kind(each, models) for each in schema["anyOf"])
    if found := schema.get("enum") or ("const" in schema and [schema["const"]]):
        return "{" + ",".join(map(str, found)) + "}"
    name = str(schema.get("format") or schema.get("type", "any value"))
    if name == "array":
        parts = schema.get("prefixItems") or [schema.get("items", {})]
        more = "" if "prefixItems" in schema else ", ..."
        return f"[{', '.join(_kind(part, models) for part in parts)}{more}]"
    bounds = [f"{sign} {_number(schema[key])}" for key, sign in _BOUNDS.items() if key in schema]
    return " ".join([name, *bounds])


def _number(bound: float) -> str:
    """Return a bound: whole numbers in full, others with six digits."""
    return str(int(bound)) if float(bound).is_integer() and abs(bound) < 1e12 else f"{bound:g}"


def meanings(model: type[BaseModel]) -> dict[str, str]:
    """Return the description of each setting from the docstrings of a model and its bases."""
    found: dict[str, str] = {}
    for each in reversed(model.__mro__):
        if issubclass(each, BaseModel) and each is not BaseModel:
            found |= attributes(each)
    return {name: re.sub(r"\bNone\b", "null", text) for name, text in found.items()}  # as in YAML


def attributes(described: type) -> dict[str, str]:
    """Return the description of each attribute from the docstring of a class."""
    found = {}
    _, _, listed = inspect.cleandoc(described.__doc__ or "").partition("Attributes:\n")
    entries, *_ = listed.split("\n\n")
    for entry in re.split(r"\n(?=\w)", textwrap.dedent(entries)):
        name, colon, text = entry.partition(": ")
        if colon and name.isidentifier():
            found[name] = " ".join(text.split())
    return found


def names(kind: str) -> set[str]:
    """Return the names of the settings at the top level that a command accepts."""
    if kind == "run":
        return {*TrainConfig.model_fields}
    config, prefix = _defaults(kind, ())
    more = {"pretraining": {"task_config"}, "progress": {"task_config", "observe"}}.get(kind, set())
    return {prefix.rstrip(".")} if prefix else {*type(config).model_fields, *more}


def _defaults(kind: str, overrides: Sequence[str]) -> tuple[BaseModel, str]:
    """Return the settings that a command accepts with their defaults, and the prefix of names."""
    if kind == "classifier":
        return ClassifierConfig(), ""
    if kind == "pretraining":
        return PretrainingConfig(), ""
    if kind == "progress":
        return TimeToGoConfig(), ""
    config = _with_plugins(overrides)
    return (config, "") if kind == "run" else (getattr(config, kind), f"{kind}.")


def _with_plugins(overrides: Sequence[str]) -> TrainConfig:
    """Return default settings with the plug-ins that some words select."""
    overridden = dict(leaves(parse_overrides(overrides)))
    selected: dict[str, Any] = {}
    for choice in CHOICES.values():
        for setting in (choice.setting, f"{choice.field}.{choice.setting}"):
            if isinstance(name := overridden.get(setting), str):
                selected = merge(selected, choice.selection(name))
    return resolve(selected)


def dotted_names(kind: str, overrides: Sequence[str]) -> list[str]:
    """Return the dotted names of all settings that a command accepts."""
    return [setting.name for setting in describe(*_defaults(kind, overrides))]


def add(parser: argparse.ArgumentParser, kind: str, overrides: Sequence[str]) -> None:
    """Add settings to a parser, for its help and for shell completion, a group for each model.

    Args:
        parser: parser of a command.
        kind: `settings` of the command.
        overrides: words of settings, which may select plug-ins.
    """
    usage, more = parser.format_usage().rstrip(), "[--SETTING VALUE ...]"
    fits = len(usage.splitlines()[-1]) + len(more) < parser._get_formatter()._width
    indent = " " * len(f"usage: {parser.prog} ")
    parser.usage = f"{usage} {more}"[7:] if fits else f"{usage}\n{indent}{more}"[7:]
    groups: dict[str, Any] = {"first": parser.add_argument_group("most used settings")}
    parser._action_groups.insert(1, parser._action_groups.pop())  # above the options
    described = list(describe(*_defaults(kind, overrides)))
    described.sort(key=lambda each: MOST_USED.index(each.name) if each.name in MOST_USED else 99)
    for setting in described:
        if f"--{setting.name}" in parser._option_string_actions:
            continue  # an option of the command takes precedence
        of = "first" if setting.name in MOST_USED else setting.name.rpartition(".")[0]
        if of not in groups:
            groups[of] = parser.add_argument_group(f"settings{' of ' * bool(of)}{of}")
        shown = textwrap.shorten(json.dumps(setting.value), 60, placeholder=" ...")
        text = f"{setting.meaning} (default: {shown})".strip().replace("%", "%%")
        option = groups[of].add_argument(f"--{setting.name}", metavar=setting.kind, help=text)
        option.completer = lambda choices=setting.choices, **_: choices


def split(
    words: Sequence[str], settings: Container[str], options: Container[str]
) -> tuple[list[str], list[str]]:
    """Separate the words of options and positional arguments from those of settings.

    Args:
        words: words after the command.
        settings: names of the settings at the top level.
        options: options of the command, such as "--seed", which take precedence. An option such as
            "--rehearsal" may have settings "--rehearsal.*".

    Returns:
        The command's own words, and those of settings, each followed by its value, if it has one.
    """
    own: list[str] = []
    others: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        name, equals, _ = word.partition("=")
        top = name.removeprefix("--").partition(".")[0].replace("-", "_")
        known = top in settings or ("." in name and f"--{top}" in options)
        if not word.startswith("--") or name in options or not known:
            own.append(word)
            continue
        others.append(word)
        if not (equals or is_bare(name[2:], rest)) and rest and rest[0] not in ("-h", "--help"):
            others.append(rest.pop(0))
    return own, others
