"""`serl demos`: import demonstrations, or undo the newest one of a recording."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

from serl.cli.arguments import stamped_folder
from serl.cli.export import format_module, writing
from serl.errors import BadInput, counted
from serl.report.display import Display
from serl.runs.config import parse_overrides, resolve
from serl.specs import Spec
from serl.system.settings_file import checked, read_yaml
from serl.task import EnvironmentTask, SimulatedTask


def import_file_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `serl demos import`."""
    parser.add_argument(
        "file",
        type=Path,
        metavar="PATH",
        help=".pkl file of SERL or HIL-SERL, .hdf5 or .h5 file of robomimic, or folder of a "
        "LeRobotDataset or a Minari data set",
    )
    parser.add_argument(
        "--task", required=True, help="name of a task, or path of a .py or .yaml file with one"
    )
    parser.add_argument(
        "--map", type=Path, metavar="FILE", help="YAML file: names in the data to names in the task"
    )
    parser.add_argument(
        "--sentence",
        metavar="TEXT",
        help="task of the episodes to import from a LeRobotDataset of several tasks",
    )
    parser.add_argument(
        "--out", type=Path, metavar="FOLDER", help="folder to write, else runs/TASK/imported_..."
    )


def import_file(options: argparse.Namespace) -> int:
    """Convert demonstrations of another program to a recording."""
    from serl.datasets.serl_import import ImportMap
    from serl.runs.demonstrations import specs_of
    from serl.runs.task_setup import make_task

    config = resolve({"task": options.task}, parse_overrides(options.overrides))
    task = make_task(config)
    spec, wider = specs_of(config)
    folder = options.out or stamped_folder(task.name, "imported")
    mapping = checked(ImportMap, read_yaml(options.map) if options.map else {})
    origin = f"imported from {options.file.resolve().name}"
    name, numbers = _format_of(options.file), count(1)
    if options.sentence is not None and name != "lerobot":
        raise BadInput(f"demos: --sentence selects episodes of a LeRobotDataset, got {name}")
    with writing(folder) as (scratch, check), Display().working(f"reading {options.file}") as show:
        if name == "pickle":
            found, write = _read_pickle(options.file)
        else:
            given = () if options.sentence is None else (options.sentence,)
            data = format_module(name).read(options.file, *given)
            own = data.origin.spec
            if own and own.observation.state.keys() == wider.observation.state.keys():
                spec = wider  # a recording that defines the task
            found, write = _checked(data, options.file, task, spec, mapping, origin)

        def advance() -> None:
            show(f"importing {options.file}: episode {next(numbers)} done")
            check()

        made = write(found, spec, mapping, scratch, origin, config.log, advance)
    print(
        f"{counted(made.successes, 'demonstration')} in {folder}; stored separately: "
        f"{counted(made.failures, 'episode')} "
        f"without success; {made.steps} steps in all"
    )
    if limits := getattr(made, "time_limits", 0):
        number = counted(limits, "episode")
        print(f"imported as ended by the time limit, without a final reward: {number}")
    if name != "pickle" and (warning := found.origin.unnamed_actions(mapping)):
        print(warning)
    print("check that scale and frame of the actions are those of the task:")
    print(f"  {task.config.action_meaning}, axes {task.config.action_spec.unit}")
    return 0


def _format_of(path: Path) -> str:
    """Return the format of a file or folder, from its name and content."""
    if path.suffix == ".pkl":
        return "pickle"
    if path.suffix in (".hdf5", ".h5"):
        return "robomimic"
    if not path.is_dir():
        found = "a file" if path.exists() else "nothing"
        raise BadInput(f"{path}: expected a .pkl, .hdf5 or .h5 file or a folder, found {found}")
    if (path / "meta/info.json").exists():
        return "lerobot"
    if (path / "metadata.json").exists() or next(path.rglob("data/metadata.json"), None):
        return "minari"
    if any(path.glob("*.hdf5")) or any(path.glob("*.h5")):
        return "robomimic"
    raise BadInput(f"{path}: expected a LeRobotDataset, a Minari data set or a file of robomimic")


def _read_pickle(path: Path) -> tuple[Any, Callable[..., Any]]:
    """Return the episodes of a pickled list of transitions, and the function that writes them."""
    from serl.datasets.serl_import import import_runs, read_transitions, runs

    return list(runs(read_transitions(path))), import_runs


def _checked(
    data: Any, path: Path, task: SimulatedTask, spec: Spec, mapping: Any, origin: str
) -> tuple[Any, Callable[..., Any]]:
    """Return a data set that fits a task, and the function that writes it.

    A task of an environment judges data of other programs.
    """
    from serl.datasets.exchange import checked_dataset, judged_by, write_recording

    data = checked_dataset(data, spec, mapping, path)
    if data.origin.spec is None and isinstance(task, EnvironmentTask):
        data = judged_by(task, data, origin)
    return data, write_recording


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

    session = read_session(options.folder)
    if session is None or session.purpose != "demonstrations":
        raise BadInput(f"{options.folder}: expected a recording of a person by `serl record`")
    run = RunFolder.open(options.folder, data_only=True).writable()
    print(Recording(run.path, run.episodes(ACTOR)).undo())
    return 0
