"""`serl bench hard`: learners over the hard set's tasks and seeds, and a table of their results."""

from __future__ import annotations

import argparse
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from pydantic import Field, TypeAdapter, ValidationError
from rich.console import Console
from rich.table import Table

from serl.cli.arguments import WIDTH, integer
from serl.cli.sweep import train_all
from serl.errors import BadInput
from serl.log.metrics import read_metrics
from serl.report.aggregates import Group, SeedResults, Values, estimate
from serl.report.comparison import METRICS
from serl.report.curves import assistance, series
from serl.report.display import Display
from serl.report.outcomes import read_outcomes
from serl.runs.config import TrainConfig, parse_overrides
from serl.runs.folder import RunFolder
from serl.runs.hard_set import ROW_NAMES, ROWS, SEEDS, TASKS, HardSet, RowName
from serl.runs.trials import evaluate_expert
from serl.system.files import make_folder, read_bounded, write_atomic
from serl.types import FrozenModel

_MAX_BYTES = 1 << 16


class ExpertResult(FrozenModel):
    """The stored result of an expert's trials, with the settings that affect it."""

    successes: int = Field(ge=0)
    trials: int = Field(ge=1)
    cycle_s: float | None = Field(None, ge=0)
    task_config: dict[str, Any]


class CellResult(NamedTuple):
    """The result of one seed of a row in a task; NaN where a number does not exist."""

    successes: int
    trials: int
    cycle_s: float = math.nan
    robot_min: float = math.nan
    human_s: float = math.nan
    takeovers: float = math.nan


def bench_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `serl bench`."""
    parser.add_argument("set", choices=["hard"], help="set of tasks")
    parser.add_argument(
        "--tasks", nargs="+", metavar="TASK", default=[*TASKS], help=f"some of {', '.join(TASKS)}"
    )
    parser.add_argument(
        "--rows",
        nargs="+",
        metavar="ROW",
        default=[*ROW_NAMES],
        help="; ".join(
            ("expert: the scripted expert", *(f"{row}: {ROWS[row].text}" for row in ROWS))
        ),
    )
    parser.add_argument(
        "--seeds", nargs="+", type=integer(0), metavar="SEED", default=[*SEEDS], help="seeds to run"
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("bench/hard"),
        metavar="FOLDER",
        help="folder of the results",
    )
    parser.add_argument(
        "--jobs", type=integer(1), default=1, metavar="N", help="number of concurrent trainings"
    )


def bench(options: argparse.Namespace) -> int:
    """Run the unfinished runs of all rows, tasks and seeds, and print a table.

    Raises:
        BadInput: a name or a setting is invalid, or a folder has other settings.
    """
    rows = _rows(options.rows)
    overrides = parse_overrides(options.overrides)
    hard = HardSet(options.out.resolve(), options.tasks, options.seeds, overrides)
    hard.check(rows)
    if "expert" in rows:
        _try_experts(hard)
    failed = 0
    for names in ([row for row in ROWS if row != "hg_dagger"], ["hg_dagger"]):
        every = itertools.product(hard.seeds, hard.tasks, [row for row in names if row in rows])
        runs = [hard.run(row, task, seed) for seed, task, row in every]
        if chosen := [run for run in runs if run is not None]:
            failed += train_all(chosen, options.jobs)
    console = Console(highlight=False, emoji=False, markup=False)
    if not console.is_terminal:
        console.width = WIDTH
    every_cell = itertools.product(hard.tasks, rows)
    print_table(console, {(task, row): [*_results(hard, row, task)] for task, row in every_cell})
    return 1 if failed else 0


def _rows(names: Sequence[str]) -> list[RowName]:
    """Return the names of rows in the order of the table."""
    for name in names:
        if name not in ROW_NAMES:
            raise BadInput(f"--rows: {name!r} is none of {', '.join(ROW_NAMES)}")
    if "hg_dagger" in names and "rl_human" not in names:
        raise BadInput("--rows: hg_dagger has as many takeovers as rl_human: expected both")
    return [row for row in ROW_NAMES if row in names]


def _try_experts(hard: HardSet) -> None:
    """Run the final trials of each task's expert that have no stored result, and store theirs."""
    for seed in hard.seeds:
        for task in hard.tasks:
            config, path = hard.expert(task, seed)
            if _read_expert(config, path):
                continue
            text = f"trials of the expert of {task}, seed {seed}"
            with Display().counting(text, config.trials) as on_trial:
                found = evaluate_expert(config, on_trial)
            print(f"expert/{path.stem}: {found.summary()}", flush=True)
            make_folder(path.parent)
            result = ExpertResult(
                successes=found.successes,
                trials=len(found.trials),
                cycle_s=found.cycle_time_s,
                task_config=config.task_config,
            )
            write_atomic(path, result.model_dump_json().encode())


def _read_expert(config: TrainConfig, path: Path) -> ExpertResult | None:
    """Return the stored result of an expert under these settings, or None without one.

    Raises:
        BadInput: it was stored under other settings, or is damaged.
    """
    if not path.is_file():
        return None
    try:
        found = ExpertResult.model_validate_json(read_bounded(path, _MAX_BYTES))
    except ValidationError as error:
        raise BadInput(f"{path}: {error.errors()[0]['msg']}; remove it to try again") from None
    given = TypeAdapter(dict[str, Any]).dump_python(config.task_config, mode="json")
    if (found.task_config, found.trials) != (given, config.trials):
        raise BadInput(f"{path}: was made with other settings; give another --out")
    return found


def _results(hard: HardSet, row: RowName, task: str) -> Iterator[CellResult]:
    """Yield the result of each finished seed of a row in a task."""
    for seed in hard.seeds:
        if row == "expert":
            if found := _read_expert(*hard.expert(task, seed)):
                cycle_s = math.nan if found.cycle_s is None else found.cycle_s
                yield CellResult(found.successes, found.trials, cycle_s)
        elif (run := hard.run(row, task, seed)) and run.is_finished():
            yield _trained(run.path)


def _trained(path: Path) -> CellResult:
    """Return the result of a finished run."""
    (outcome,) = read_outcomes(path)
    metrics = read_metrics(RunFolder.open(path, data_only=True).metrics)
    played = [each for each in metrics if each["kind"] == "episode"]
    return CellResult(
        outcome.successes,
        outcome.trials,
        outcome.cycle_s,
        float(series(played, "duration_s").sum()) / 60.0,
        outcome.human_s,
        assistance(metrics).takeovers,
    )


def print_table(console: Console, found: Mapping[tuple[str, str], Sequence[CellResult]]) -> None:
    """Print the results of the finished runs by task and row, and the means over tasks."""
    table = Table(box=None, pad_edge=False)
    for head in ("task", "row", "seeds", "success\n(95 % interval)", *_OTHERS):
        table.add_column(head, overflow="fold")
    for (task, row), seeds in found.items():
        table.add_row(task, row, *_cells([seeds]))
    tasks, rows = (dict.fromkeys(names) for names in zip(*found, strict=True))
    if len(tasks) > 1:
        for row in rows:
            table.add_row("all", row, *_cells([found[task, row] for task in tasks]))
    console.print(table)
    console.print("intervals: by seed, then by trial; all: the mean over tasks", soft_wrap=True)


_OTHERS: Mapping[str, str] = {
    "cycle\ns": "cycle_s",
    "robot\nmin": "robot_min",
    "human\ns": "human_s",
    "takeovers": "takeovers",
}
"""Columns of means over seeds, and the field of `CellResult` that each shows."""


def _cells(tasks: Sequence[Sequence[CellResult]]) -> list[str]:
    """Return the cells of a line of the table, for the results of one row in some tasks."""
    group = [
        SeedResults.of(
            [each.successes / each.trials for each in seeds], [each.trials for each in seeds]
        )
        for seeds in tasks
    ]
    success = METRICS["success"].text(estimate(_mean, group))
    shown = []
    for name in _OTHERS.values():
        means = [np.mean([getattr(each, name) for each in seeds]) for seeds in tasks if seeds]
        value = float(np.mean(means)) if len(means) == len(tasks) else math.nan
        shown.append(f"{value:.1f}" if math.isfinite(value) else "-")
    counts = "-".join(str(count) for count in sorted({len(seeds) for seeds in tasks}))
    return [counts, success, *shown]


def _mean(group: Group) -> Values:
    """Return the mean over tasks of the mean over seeds."""
    means: Values = np.stack([sample.values.mean(-1) for sample in group]).mean(0)
    return means
