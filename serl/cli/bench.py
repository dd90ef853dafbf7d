"""`serl bench`: run the benchmark suite."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from serl import plugins
from serl.cli.subcommands import group
from serl.errors import BadInput

if TYPE_CHECKING:
    from serl.report.task_bench import TaskRecord

DONE, FAILED = 0, 1


def add_commands(parser: argparse.ArgumentParser) -> None:
    """Add the commands of `serl bench`."""
    text = "what experts of tasks achieve, how fast they run, and what training has shown"
    kept = "what was measured is kept where --docs says"
    tasks = group(parser)("tasks", _tasks, text, kept=kept)
    tasks.add_argument("task", nargs="*", help="names of tasks; all if none is named")
    tasks.add_argument("--trials", type=int, default=100, help="of each expert")
    tasks.add_argument(
        "--docs", type=Path, metavar="FOLDER", help="keep the numbers, the table and pictures there"
    )
    tasks.add_argument(
        "--runs",
        type=Path,
        metavar="FOLDER",
        help="take what finished trainings there have shown, and measure nothing",
    )
    tasks.add_argument(
        "--random-steps",
        type=int,
        metavar="N",
        help="make so many random steps in each, count what breaks, and measure nothing else",
    )
    tasks.add_argument("--commit", help="of runs that do not say with which they were made")


def _tasks(options: argparse.Namespace) -> int:
    if options.trials < 1:
        raise BadInput(f"--trials: expected at least 1, got {options.trials}")
    if options.docs is not None and not options.docs.is_dir():
        raise BadInput(f"--docs {options.docs}: no such folder")
    if options.commit is not None and options.runs is None:
        raise BadInput("--commit: says with which code --runs were made, and there are none")
    if options.random_steps is not None and options.random_steps < 1:
        raise BadInput(f"--random-steps: expected at least 1, got {options.random_steps}")
    if options.random_steps is not None and options.runs is not None:
        raise BadInput("--runs: takes what was shown and measures nothing: no --random-steps")
    if options.random_steps is not None:
        return _wander(options)
    return _measure(options) if options.runs is None else _collect(options)


def _measure(options: argparse.Namespace) -> int:
    """Run the experts' trials and measure speeds."""
    from serl.report import task_bench, task_page

    measured = list(task_bench.find_tasks(options.task or plugins.names("task")))
    _known(options)  # a damaged file is reported before anything is measured
    pictures = {}
    print("\n".join(task_page.table({}, ())))  # noqa: T201
    for task in measured:
        record, picture = task_bench.measure(task, options.trials)
        records = _known(options)
        before = records.get(task.name, task_bench.TaskRecord())
        kept = {name: getattr(before, name) for name in ("walk", "trainings", "reason")}
        records[task.name] = record.model_copy(update=kept)
        pictures[task.name] = picture
        print(task_page.row(task.name, records), flush=True)  # noqa: T201
        if options.docs:  # after each: an interruption costs one task
            task_page.write_page(options.docs, records, task_bench.summaries(), pictures)
    return DONE


def _wander(options: argparse.Namespace) -> int:
    """Make random steps; return exit code 1 if there were faults."""
    from serl.report import task_bench, task_page

    tasks = list(task_bench.find_tasks(options.task or plugins.names("task")))
    _known(options)  # a damaged file is reported before anything is measured
    faults = 0
    for task in tasks:
        walk = task_bench.wander(task, options.random_steps)
        faults += walk.faults
        records = _known(options)
        before = records.get(task.name, task_bench.TaskRecord())
        records[task.name] = before.model_copy(update={"walk": walk})
        print(f"{task.name}: {task_page.walked(walk)}", flush=True)  # noqa: T201
        if options.docs:  # after each: an interruption costs one task
            task_page.write_page(options.docs, records, task_bench.summaries(), {})
    return FAILED if faults else DONE


def _collect(options: argparse.Namespace) -> int:
    """Collect the results of finished trainings."""
    from serl.report import task_bench, task_page

    wanted = {task.name for task in task_bench.find_tasks(options.task)}
    paths = task_page.find_runs(options.runs)
    _known(options)  # a damaged file is reported before anything is read
    trainings, curves = [], {}
    for shown in task_page.shown_by(paths, print, options.commit or task_page.UNKNOWN_COMMIT):
        if wanted and shown.task not in wanted:
            continue
        training, curves[shown.training.curve] = shown.training, shown.curve
        trainings.append((shown.task, training))
        print(f"{shown.task}: {training.command}: {task_page.told(training)}")  # noqa: T201
    if not curves:
        raise BadInput(f"--runs {options.runs}: no finished training of what was asked for")
    if options.docs:
        records = _known(options)
        for name, training in trainings:
            before = records.get(name, task_bench.TaskRecord())
            records[name] = before.with_training(training)
        task_page.write_page(options.docs, records, task_bench.summaries(), {}, curves)
    return DONE


def _known(options: argparse.Namespace) -> dict[str, TaskRecord]:
    """Load the stored records, which another command may update while this one measures."""
    from serl.report import task_bench

    return task_bench.load_records(options.docs) if options.docs else {}
