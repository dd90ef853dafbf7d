"""Tables of the reference, generated from the parsers, the models and the topics themselves."""

from __future__ import annotations

import argparse
import ast
import html
import importlib
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel

from serl import plugins
from serl.agents.config import ClassifierConfig, PretrainingConfig, TimeToGoConfig
from serl.arm_profile import ArmProfile, Channel
from serl.cli import main as cli
from serl.cli import settings
from serl.guard.config import GuardConfig
from serl.log.metrics import EpisodeRow, EvaluationRow, EventRow, RequestRow, ResumeRow, UpdateRow
from serl.motion import Limits
from serl.runs.config import TrainConfig
from serl.runs.graph_file import ConsoleEntry, GraphConfig, RobotEntry
from serl.runs.plugin_settings import CHOICES
from serl.runs.sweep import SweepConfig
from serl.system.settings_file import unit_of
from serl.workspace import Workspace

ROOT = Path(__file__).parents[2]


class Row(NamedTuple):
    """A setting: dotted name, type with bounds, unit, default, meaning."""

    name: str
    kind: str
    unit: str
    default: str
    meaning: str


def rows(model: type[BaseModel], values: BaseModel | None = None, prefix: str = "") -> list[Row]:
    """Return the settings of a model and of the models in it.

    Args:
        model: the model.
        values: an instance whose values are shown as defaults; None for the model's own.
        prefix: prefix of the names.
    """
    schema, texts, found = model.model_json_schema(), settings.meanings(model), list[Row]()
    for name, field in model.model_fields.items():
        required = values is None and field.is_required()
        default = None if required else _default(field, values, name)
        if isinstance(default, Channel):
            text = texts.get(name, "")
            found.append(Row(f"{prefix}{name}", "name and type", "", default.name, text))
            continue
        if (inner := _model_in(field.annotation, default)) is not None:
            nested = default if isinstance(default, BaseModel) else None
            found += rows(inner, nested, f"{prefix}{name}.")
            continue
        kind = settings._kind(schema["properties"][name], schema.get("$defs", {}))
        shown = "required" if required else _shown(default)
        found.append(Row(f"{prefix}{name}", kind, unit_of(name), shown, texts.get(name, "")))
    return found


def _default(field: Any, values: BaseModel | None, name: str) -> Any:
    return field.get_default(call_default_factory=True) if values is None else getattr(values, name)


def _model_in(annotation: Any, default: Any) -> type[BaseModel] | None:
    if isinstance(default, BaseModel):
        return type(default)
    is_model = isinstance(annotation, type) and issubclass(annotation, BaseModel)
    return annotation if is_model and default is None else None


def _shown(value: Any) -> str:
    """Return a default as YAML would take it."""
    if isinstance(value, BaseModel):
        value = value.model_dump(mode="json")
    text = json.dumps(value, default=str, ensure_ascii=False)
    return text.strip('"') if isinstance(value, str) and value else text


def _cell(text: str) -> str:
    """Return text for a cell of a table: nothing in it is markup, but code in backquotes."""
    parts = re.split(r"(`[^`]+`)", " ".join(text.split()))
    plain = (
        part if part.startswith("`") else html.escape(part, quote=False).replace("*", "&#42;")
        for part in parts
    )
    return "".join(plain).replace("|", "&#124;").replace("_", "&#95;" if "`" not in text else "_")


def _code(text: str) -> str:
    shown = html.escape(text, quote=False).replace("|", "&#124;")
    return f"<code>{shown}</code>" if text else ""


def _kind(text: str) -> str:
    """Return a type with readable bounds."""
    bounds = re.sub(r">= (\S+) <= (\S+?)(?=[,\] ]|$)", r"\1 to \2", text)
    words = {">= ": "≥ ", "<= ": "≤ ", "{": "", "}": "", ",": ", "}
    for old, new in words.items():
        bounds = bounds.replace(old, new)
    return _cell(" ".join(bounds.split()))


def _table(found: list[Row]) -> str:
    lines = ["| setting | type, bounds and unit | default | meaning |", "|---|---|---|---|"]
    lines += [
        f"| {_code(row.name)} | {_kind(row.kind)}{', ' * bool(row.unit)}{row.unit} "
        f"| {_code(_short(row.default))} | {_cell(row.meaning)} |"
        for row in found
    ]
    return "\n".join([*lines, ""])


def _short(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:56]} ..."


def run_settings() -> str:
    """Return the settings of a run, a table for each group."""
    found = rows(TrainConfig, TrainConfig())
    groups: dict[str, list[Row]] = {}
    for row in found:
        head, _, rest = row.name.partition(".")
        groups.setdefault(head if rest else "", []).append(row)
    parts = ["### The run", _table(groups.pop(""))]
    for name, of in groups.items():
        parts += [f"### {name}", _table(of)]
    return "\n\n".join(parts)


def plugin_settings() -> str:
    """Return the settings that each plug-in of serl has beyond the common ones of its kind."""
    parts = []
    for choice in CHOICES.values():
        common = {row.name for row in rows(choice.own)}
        for name in plugins.provided(choice.kind):
            own = [row for row in rows(choice.model(name)) if row.name not in common]
            if own:
                more = [row._replace(name=f"{choice.field}.{row.name}") for row in own]
                parts += [f"### {choice.kind} `{name}`", _table(more)]
    return "\n\n".join(parts)


def task_settings() -> str:
    """Return the settings of each task, without those whose defaults all tasks share."""
    every = {
        name: rows(type(config), config, "task_config.")
        for name in plugins.provided("task")
        for config in (plugins.load("task", name)().config,)
    }
    shared = set.intersection(*(set(found) for found in every.values()))
    first = next(iter(every.values()))
    parts = ["### All tasks", _table([row for row in first if row in shared])]
    for name, found in every.items():
        parts += [f"### {name}", _table([row for row in found if row not in shared])]
    return "\n\n".join(parts)


def limits() -> str:
    """Return the limits of motion, each with the hard maximum."""
    lines = ["| limit | default | hard maximum | unit | meaning |", "|---|---|---|---|---|"]
    for row in rows(Limits, prefix=""):
        bound = re.search(r"<= (\S+)", row.kind)
        most = bound[1] if bound else ""
        lines.append(
            f"| {_code(row.name)} | {row.default} | {most} | {row.unit} | {_cell(row.meaning)} |"
        )
    return "\n".join([*lines, ""])


def commands() -> str:
    """Return each command with its arguments and options."""
    parts = []
    for name, command in cli.COMMANDS.items():
        _, parser = cli._parser(name)
        parser.formatter_class = lambda prog: argparse.HelpFormatter(prog, width=96)
        usage = parser.format_usage().replace("\n       ", "\n").removeprefix("usage: ").strip()
        text = command.text[0].upper() + command.text[1:]
        lines = [f"## serl {name}", f"{_cell(text)}.", f"```text\n{usage}\n```"]
        options = [each for each in parser._actions if each.dest != "help"]
        if options:
            lines.append("\n".join([_OPTION_HEAD, *map(_option, options), ""]))
        if command.settings:
            which = _SETTINGS_OF[command.settings]
            lines.append(f"Also takes [{which}](settings.md#{_ANCHOR[command.settings]}).")
        parts.append("\n\n".join(lines))
    return "\n\n".join(parts)


_OPTION_HEAD = "| argument | value | default | meaning |\n|---|---|---|---|"
_SETTINGS_OF = {
    "run": "the settings of a run, as `--SETTING VALUE`",
    "teleop": "the settings `--teleop.*` of a run",
    "reward": "the settings `--reward.*` of a run",
    "classifier": "the settings of a classifier, as `--SETTING VALUE`",
    "pretraining": "the settings of pretraining, as `--SETTING VALUE`",
    "progress": "the settings of a time-to-go model, as `--SETTING VALUE`",
}
_ANCHOR = {
    "run": "settings-of-a-run",
    "teleop": "teleop",
    "reward": "reward",
    "classifier": "training-of-a-classifier",
    "pretraining": "pretraining-of-an-encoder",
    "progress": "training-of-a-time-to-go-model",
}


def _option(action: argparse.Action) -> str:
    """Return the row of an argument or option."""
    names = ", ".join(_code(each) for each in action.option_strings)
    shown = action.metavar if isinstance(action.metavar, str) else action.dest.upper()
    if not names:
        names, value = _code(action.metavar or action.dest), "positional"
    elif action.nargs == 0:
        value = "flag"
    elif action.choices:
        value = ", ".join(_code(str(each)) for each in action.choices)
    else:
        value = _code(f"[{shown}]" if action.nargs == "?" else shown)
    hidden = action.default in (None, False, argparse.SUPPRESS, [], ())
    default = "" if hidden else _code(str(action.default))
    text = (action.help or "").replace("%(default)s", str(action.default)).replace("%%", "%")
    return f"| {names} | {value} | {default} | {_cell(text)} |"


class TopicRow(NamedTuple):
    """A topic: name, message type, quality of service and meaning."""

    name: str
    kind: str
    qos: str
    meaning: str


def topic_rows() -> Iterator[TopicRow]:
    """Yield the topics of a run, by the constants and functions that define them; needs rclpy."""
    for path in sorted((ROOT / "serl/ros").rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        place = path.relative_to(ROOT).with_suffix("")
        if "testing" in place.parts:
            continue
        for node, after in zip(tree.body, [*tree.body[1:], None], strict=True):
            found = _topics_of(node, after)
            if found is None:
                continue
            module = importlib.import_module(".".join(place.parts))
            for topic in _made(getattr(module, found[0])):
                kind = f"{topic.kind.__module__.split('.')[0]}/{topic.kind.__name__}"
                meaning = re.sub(r"^Return the (topic of )?", "", found[1].split("\n\n")[0])
                meaning = meaning[:1].upper() + meaning[1:]
                yield TopicRow(topic.name, kind, _qos(topic.qos), meaning)


def _topics_of(node: ast.stmt, after: ast.stmt | None) -> tuple[str, str] | None:
    """Return the name and the docstring of a public topic, or of a function that returns one."""
    if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
        call, (target,) = node.value.func, node.targets
        named = isinstance(target, ast.Name) and not target.id.startswith("_")
        if named and isinstance(call, ast.Name) and call.id == "Topic":
            text = after.value.value if _is_text(after) else ""
            return target.id, text
    if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
        parameters = [each.arg for each in node.args.args]
        returns = ast.unparse(node.returns) if node.returns else ""
        simple = parameters in (
            *(["actor"], ["actor", "side"]),
            *(["robot", "qos"], ["robot", "body", "qos"]),
        )
        views = parameters[:2] == ["robot", "camera"]
        if returns == "Topic" and (simple or views):
            return node.name, ast.get_docstring(node) or ""
    return None


def _is_text(node: Any) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _made(of: Any) -> list[Any]:
    """Return the topic, or what its function returns for names in angle brackets."""
    if not callable(of) or isinstance(of, tuple):
        return [of]
    names = {"actor": "ACTOR", "robot": "ROBOT", "camera": "CAMERA", "body": "BODY"}
    arguments = of.__code__.co_varnames[: of.__code__.co_argcount]
    return [of(*(names[each] for each in arguments if each in names))]


def _qos(qos: Any) -> str:
    """Return a quality of service in words."""
    if isinstance(qos, int):
        return f"reliable, depth {qos}"
    words = [qos.reliability.name.lower().replace("_", " "), f"depth {qos.depth}"]
    if qos.durability.name == "TRANSIENT_LOCAL":
        words.append("transient local")
    return ", ".join(words)


def topics() -> str:
    """Return the table of topics."""
    lines = ["| topic | type | quality of service | meaning |", "|---|---|---|---|"]
    lines += [
        f"| {_code(row.name)} | {row.kind} | {row.qos} | {_cell(row.meaning)} |"
        for row in topic_rows()
    ]
    return "\n".join([*lines, ""])


def metrics() -> str:
    """Return the fields of each row of metrics."""
    parts = []
    for row in (EpisodeRow, UpdateRow, EvaluationRow, EventRow, RequestRow, ResumeRow):
        texts = settings.attributes(row)
        lines = [f"### {row.kind}", "", "| field | meaning |", "|---|---|"]
        lines += [f"| {_code(each.name)} | {_cell(texts[each.name])} |" for each in fields(row)]
        parts.append("\n".join([*lines, ""]))
    return "\n".join(parts)


def _of_model(model: type[BaseModel]) -> Callable[[], str]:
    return lambda: _table(rows(model))


TABLES: dict[str, Callable[[], str]] = {
    "commands": commands,
    "run_settings": run_settings,
    "plugin_settings": plugin_settings,
    "task_settings": task_settings,
    "limits": limits,
    "topics": topics,
    "metrics": metrics,
    "classifier": _of_model(ClassifierConfig),
    "pretraining": _of_model(PretrainingConfig),
    "progress": _of_model(TimeToGoConfig),
    "guard": _of_model(GuardConfig),
    "arm_profile": _of_model(ArmProfile),
    "workspace": _of_model(Workspace),
    "graph": _of_model(GraphConfig),
    "graph_robot": _of_model(RobotEntry),
    "graph_console": _of_model(ConsoleEntry),
    "sweep": _of_model(SweepConfig),
}
"""The tables by the names that pages give them."""
