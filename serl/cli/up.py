"""`serl up FILE`: start the processes that a YAML file describes, and supervise them."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path

from serl.arm_profile import is_real, latch_path
from serl.cli import teleop as teleop_commands
from serl.cli.terminal import at_the_terminal, print_cut_boxes
from serl.console.access import forget_address
from serl.errors import BadInput
from serl.guard.latch import GuardedArm
from serl.report.display import Display
from serl.report.progress import ProgressReader, with_waiting
from serl.runs.config import TrainConfig
from serl.runs.deployment import trials_command
from serl.runs.folder import RunFolder
from serl.runs.graph_file import GraphConfig, RobotEntry
from serl.runs.guard_setup import guarded_arms
from serl.system.settings_file import checked, read_yaml
from serl.system.supervisor import Supervisor

_POLL_S = 0.2


def bring_up_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `serl up`."""
    parser.add_argument(
        "file", type=Path, metavar="FILE", help="YAML file: task, robots, learner, console"
    )


def bring_up(options: argparse.Namespace) -> int:
    """Run the processes of a file until they are done, or Ctrl-C.

    Raises:
        BadInput: the file, or an object that it names, cannot be used.
        SerlError: a process failed for good.
    """
    from serl.cli.training import demonstrate
    from serl.ros.processes import (
        ends_with,
        graph_processes,
        require_ros,
        run_in_domain,
        run_processes,
    )

    graph = checked(GraphConfig, read_yaml(options.file))
    require_ros()
    if graph.console is not None:
        teleop_commands.require_console(graph.console.host)
    run = run_of(graph)
    specs = graph_processes(run, graph)
    display = Display()
    if graph.learner:
        demonstrate(run, display)
    print(f"run: {run.path}", flush=True)
    for spec in specs:
        print(f"starting {spec.name} ({spec.module})", flush=True)
    for robot in graph.robots:
        print_cut_boxes(run.config, robot.profile)
    if graph.console is not None:
        forget_address(run.path)
    arms = {
        name: arm
        for each in graph.robots
        if each.actor and each.profile is not None
        for name, arm in _guarded(run, each).items()
    }
    with (
        run_processes(run, specs) if graph.learner else run_in_domain(run, specs) as supervisor,
        at_the_terminal(run, arms) as ask,
    ):
        if graph.console is not None:
            teleop_commands.announce(run, supervisor, graph.console.port)
        with display:
            attend(run, supervisor, ends_with(graph), ask, display)
    print(f"done: {trials_command(run)}", flush=True)
    return 0


def run_of(graph: GraphConfig) -> RunFolder:
    """Open the run that a graph continues, or create a new one.

    Raises:
        BadInput: the run cannot be opened or created, has stages, which only `serl train` trains,
            or one of the arms cannot be used.
    """
    from serl.runs.settings import run_settings

    if graph.run is not None:
        run = RunFolder.open(graph.run).writable()
        if run.config.stages:
            raise BadInput(f"{run.path}: only `serl train` trains stages")
        check_arms(graph, run.config)
        return run
    config = run_settings(graph.task, graph.run_settings, {})
    if config.stages:
        raise BadInput("only `serl train` trains stages; with settings.stages null it is one")
    check_arms(graph, config)
    return RunFolder.create(graph.runs, config, datetime.now())


def check_arms(graph: GraphConfig, config: TrainConfig) -> None:
    """Check every real arm of a graph before anything is created or moves.

    Raises:
        BadInput: an arm cannot do the task or be guarded, or is listed twice; names the entry.
    """
    from serl.ros.arm.topics import check_types  # rclpy: only after require_ros

    entries: dict[Path, str] = {}
    places: dict[str, str] = {}
    for robot in graph.robots:
        if robot.profile is None or not is_real(robot.profile):
            continue
        try:
            arms = guarded_arms(config, robot.profile, robot.namespace)
            for arm in arms:
                check_types(arm.profile)
        except BadInput as error:
            raise BadInput(f"robots.{robot.name}.profile: {error}") from None
        for arm in arms:
            latch = latch_path(arm.robot, arm.profile, arm.namespace)
            if (other := entries.setdefault(latch, robot.name)) != robot.name:
                raise BadInput(f"robots.{robot.name}: its profile is of the same arm as {other}'s")
            if (other := places.setdefault(arm.namespace, robot.name)) != robot.name:
                raise BadInput(
                    f"robots.{robot.name}.namespace: {arm.namespace}: is that of {other}, whose "
                    "actor would command both guards: give each arm its own"
                )


def _guarded(run: RunFolder, robot: RobotEntry) -> dict[str, GuardedArm]:
    """Return the guarded arm of an entry of a graph file by its actor, both arms of a pair."""
    from serl.ros.processes import real_arm_of
    from serl.ros.real_arm import simulated_arm

    if (real := real_arm_of(robot)) is None:
        return {robot.name: simulated_arm(run, robot.name)}
    return {name: arm.guarded for name, arm in real.named(robot.name).items()}


def attend(
    run: RunFolder,
    supervisor: Supervisor,
    ends: frozenset[str],
    ask: Callable[[], Mapping[str, str]],
    display: Display,
) -> None:
    """Supervise until the processes in `ends` are done; show progress, and ask the operator."""
    reader = ProgressReader.of_run(run)
    printed = 0
    while not ends or not all(map(supervisor.finished, ends)):
        supervisor.check()
        display.update(with_waiting(reader.read(supervisor.states()), ask()))
        for event in (*supervisor.events[printed:], *reader.news()):
            display.print_line(event)
        printed = len(supervisor.events)
        time.sleep(_POLL_S)
