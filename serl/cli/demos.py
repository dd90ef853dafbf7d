"""`serl demos`: import demonstrations, or undo the newest one of a recording."""

from __future__ import annotations

import argparse
from datetime import datetime
from pathlib import Path

from serl.errors import BadInput
from serl.runs.config import parse_overrides, resolve
from serl.system.settings_file import checked, read_yaml

DONE = 0


def import_file_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `serl demos import`."""
    parser.add_argument("file", type=Path, help="a pickled list of transitions")
    parser.add_argument("--task", required=True, help="name of a task or path of a .py file")
    parser.add_argument("--map", type=Path, help="YAML: names of the file to names of the task")
    parser.add_argument("--out", type=Path, help="folder of the recording")


def import_file(options: argparse.Namespace) -> int:
    """Convert demonstrations of SERL to a recording."""
    from serl.datasets.serl_import import ImportMap, import_runs, read_transitions, runs
    from serl.runs.task_setup import make_spec, make_task

    config = resolve({"task": options.task}, parse_overrides(options.overrides))
    task = make_task(config)
    stamp = datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
    folder = options.out or Path("runs") / task.name / f"imported_{stamp}"
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise BadInput(f"{folder}: holds something already; give another --out")
    mapping = checked(ImportMap, read_yaml(options.map) if options.map else {})
    found = list(runs(read_transitions(options.file)))
    origin = f"imported from {options.file.name}"
    made = import_runs(found, make_spec(task), mapping, folder, origin, config.log)
    print(
        f"{made.successes} demonstrations in {folder}; apart: {made.failures} episodes without "
        f"success; {made.steps} steps"
    )
    if made.time_limits:
        print(f"{made.time_limits} ends without a reward are taken for the time limit")
    print("actions are taken as they are: see that their scale and frame are those of the task:")
    print(f"  {task.config.motion.meaning}, axes {task.config.action_spec.unit}")
    return DONE


def undo_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `serl demos undo`."""
    parser.add_argument("folder", type=Path, help="a recording by a person, from `serl record`")


def undo(options: argparse.Namespace) -> int:
    """Move the newest demonstration of a recording to a separate folder."""
    from serl.datasets.person import ACTOR
    from serl.datasets.recording_session import Recording, read_session
    from serl.runs.folder import RunFolder

    if read_session(options.folder) is None:
        raise BadInput(f"{options.folder}: expected a recording of a person by `serl record`")
    run = RunFolder.open(options.folder).writable()
    print(Recording(run.path, run.episodes(ACTOR)).undo())
    return DONE
