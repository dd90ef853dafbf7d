"""`serl actor`: an actor node and its link, which join a run that a learner has started."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from serl.cli.arguments import add_namespace, add_run, arm_words, check_namespace, quoted
from serl.cli.terminal import at_the_terminal, print_cut_boxes
from serl.errors import BadInput
from serl.log.episode_reader import episode_paths
from serl.report.display import ActorProgress, Display, link_text
from serl.runs.config import TrainConfig
from serl.runs.deployment import trials_command
from serl.runs.folder import LEARNER_LOCK, RunFolder
from serl.runs.graph_file import checked_robot
from serl.system.files import is_alive
from serl.system.supervisor import Supervisor
from serl.training.link import PERIOD_S, read_link_status

_LOOK_S = 20.0
_SILENT = "no answer from a learner of this run; is `serl learner` running?"
_BUSY = "no answer from the learner yet: it is starting, or training on demonstrations"
_GRACE_S = 5.0  # for a newly started learner to take its lock


def actor_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `serl actor`."""
    add_run(parser)
    parser.add_argument("--name", default="actor0", help="name of the actor, unique within the run")
    parser.add_argument(
        "--robot", metavar="NAME", help="real arm of this actor, else the arm of the run"
    )
    add_namespace(parser)


def actor(options: argparse.Namespace) -> int:
    """Run episodes until the training is complete, or Ctrl-C.

    Raises:
        BadInput: the run or arm does not exist, or the run is finished.
        SerlError: a process failed for good.
    """
    from serl.ros.processes import actor_processes, chosen_arm, run_in_domain
    from serl.ros.real_arm import arm_of, arms_behind_guards
    from serl.runs.resume import trained_steps

    check_namespace(options)
    run, name = RunFolder.open(options.run).writable(), checked_robot(options.name, "actor")
    without_stages(run.config)
    if trained_steps(run) >= run.config.steps:
        raise BadInput(f"{run.path}: finished, all {run.config.steps:,} steps are trained on")
    arm = chosen_arm(run, options.robot, options.namespace) if options.robot else arm_of(run)
    await_learner(run)
    print_cut_boxes(run.config, arm and arm.profile)
    lock = run.path / LEARNER_LOCK
    specs = actor_processes(run, name, arm)
    try:
        with (
            run_in_domain(run, specs) as supervisor,
            at_the_terminal(run, arms_behind_guards(run, [name], arm)) as ask,
            Display().working(f"{name} is starting") as show,
        ):
            attend(
                supervisor,
                name,
                run.link(name),
                ask,
                partial(is_alive, lock),
                lambda: show(progress_text(run, name)),
            )
    except KeyboardInterrupt:
        again = f"serl actor {quoted(run.path)} --name {name}{arm_words(options)}"
        print(f"to continue: {again}", file=sys.stderr)
        raise
    print(f"{name} is done; next: {trials_command(run)}")
    return 0


def await_learner(
    run: RunFolder,
    now: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Wait until the first learner of a run is up; it records demonstrations first.

    Raises:
        BadInput: no learner was started.
    """
    from serl.ros.processes import was_started

    lock, is_announced, seen_s = run.path / LEARNER_LOCK, False, now()
    while not was_started(run):
        if is_alive(lock):
            seen_s = now()
        elif now() > seen_s + _GRACE_S:
            command = f"serl learner {quoted(run.path)}"
            raise BadInput(f"{run.path}: no learner was started yet: {command}")
        if not is_announced:
            print("waiting for the learner, which records demonstrations first", flush=True)
            is_announced = True
        sleep(0.2)


def attend(
    supervisor: Supervisor,
    name: str,
    link: Path | None = None,
    ask: Callable[[], object] = lambda: None,
    learning: Callable[[], bool] = lambda: False,
    show_progress: Callable[[], object] = lambda: None,
) -> None:
    """Supervise processes until one is done; print restarts, and a link without a learner.

    Args:
        supervisor: supervisor of the processes.
        name: name of the process to wait for.
        link: folder of the link to watch.
        ask: called repeatedly; serves questions to the operator.
        learning: returns whether a learner of the run is alive on this host.
        show_progress: called once a second, as often as a link writes its status.
    """
    printed, look_s, show_s = 0, time.monotonic() + _LOOK_S, 0.0
    while not supervisor.finished(name):
        supervisor.check()
        ask()
        if time.monotonic() > show_s:
            show_s = time.monotonic() + PERIOD_S
            show_progress()
        if link is not None and time.monotonic() > look_s:
            look_s = time.monotonic() + _LOOK_S
            if (status := read_link_status(link)) is None or not status.connected:
                print(_BUSY if learning() else _SILENT, flush=True)
        for event in supervisor.events[printed:]:
            print(event, flush=True)
        printed = len(supervisor.events)
        time.sleep(0.2)


def progress_text(run: RunFolder, name: str) -> str:
    """Return the progress of an actor of this host: recorded episodes, acknowledged steps."""
    actor = ActorProgress(name, link=read_link_status(run.link(name)))
    episodes = len(episode_paths(run.episodes(name)))
    return f"{name}: episodes {episodes:,}, {link_text(actor)}"


def without_stages(config: TrainConfig) -> TrainConfig:
    """Return the settings; raises `BadInput` for settings with stages."""
    if config.stages:
        raise BadInput("only `serl train` trains stages; with --stages null it is one task")
    return config
