"""The data of a run's report, read from its folder."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from serl.errors import BadInput, SerlError
from serl.log.metrics import FILE, MetricsRow, read_metrics
from serl.report.curves import Assistance, assistance, number
from serl.runs.demonstrations import mean_duration_s
from serl.system.settings_file import parse_yaml
from serl.system.video import VIDEO_TYPES


@dataclass(frozen=True, eq=False)
class RunData:
    """The data of a run's report; `demonstrated_s` is NaN without demonstrations.

    Attributes:
        early_end: how the last final trials ended, if they ended early; empty otherwise.
    """

    name: str
    task: str
    config: str
    videos: tuple[Path, ...]
    demonstrated_s: float
    help: Assistance
    episodes: list[MetricsRow]
    updates: list[MetricsRow]
    selections: list[MetricsRow]
    finals: list[MetricsRow]
    early_end: str
    lasts: list[MetricsRow]
    clones: list[MetricsRow]
    events: list[MetricsRow]


def read_run(run_path: Path) -> RunData:
    """Read the data of a run's report; raise as `report.write_report` does."""
    config = run_path / "config.yaml"
    if not config.is_file() and not (run_path / FILE).is_file():
        raise BadInput(f"{run_path} is not a run folder: expected config.yaml or {FILE} in it")
    rows = read_metrics(run_path / FILE)
    text = config.read_text(errors="replace") if config.is_file() else ""
    run_path, settings = run_path.resolve(), _settings(text)
    return RunData(
        name=run_path.name,
        task=_task(settings) or run_path.parent.name,
        config=text,
        videos=videos(run_path),
        demonstrated_s=_demonstrated_s(run_path, settings),
        help=assistance(rows),
        episodes=_of_kind(rows, "episode"),
        updates=_of_kind(rows, "update"),
        selections=evaluations(rows, "selection"),
        finals=evaluations(rows, "final"),
        early_end=_early_end(rows),
        lasts=evaluations(rows, "last"),
        clones=evaluations(rows, "clone"),
        events=_of_kind(rows, "event"),
    )


def videos(run_path: Path) -> tuple[Path, ...]:
    """Return the films of a run."""
    found = sorted((run_path / "videos").glob("*"))
    return tuple(path for path in found if path.suffix in VIDEO_TYPES)


def _settings(config: str) -> dict[str, Any]:
    """Return the settings in the text of a `config.yaml`; {} if it cannot be parsed."""
    try:
        tree = parse_yaml(config, "config.yaml")
    except BadInput:
        return {}
    settings = tree.get("config", tree) if isinstance(tree, dict) else {}
    return settings if isinstance(settings, dict) else {}


def _task(settings: dict[str, Any]) -> str:
    """Return the task's name; empty when there is none."""
    task = settings.get("task")
    if isinstance(task, dict):
        task = task.get("name")
    return task if isinstance(task, str) else ""


def _demonstrated_s(run_path: Path, settings: dict[str, Any]) -> float:
    """Return the mean task time of the demonstrations, s; NaN if there are none or unreadable."""
    given = settings.get("demo_paths")
    folders = [path for path in given if isinstance(path, str)] if isinstance(given, list) else []
    with suppress(SerlError):
        return mean_duration_s([*map(Path, folders), run_path / "demonstrations"])
    return math.nan


def _of_kind(rows: list[MetricsRow], kind: str) -> list[MetricsRow]:
    return [row for row in rows if row["kind"] == kind]


def _early_end(rows: list[MetricsRow]) -> str:
    finals = [row for row in _of_kind(rows, "evaluation") if row.get("purpose") == "final"]
    return str(finals[-1].get("early_end") or "") if finals else ""


def evaluations(rows: list[MetricsRow], purpose: str) -> list[MetricsRow]:
    """Return the evaluations for a purpose, without rows of impossible counts.

    Of a checkpoint whose trials were repeated, as after a kill, only the last one is returned.
    """
    found: dict[float, MetricsRow] = {}
    for row in _of_kind(rows, "evaluation"):
        possible = 0 <= number(row, "successes") <= number(row, "trials") >= 1
        if row.get("purpose") == purpose and possible:
            found.pop(checkpoint := number(row, "checkpoint"), None)
            found[checkpoint] = row
    return list(found.values())
