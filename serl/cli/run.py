"""`serl run`: execute a trained policy, on a simulated arm or a real one, without a learner."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from serl import plugins
from serl.cli import teleop as teleop_commands
from serl.cli.arguments import add_checkpoint, add_namespace, add_run, check_namespace, integer
from serl.cli.terminal import at_the_terminal, print_cut_boxes
from serl.errors import BadInput
from serl.runs.checkpoint import pick
from serl.runs.config import TrainConfig
from serl.runs.deployment import (
    FOLDER,
    load_fitting,
    read_trial_results,
    result_lines,
    summary,
    unassisted,
)
from serl.runs.folder import RunFolder
from serl.runs.guard_setup import guarded_arms
from serl.runs.network import RosConfig
from serl.runs.real_arm import NO_REWARD, describe_classifier_bounds, lacks_success_test
from serl.runs.scene_reset import arm_settings, check_reset
from serl.runs.task_setup import check_runnable, make_task
from serl.system.supervisor import Supervisor

ACTOR = "actor0"
_POLL_S = 0.1


def execute_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `serl run`."""
    add_run(parser)
    parser.add_argument(
        "--robot",
        metavar="NAME",
        help="sim: the simulated arm over ROS 2 with its guard, in real time; a name in "
        "`serl list`, or a profile (.py, .yaml): a real arm; else a simulation at full speed",
    )
    add_namespace(parser)
    add_checkpoint(parser)
    parser.add_argument(
        "--episodes",
        type=integer(1),
        metavar="N",
        help="number of episodes, not counting those with a fault; else until Ctrl-C",
    )
    parser.add_argument(
        "--out", type=Path, metavar="FOLDER", help=f"folder to record in, else RUN/{FOLDER}/..."
    )
    teleop_commands.add_page(parser, "serve a web page to watch, take over and stop")


def execute(options: argparse.Namespace) -> int:
    """Run episodes, print the result of each, and at the end the number of successes.

    The exit code is 1 if fewer episodes than `--episodes` count, as after too many void ones.

    Raises:
        BadInput: the run, checkpoint or robot does not exist, or the policy does not fit them.
        SerlError: a process failed.
    """
    from serl.ros.processes import require_ros

    check_namespace(options)
    teleop_commands.check_page(options)
    require_ros()
    trained = RunFolder.open(options.run)
    if stages := trained.config.stages:
        one = options.run / "stages" / next(iter(stages))
        raise BadInput(f"{options.run} has stages: give the folder of one, such as {one}")
    checkpoint = pick(trained.checkpoints, options.checkpoint).resolve()
    config = _deployed(trained.config, options)
    load_fitting(checkpoint, config)
    run = deployment(trained, config, options.out)
    print(f"deployment: {run.path}", flush=True)
    try:
        with _console(run, options) as supervise:
            deploy(run, checkpoint, options.episodes, supervise=supervise)
    finally:
        if results := read_trial_results(run.path):
            print(summary(results, options.episodes), flush=True)
    evaluation = unassisted(results, planned=options.episodes)
    if evaluation is None or not evaluation.early_end:
        return 0
    if not results:
        print(evaluation.early_end, flush=True)
    return 1


def deploy(
    run: RunFolder,
    checkpoint: Path,
    episodes: int | None,
    candidates: Sequence[Path] = (),
    most: int = 0,
    supervise: Callable[[], object] = lambda: None,
) -> None:
    """Execute a policy in the processes of a deployment and print the result of each episode.

    Args:
        run: folder of the deployment.
        checkpoint: folder of the checkpoint.
        episodes: number of episodes that count as trials; None for no end.
        candidates: further checkpoints, of which trials choose one first.
        most: largest number of these trials of each checkpoint.
        supervise: called repeatedly; supervises other processes.

    Raises:
        SerlError: a process failed, or a question about a real arm cannot be answered.
        KeyboardInterrupt: Ctrl-C.
    """
    from serl.ros.processes import policy_processes, run_processes
    from serl.ros.real_arm import arm_of, arms_behind_guards

    paths = (*candidates, checkpoint)
    print(f"policy: checkpoint {' or '.join(f'{int(path.name):,}' for path in paths)}", flush=True)
    arm = arm_of(run)
    unjudged = arm is not None and lacks_success_test(make_task(run.config))
    if unjudged and run.config.reward.success_kind == "task":
        print(NO_REWARD, flush=True)
    if line := describe_classifier_bounds(run.config, make_task(run.config)):
        print(line, flush=True)
    print_cut_boxes(run.config, run.config.robot)
    arms = arms_behind_guards(run, [ACTOR], arm)
    specs = policy_processes(run, ACTOR, checkpoint, episodes, candidates, most)
    with run_processes(run, specs) as supervisor, at_the_terminal(run, arms) as attend:

        def look() -> None:
            supervise()
            attend()

        _follow(run, supervisor, look, episodes, most * len(paths))


def _deployed(config: TrainConfig, options: argparse.Namespace) -> TrainConfig:
    """Return the settings of a deployment: one actor, without simulated interventions.

    Raises:
        BadInput: the robot does not exist, its workspace differs from the task's, or it is none for
            a task without a simulation.
    """
    robot, namespace = options.robot, options.namespace
    check_runnable(make_task(config), robot)
    if options.console:
        config = config.model_copy(update={"ros": RosConfig(publish_state=True)})
    if robot is not None:
        guarded_arms(config, robot, namespace)
        robot = plugins.absolute(robot)
    alone: dict[str, Any] = {"robot": None, "namespace": namespace}
    own = alone if robot is None else arm_settings(config, robot, namespace)
    deployed = config.model_copy(update={**own, "intervention": "none", "actors": 1})
    check_reset(deployed)
    return deployed


def deployment(trained: RunFolder, config: TrainConfig, out: Path | None = None) -> RunFolder:
    """Create the folder for the episodes of a policy; raises `BadInput` when `out` exists."""
    now = datetime.now()
    if out is None:
        return RunFolder.make(trained.path / FOLDER, now.strftime("%Y-%m-%d_%H-%M-%S"), config, now)
    if out.exists():
        raise BadInput(f"--out {out}: exists already; expected the name of a new folder")
    return RunFolder.make(out.resolve().parent, out.name, config, now)


@contextmanager
def _console(run: RunFolder, options: argparse.Namespace) -> Iterator[Callable[[], object]]:
    """Run the console during the block, if requested; yield the function that supervises it."""
    if not options.console:
        yield lambda: None
        return
    with teleop_commands.console_of(run, options.console_port, options.console_host) as console:
        yield console.check


def _follow(
    run: RunFolder,
    supervisor: Supervisor,
    attend: Callable[[], object],
    episodes: int | None,
    most: int,
) -> None:
    """Print each episode at its end, until the policy's process is done; see `result_lines`."""
    printed, events, over = 0, 0, False
    while not over:
        over = supervisor.finished(ACTOR)
        if not over:
            supervisor.check()
        for line in result_lines(read_trial_results(run.path), episodes, most)[printed:]:
            print(line, flush=True)
            printed += 1
        for event in supervisor.events[events:]:
            print(event, flush=True)
            events += 1
        attend()
        time.sleep(_POLL_S)
