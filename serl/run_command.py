"""`serl run`: execute a trained policy, on a simulated arm or a real one, without a learner."""

from __future__ import annotations

import argparse
import os
import select
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from serl import plugins, teleop_commands
from serl.checkpoint import pick
from serl.config import TrainConfig
from serl.deployment import FOLDER, load_fitting, read_tried, summary
from serl.errors import BadInput, SerlError
from serl.robot_command import checked_namespace
from serl.run_folder import RunFolder
from serl.supervisor import Supervisor

ACTOR = "actor0"
_SIM = "sim"
_POLL_S = 0.1


def add_options(parser: argparse.ArgumentParser) -> None:
    """Of the command."""
    parser.add_argument("run", type=Path, metavar="RUN", help="folder of the run that was trained")
    parser.add_argument(
        "--robot",
        metavar="NAME",
        help="sim for the simulated arm behind ROS 2 and its guard, in real time; a profile, or a "
        ".py or .yaml file with one, for a real arm; else a simulation as fast as it goes",
    )
    parser.add_argument(
        "--namespace", default="/", help="of a real arm's topics, such as /left; else the root"
    )
    parser.add_argument("--checkpoint", type=int, help="steps of a checkpoint; else the best")
    parser.add_argument("--episodes", type=int, help="how many; else until Ctrl-C")
    parser.add_argument("--out", type=Path, help=f"folder of its episodes; else RUN/{FOLDER}/...")
    parser.add_argument("--console", action="store_true", help="with a web page beside it")
    parser.add_argument("--console-port", type=int, default=teleop_commands.PORT)


def execute(options: argparse.Namespace) -> int:
    """Run episodes, say what came of each, and at the end how many succeeded.

    Raises:
        BadInput: there is no such run, checkpoint or robot, or the policy was made for others.
        SerlError: a process failed.
    """
    from serl.ros.graph import policy_processes, require_ros, started

    if options.episodes is not None and options.episodes < 1:
        raise BadInput(f"--episodes: expected at least 1, got {options.episodes}")
    checked_namespace(options.namespace)
    require_ros()
    trained = RunFolder.open(options.run)
    if stages := trained.config.stages:
        one = options.run / "stages" / next(iter(stages))
        raise BadInput(f"{options.run} has stages: give the folder of one, such as {one}")
    checkpoint = pick(trained.checkpoints, options.checkpoint).resolve()
    config = _deployed(trained.config, options.robot)
    load_fitting(checkpoint, config)
    run = _folder(trained, config, options.out)
    robot = str(Path(options.robot).resolve()) if _is_file(options.robot) else options.robot or ""
    print(f"deployment: {run.path}\npolicy: checkpoint {int(checkpoint.name):,}", flush=True)  # noqa: T201
    real = robot not in ("", _SIM)
    if real and not os.environ.get("ROS_DOMAIN_ID"):
        os.environ["ROS_DOMAIN_ID"] = "0"  # ROS's own default, which its driver has as well
    arm = options.namespace
    specs = policy_processes(run, ACTOR, robot, arm, checkpoint, options.episodes)
    try:
        with _beside(run, options), started(run, specs) as supervisor:
            if real:
                _follow_beside_a_person(run, supervisor, arm)
            else:
                _follow(run, supervisor, lambda: None)
    finally:
        if tried := read_tried(run.path):
            print(summary(tried), flush=True)  # noqa: T201
    return 0


def _deployed(config: TrainConfig, robot: str | None) -> TrainConfig:
    """The settings of the run, with nobody but people beside the policy.

    Raises:
        BadInput: there is no such robot.
    """
    if robot is not None:
        plugins.load("robot", robot)
    return config.model_copy(
        update={"robot": _SIM if robot == _SIM else None, "intervention": "none", "actors": 1}
    )


def _folder(trained: RunFolder, config: TrainConfig, out: Path | None) -> RunFolder:
    now = datetime.now()
    if out is None:
        return RunFolder.make(trained.path / FOLDER, now.strftime("%Y-%m-%d_%H-%M-%S"), config, now)
    if out.exists():
        raise BadInput(f"--out {out}: is there already; give the name of a new folder")
    return RunFolder.make(out.resolve().parent, out.name, config, now)


def _is_file(robot: str | None) -> bool:
    return robot is not None and robot.endswith((".py", ".yaml"))


@contextmanager
def _beside(run: RunFolder, options: argparse.Namespace) -> Iterator[None]:
    """The console, where it is asked for."""
    if not options.console:
        yield
        return
    with teleop_commands.console_of(run, options.console_port):
        yield


def _follow_beside_a_person(run: RunFolder, supervisor: Supervisor, arm: str) -> None:
    from serl.ros.attendant import Attendant

    with Attendant(run, ACTOR, arm) as attendant:
        _follow(run, supervisor, _Terminal(attendant).serve)


def _follow(run: RunFolder, supervisor: Supervisor, attend: Callable[[], None]) -> None:
    """Print each episode as it ends, until the policy's process is done."""
    told, events, over = 0, 0, False
    while not over:
        over = supervisor.finished(ACTOR)
        if not over:
            supervisor.check()
        for tried in read_tried(run.path)[told:]:
            print(tried, flush=True)  # noqa: T201
            told += 1
        for event in supervisor.events[events:]:
            print(event, flush=True)  # noqa: T201
            events += 1
        attend()
        time.sleep(_POLL_S)


class _Terminal:
    """Asks the person at the terminal, and hears the answer, without waiting for it.

    Args:
        attendant: see `serl.ros.attendant`; knows what to ask, and does what is said.
    """

    def __init__(self, attendant: Any) -> None:
        self._attendant, self._asked = attendant, ""

    def serve(self) -> None:
        """Called again and again.

        Raises:
            SerlError: there is a question, and nobody who could answer.
            KeyboardInterrupt: Ctrl-C.
        """
        if self._attendant.asked_to_end:
            raise KeyboardInterrupt
        question = self._attendant.question()
        if question and question != self._asked:
            print(question, flush=True)  # noqa: T201
        self._asked = question
        if question and select.select([sys.stdin], [], [], 0.0)[0]:
            if not sys.stdin.readline():
                raise SerlError(f"nobody is at the terminal: {question}")
            print(self._attendant.answer(), flush=True)  # noqa: T201
            self._asked = ""
