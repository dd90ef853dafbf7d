"""`serl demos`: import demonstrations, or undo the newest one of a recording."""

from __future__ import annotations

import argparse
from datetime import datetime
from pathlib import Path

from serl.cli.subcommands import group
from serl.errors import BadInput
from serl.runs.config import parse_overrides, resolve
from serl.system.settings_file import checked, read_yaml

DONE = 0


def add_commands(parser: argparse.ArgumentParser) -> None:
    """Add the commands of `serl demos`."""
    command = group(parser)
    bring = command(
        "import",
        _import,
        "make a recording of a .pkl of SERL or HIL-SERL",
        True,
        "whole episodes until now are kept",
    )
    bring.add_argument("file", type=Path, help="a pickled list of transitions")
    bring.add_argument("--task", required=True, help="name of a task or path of a .py file")
    bring.add_argument("--map", type=Path, help="YAML: what of the file is what of the task")
    bring.add_argument("--out", type=Path, help="folder of the recording")
    undo = command("undo", _undo, "put the newest demonstration of a recording aside")
    undo.add_argument("folder", type=Path, help="what `serl record` wrote for a person")


def _import(options: argparse.Namespace) -> int:
    from serl.datasets.serl_import import ImportMap, import_runs, read_transitions, runs
    from serl.runs.task_setup import make_spec, make_task

    config = resolve({"task": options.task}, parse_overrides(options.overrides))
    task = make_task(config)
    stamp = datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
    folder = options.out or Path("runs") / task.name / f"imported_{stamp}"
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise BadInput(f"{folder}: holds something already; give another --out")
    asked = checked(ImportMap, read_yaml(options.map) if options.map else {})
    found = list(runs(read_transitions(options.file)))
    origin = f"imported from {options.file.name}"
    made = import_runs(found, make_spec(task), asked, folder, origin, config.log)
    print(
        f"{made.successes} demonstrations in {folder}; apart: {made.failures} episodes without "
        f"success; {made.steps} steps"
    )
    if made.time_limits:
        print(f"{made.time_limits} ends without a reward are taken for the time limit")
    print("actions are taken as they are: see that their scale and frame are those of the task:")
    print(f"  {task.config.motion.meaning}, axes {task.config.action_spec.unit}")
    return DONE


def _undo(options: argparse.Namespace) -> int:
    from serl.datasets.person import ACTOR
    from serl.datasets.recording_session import Recording, read_session
    from serl.runs.folder import RunFolder

    if read_session(options.folder) is None:
        raise BadInput(f"{options.folder}: expected what `serl record` wrote for a person")
    run = RunFolder.open(options.folder).writable()
    print(Recording(run.path, run.episodes(ACTOR)).undo())
    return DONE
