"""`serl train` and `serl learner`: run a whole training, or only its learner."""

from __future__ import annotations

import argparse
import sys
from datetime import datetime
from pathlib import Path

from serl.cli import actor as actor_command
from serl.cli import teleop as teleop_commands
from serl.cli.arguments import add_config, add_task, quoted, task_names
from serl.errors import BadInput
from serl.report.display import Display
from serl.runs.config import TrainConfig, parse_overrides
from serl.runs.deployment import trials_command
from serl.runs.folder import CONFIG, RunFolder
from serl.system.settings_file import merge, read_yaml

RUNS = Path("runs")


def _add_run_options(parser: argparse.ArgumentParser) -> None:
    add_config(parser)
    parser.add_argument(
        "--runs", type=Path, metavar="FOLDER", help="folder of all runs (default: runs)"
    )


def train_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `serl train`."""
    add_task(parser, nargs="?")
    _add_run_options(parser)
    parser.add_argument(
        "--resume", type=Path, metavar="RUN", help="continue an interrupted run with its settings"
    )
    teleop_commands.add_page(parser, "serve a web page to watch, take over and stop")


def learner_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `serl learner`."""
    parser.add_argument(
        "task", metavar="TASK|RUN", help="task of a new run, or folder of a run to continue"
    )
    _add_run_options(parser)


def settings(options: argparse.Namespace) -> TrainConfig:
    """Return the settings of a new run: the task's, overridden by a file's and the command line's.

    Raises:
        BadInput: the task or file does not exist, or a setting is invalid.
    """
    file = read_yaml(options.config) if options.config else {}
    if getattr(options, "console", False):
        file = merge({"ros": {"publish_state": True}}, file)
    overrides = parse_overrides(options.overrides)
    if not (options.task or "task" in file or "task" in overrides):
        options.error(f"expected TASK, {task_names()}; or --config FILE, or --resume RUN")
    if options.task and (Path(options.task) / CONFIG).is_file():
        options.error(
            f"{options.task} is a run; "
            f"to continue it: serl train --resume {quoted(Path(options.task))}"
        )
    from serl.runs.settings import run_settings  # imports the agents

    return run_settings(options.task, file, overrides)


def train(options: argparse.Namespace) -> int:
    """Train to the end.

    Raises:
        BadInput: a setting is invalid, or the run cannot be continued.
        SerlError: training stopped; the command to continue has been printed.
    """
    teleop_commands.check_page(options)
    config = None if options.resume else settings(options)
    from serl.cli.training import offering_resume, train_run
    from serl.ros.processes import check_one_arm, require_ros

    if config is None:
        if options.overrides or options.task or options.config or options.runs:
            raise BadInput("--resume RUN takes no task, no settings and no --runs")
        require_ros()
        run = RunFolder.open(options.resume).writable()
    else:
        require_ros()
        check_one_arm(config)
        run = RunFolder.create(options.runs or RUNS, config, datetime.now())
    print(f"run: {run.path}", flush=True)
    with offering_resume(run):
        if not options.console:
            return 0 if train_run(run, Display()) else 1
        with teleop_commands.console_of(run, options.console_port, options.console_host) as console:
            done = train_run(run, Display(), console.check)
            teleop_commands.stay(console)
        return 0 if done else 1


def learner(options: argparse.Namespace) -> int:
    """Run the learner of a new or existing run, and print the command with which actors join.

    Raises:
        BadInput: a setting is invalid, or the run cannot be continued.
        SerlError: the learner failed.
    """
    from serl.cli.training import demonstrate
    from serl.cli.up import attend
    from serl.ros.processes import learner_processes, require_ros, run_processes

    require_ros()
    if (path := Path(options.task)).is_dir():
        if options.overrides or options.config or options.runs:
            raise BadInput(f"{path} is a run with its own settings; give no others, and no --runs")
        run = RunFolder.open(path).writable()
        actor_command.without_stages(run.config)
    else:
        config = actor_command.without_stages(settings(options))
        run = RunFolder.create(options.runs or RUNS, config, datetime.now())
    print(f"run: {run.path}")
    print(f"next, in another terminal: serl actor {quoted(run.path)} --name actor0", flush=True)
    try:
        display = Display()
        demonstrate(run, display)
        with run_processes(run, learner_processes(run)) as supervisor, display:
            attend(run, supervisor, frozenset({"learner"}), dict, display)
    except KeyboardInterrupt:
        print(f"to continue: serl learner {quoted(run.path)}", file=sys.stderr)
        raise
    print(f"the training is done; next: {trials_command(run)}")
    return 0
