"""Generator of docs/tasks.md: expert success, simulation speed and training results.

    python tests/bench/bench_tasks.py [TASK ...] [--docs docs] [--trials 100]
    python tests/bench/bench_tasks.py --random-steps 100000 --docs docs
    python tests/bench/bench_tasks.py --runs runs --docs docs

Exit code 1 if random steps caused a fault, 2 for wrong input.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from serl import plugins
from serl.errors import BadInput
from tests.bench import task_bench, task_page
from tests.bench.task_bench import TaskRecord

DONE, FAILED, BAD_INPUT = 0, 1, 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure tasks, or collect the results of trainings, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("task", nargs="*", help="names of tasks; default: all")
    parser.add_argument("--trials", type=int, default=100, help="trials of each expert")
    parser.add_argument("--docs", type=Path, help="folder of the numbers, the page and pictures")
    parser.add_argument(
        "--runs", type=Path, help="collect the results of the finished trainings in this folder"
    )
    parser.add_argument(
        "--random-steps", type=int, help="make this number of random steps and count faults"
    )
    parser.add_argument("--commit", help="commit of runs that have not recorded theirs")
    try:
        return _tasks(parser.parse_args(arguments))
    except BadInput as error:
        print(f"bench_tasks: {error}", file=sys.stderr)
        return BAD_INPUT


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
    measured = list(task_bench.find_tasks(options.task or plugins.names("task")))
    _known(options)  # a damaged file is reported before anything is measured
    pictures = {}
    print("\n".join(task_page.table({}, ())))
    for task in measured:
        record, picture = task_bench.measure(task, options.trials)
        records = _known(options)
        before = records.get(task.name, TaskRecord())
        kept = {name: getattr(before, name) for name in ("walk", "trainings", "cloned", "reason")}
        records[task.name] = record.model_copy(update=kept)
        pictures[task.name] = picture
        print(task_page.row(task.name, records), flush=True)
        if options.docs:  # after each: an interruption costs one task
            task_page.write_page(options.docs, records, task_bench.summaries(), pictures)
    return DONE


def _wander(options: argparse.Namespace) -> int:
    """Make random steps; return exit code 1 if there were faults."""
    tasks = list(task_bench.find_tasks(options.task or plugins.names("task")))
    _known(options)  # a damaged file is reported before anything is measured
    faults = 0
    for task in tasks:
        walk = task_bench.wander(task, options.random_steps)
        faults += walk.faults
        records = _known(options)
        before = records.get(task.name, TaskRecord())
        records[task.name] = before.model_copy(update={"walk": walk})
        print(f"{task.name}: {task_page.walked(walk)}", flush=True)
        if options.docs:  # after each: an interruption costs one task
            task_page.write_page(options.docs, records, task_bench.summaries(), {})
    return FAILED if faults else DONE


def _collect(options: argparse.Namespace) -> int:
    """Collect the results of finished trainings."""
    wanted = {task.name for task in task_bench.find_tasks(options.task)}
    paths = task_page.find_runs(options.runs)
    _known(options)  # a damaged file is reported before anything is read
    trainings, curves = [], {}
    for shown in task_page.shown_by(paths, print, options.commit or task_page.UNKNOWN_COMMIT):
        if wanted and shown.task not in wanted:
            continue
        training, curves[shown.training.curve] = shown.training, shown.curve
        trainings.append((shown.task, training))
        print(f"{shown.task}: {training.command}: {task_page.told(training)}")
    if not curves:
        raise BadInput(f"--runs {options.runs}: no finished training of what was asked for")
    if options.docs:
        records = _known(options)
        for name, training in trainings:
            before = records.get(name, TaskRecord())
            records[name] = before.with_training(training)
        task_page.write_page(options.docs, records, task_bench.summaries(), {}, curves)
    return DONE


def _known(options: argparse.Namespace) -> dict[str, TaskRecord]:
    """Load the stored records, which another command may update while this one measures."""
    return task_bench.load_records(options.docs) if options.docs else {}


if __name__ == "__main__":
    sys.exit(main())
