"""`serl demos`: import demonstrations, or undo the newest one of a recording."""

from __future__ import annotations

import argparse
from datetime import datetime
from pathlib import Path

from serl.errors import BadInput
from serl.report.display import Display
from serl.runs.config import parse_overrides, resolve
from serl.system.settings_file import checked, read_yaml

DONE = 0


def import_file_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `serl demos import`."""
    parser.add_argument(
        "file", type=Path, metavar="FILE", help="pickled list of transitions (.pkl)"
    )
    parser.add_argument("--task", required=True, help="name of a task, or path of a .py file")
    parser.add_argument(
        "--map", type=Path, metavar="FILE", help="YAML file: names in the .pkl to names in the task"
    )
    parser.add_argument(
        "--out", type=Path, metavar="FOLDER", help="folder to write, else runs/TASK/imported_..."
    )


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
    origin = f"imported from {options.file.name}"
    with Display().working(f"converting {options.file}"):
        found = list(runs(read_transitions(options.file)))
        made = import_runs(found, make_spec(task), mapping, folder, origin, config.log)
    print(
        f"{made.successes} demonstrations in {folder}, {made.steps} steps; stored separately: "
        f"{made.failures} episodes without success"
    )
    if made.time_limits:
        print(f"{made.time_limits} ends without a reward were imported as time limits")
    print("actions were imported unchanged; check that scale and frame are those of the task:")
    print(f"  {task.config.motion.meaning}, axes {task.config.action_spec.unit}")
    return DONE


def undo_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `serl demos undo`."""
    parser.add_argument(
        "folder", type=Path, metavar="FOLDER", help="recording of a person by `serl record`"
    )


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
