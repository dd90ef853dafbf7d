"""`serl bench`: measure what there is."""

from __future__ import annotations

import argparse
from pathlib import Path

from serl import plugins
from serl.command_group import group
from serl.errors import BadInput

DONE = 0


def add_commands(parser: argparse.ArgumentParser) -> None:
    """Give `serl bench` its commands."""
    text = "what experts of tasks achieve, how fast they run, and what training has shown"
    tasks = group(parser)("tasks", _tasks, text)
    tasks.add_argument("task", nargs="*", help="names of tasks; all if none is named")
    tasks.add_argument("--trials", type=int, default=100, help="of each expert")
    tasks.add_argument(
        "--docs", type=Path, metavar="FOLDER", help="keep the numbers, the table and pictures there"
    )


def _tasks(options: argparse.Namespace) -> int:
    from serl import task_bench

    if options.trials < 1:
        raise BadInput(f"--trials: expected at least 1, got {options.trials}")
    if options.docs is not None and not options.docs.is_dir():
        raise BadInput(f"--docs {options.docs}: no such folder")
    measured = list(task_bench.find_tasks(options.task or plugins.names("task")))
    records = task_bench.load_records(options.docs) if options.docs else {}
    pictures = {}
    print("\n".join(task_bench.table({}, ())))  # noqa: T201
    for task in measured:
        record, picture = task_bench.measure(task, options.trials)
        before = records.get(task.name, task_bench.TaskRecord())
        records[task.name] = record.model_copy(update={"training": before.training})
        pictures[task.name] = picture
        print(task_bench.row(task.name, records), flush=True)  # noqa: T201
        if options.docs:  # after each: an interruption costs one task
            summaries = {
                each.name: (type(each).__doc__ or "").strip().splitlines()[0]
                for each in task_bench.find_tasks(plugins.names("task"))
            }
            task_bench.write_page(options.docs, records, summaries, pictures)
    return DONE
