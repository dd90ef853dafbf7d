"""`serl record`: record demonstrations of the scripted expert or of a person."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from serl import plugins
from serl.arm_profile import is_real
from serl.cli import teleop as teleop_commands
from serl.cli.arguments import (
    add_namespace,
    add_task,
    arm_words,
    check_namespace,
    integer,
    quoted,
    stamped_folder,
)
from serl.cli.terminal import HoldQuestions, Terminal, at_the_terminal, print_cut_boxes
from serl.errors import BadInput, counted
from serl.log.episode_reader import episode_paths
from serl.loop import EpisodeKey, Result
from serl.runs.config import TrainConfig, parse_overrides, resolve
from serl.runs.folder import CONFIG, RunFolder
from serl.runs.graph_file import checked_namespace
from serl.runs.guard_setup import guarded_arms
from serl.runs.network import RosConfig
from serl.runs.real_arm import NO_REWARD, lacks_success_test
from serl.runs.scene_reset import check_given, check_reset, declared_reset
from serl.system.files import FileLock, check_utf8
from serl.system.settings_file import checked, leaves, merge
from serl.teleop.config import TeleopConfig

if TYPE_CHECKING:
    from serl.datasets.person import RecordingStation
    from serl.task import SimulatedTask
    from serl.teleop.device import Device
    from serl.teleop.operator import Operator

PERSONS_TIME_S = 60.0
"""Default time limit of a person's episode, s: a person needs more time than the expert."""


def record_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `serl record`."""
    add_task(parser)
    parser.add_argument(
        "--demos", type=integer(1), default=20, metavar="N", help="number of successes to record"
    )
    parser.add_argument(
        "--seed", type=integer(0, 2**32 - 1), default=0, help="seed of the initial scenes"
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FOLDER",
        help="folder of the recording; a person's recording in it is continued",
    )
    add_person(parser)


def add_person(parser: argparse.ArgumentParser) -> None:
    """Add the options for a person's input and the recorded arm."""
    teleop_commands.add_page(parser, "a person drives on a web page")
    teleop_commands.add_device(parser)
    teleop_commands.add_places(parser)
    parser.add_argument(
        "--robot",
        metavar="NAME",
        help="a person drives this real arm through its guard: a name of `serl list`, or a "
        "profile (.py, .yaml)",
    )
    add_namespace(parser)


def record(options: argparse.Namespace) -> int:
    """Record until the requested number of successes is reached.

    Raises:
        BadInput: the folder holds other data, or a setting is invalid.
        KeyboardInterrupt: Ctrl-C; a person's recording can be continued.
    """
    check_person(options)
    if options.console or options.device or options.robot:
        return _record_person(options)
    return _record_expert(options)


def _record_expert(options: argparse.Namespace) -> int:
    from serl.log.episode_log import EpisodeLog
    from serl.report.display import Display
    from serl.runs.demonstrations import EXPERT, record_expert
    from serl.runs.task_setup import for_recording, make_demonstrated_task, make_spec

    overrides = {"task": options.task, **parse_overrides(options.overrides)}
    config = for_recording(resolve(overrides))
    task = make_demonstrated_task(config)
    folder = options.out or stamped_folder(task.name, "demonstrations")
    check_utf8(folder.resolve())
    if episode_paths(folder):
        raise BadInput(f"{folder}: already holds episodes; give another --out")
    key = EpisodeKey(folder.resolve().name, EXPERT, time.time_ns(), 0)
    with (
        plugins.make_simulation(task) as robot,
        EpisodeLog(folder, make_spec(task), key.run, key.actor, key.epoch, config.log) as log,
        Display().counting("demonstrations", options.demos) as advance,
    ):
        try:
            failed = record_expert(
                robot,
                task,
                log.append,
                options.demos,
                options.seed,
                key,
                progress=lambda kept, failed: advance(kept),
                by_hand=config.demonstrator == "human",
            )
        except KeyboardInterrupt:
            done = counted(len(episode_paths(folder)), "demonstration")
            print(f"{done} in {folder}", file=sys.stderr)
            raise
    left_out = f"{counted(failed, 'failure')} left out"
    print(f"{counted(options.demos, 'demonstration')} in {folder} ({left_out})")
    print(f"next: serl train {options.task} --demos {quoted(folder)}")
    return 0


def _record_person(options: argparse.Namespace) -> int:
    from serl.datasets.person import ACTOR, record_person
    from serl.datasets.recording_session import Recording, RecordingSession, write_session
    from serl.runs.task_setup import make_rewarded_task, make_task

    device = open_device(options)
    run = persons_folder(options, {"task_config": {"time_limit_s": PERSONS_TIME_S}})
    task = make_rewarded_task(run.config)
    unjudged = options.robot is not None and lacks_success_test(make_task(run.config))
    if unjudged and run.config.reward.success_kind == "task":
        print(NO_REWARD, flush=True)
    with FileLock(run.path / "recorder.lock", f"the recording {run.path}"):
        recorded = Recording(run.path, run.episodes(ACTOR))
        write_session(
            run.path,
            RecordingSession(purpose="demonstrations", wanted={"demonstrations": options.demos}),
        )

        def print_result(result: Result) -> None:
            counts = recorded.counts
            print(
                f"{result.text}, {result.steps} steps, {result.human_steps} by hand: "
                f"{counts.kept} of {counted(options.demos, 'demonstration')}, "
                f"{counted(counts.failures, 'failure')}",
                flush=True,
            )

        commands = {"undo": recorded.undo}
        with (
            open_station(options, run, task, device, commands) as station,
            suppress(KeyboardInterrupt),
        ):
            recorded.recover()
            wanted = counted(options.demos, "demonstration")
            print(f"{recorded.counts.kept} of {wanted} so far", flush=True)
            record_person(
                station, task, recorded, options.demos, options.seed, print_result, run.config.log
            )
    counts = recorded.counts
    print(
        f"{counted(counts.kept, 'demonstration')} in {run.path}; stored separately: "
        f"{counted(counts.failures, 'failure')}, {counts.undone} undone"
    )
    if counts.kept < options.demos:
        print(f"to continue: the same command with --out {quoted(run.path)}")
        raise KeyboardInterrupt
    print(f"next: serl train {options.task}{arm_words(options)} --demos {quoted(run.path)}")
    return 0


def check_person(options: argparse.Namespace) -> None:
    """Raise `BadInput` for an option of a person or an arm without the one that it belongs to."""
    teleop_commands.check_page(options)
    check_namespace(options)
    if not options.device and (given := options.path or options.left or options.right):
        raise BadInput(f"{given}: expected the kind of this device as well, by --device")


def open_device(options: argparse.Namespace) -> tuple[Device, ...] | None:
    """Open the person's devices, None without any; called before anything is written.

    Raises:
        BadInput: a device, or ROS 2, is missing.
    """
    if options.console or options.robot:
        from serl.ros.processes import require_ros

        require_ros()
    if not options.device:
        return None
    teleop_commands.refuse_terminal(options.device)
    overrides = parse_overrides(options.overrides).get("teleop", {})
    mapping = teleop_commands.mapping_of(checked(TeleopConfig, overrides), options.device)
    return teleop_commands.open_devices(options, mapping)


def persons_folder(
    options: argparse.Namespace, defaults: Mapping[str, Any], kind: str = "demonstrations"
) -> RunFolder:
    """Create the folder of a person's recording, or open an existing recording to continue it.

    Args:
        options: options of the command.
        defaults: settings that the command's overrides replace.
        kind: purpose of the recording, as in `RecordingSession`.

    Raises:
        BadInput: the folder holds other data, or was recorded with other settings.
    """
    from serl.datasets.recording_session import read_session
    from serl.runs.task_setup import (
        check_runnable,
        declared_reward,
        for_recording,
        make_rewarded_task,
        make_spec,
    )

    overrides = parse_overrides(options.overrides)
    name = plugins.absolute(options.task)
    arm = real_arm(options.robot, options.namespace)
    alone: dict[str, Any] = {"task": name, "seed": options.seed} | arm
    config = resolve(defaults, overrides, alone)
    if arm:
        declared = {"reset": declared_reset(config)}
        if kind == "demonstrations":
            declared["reward"] = declared_reward(config)
        defaults = merge(defaults, declared)
        config = resolve(defaults, overrides, alone)
    if config.stages or (config.robot is not None and not arm):
        raise BadInput("a person records one task in a simulation of its own: no robot, no stages")
    if config.reward.kind == "progress":
        from serl.runs.settings import training_discount

        alone["agent"] = {"discount": training_discount(name, merge(overrides, arm))}
        config = resolve(defaults, overrides, alone)
    config = for_recording(config)
    task = make_rewarded_task(config)
    check_runnable(task, config.robot)
    if config.robot is not None:
        guarded_arms(config, config.robot, config.namespace)
        check_reset(config)
        check_given(config, overrides.get("reset", {}))
    if options.device:  # the page and devices at topics drive two arms as well
        teleop_commands.check_arms(options.task, make_spec(task).action, 2 if options.left else 1)
    folder: Path = options.out or stamped_folder(task.name, kind)
    if (folder / CONFIG).is_file():
        session = read_session(folder)
        if session is not None and session.purpose != kind:
            raise BadInput(f"{folder}: is a recording for {session.purpose}, expected {kind}")
        run = RunFolder.open(folder).writable()
        _check_same(folder, run.config, config)
        return run
    if os.path.lexists(folder) and (not folder.is_dir() or any(folder.iterdir())):
        raise BadInput(f"{folder}: expected a person's recording or an empty folder; give another")
    return RunFolder.create_at(folder, config, datetime.now())


def _check_same(folder: Path, before: TrainConfig, now: TrainConfig) -> None:
    old, new = (dict(leaves(config.model_dump(mode="json"))) for config in (before, now))
    lines = [
        f"{name}: {old.get(name, 'absent')} != {new.get(name, 'absent')}"
        for name in sorted(old.keys() | new.keys())
        if old.get(name) != new.get(name)
    ]
    if lines:
        raise BadInput(f"{folder}: was recorded with other settings: {'; '.join(lines)}")


def real_arm(robot: str | None, namespace: str) -> dict[str, Any]:
    """Return the settings of a recording on a real arm; empty without one.

    Raises:
        BadInput: the robot is not a real arm, or the namespace is invalid.
    """
    if robot is None:
        return {}
    if not is_real(robot):
        raise BadInput(f"--robot {robot}: expected a real arm; without it a simulation is driven")
    where = checked_namespace(namespace)
    return {"robot": plugins.absolute(robot), "namespace": where, "intervention": "none"}


def publication(options: argparse.Namespace) -> RosConfig:
    """Return the settings of publication of a recording with a page, which are not stored."""
    given = parse_overrides(options.overrides).get("ros", {})
    return checked(RosConfig, {"publish_state": True} | given, "ros.")


@contextmanager
def open_station(
    options: argparse.Namespace,
    run: RunFolder,
    task: SimulatedTask,
    devices: tuple[Device, ...] | None,
    services: Mapping[str, Callable[[], str]],
) -> Iterator[RecordingStation]:
    """Provide a station where a person drives in real time, at a page or with devices.

    The robot is a simulation in this process, or a real arm.
    """
    from serl.clock import RealTime, VirtualClock, WallClock
    from serl.datasets.person import ACTOR, RecordingStation
    from serl.runs.task_setup import make_spec
    from serl.teleop.human_input import HumanInput
    from serl.teleop.mux import TeleopMux
    from serl.teleop.operator import Operator
    from serl.teleop.stop import StopLatch

    operators, rate_hz = [], task.config.rate_hz
    if devices is not None:
        people, spec = run.config.teleop, make_spec(task).action
        mapping = teleop_commands.mapping_of(people, options.device)
        of_tool = task.config.motion.frame == "tool"
        operators = [Operator(devices, mapping, people.operator, spec, in_tool_frame=of_tool)]
        print(f"{operators[0].name} drives", flush=True)
    if run.config.robot is not None:
        with _open_arm_station(options, run, operators, services) as station:
            yield station
        return
    with plugins.make_simulation(task) as robot:
        pace = RealTime(WallClock(rate_hz), lambda: True)
        clock = VirtualClock(robot.advance, rate_hz, pace)
        if not options.console:
            link = run.link(ACTOR)
            link.mkdir(parents=True, exist_ok=True)
            hold = StopLatch(link / "stopped")
            human_input = HumanInput(TeleopMux(operators), hold, run.path)
            terminal = Terminal(HoldQuestions(human_input))
            yield RecordingStation(robot, human_input, clock, lambda: bool(terminal.serve()))
            return
        from serl.console.access import forget_address
        from serl.ros.processes import console_processes, join_here, run_processes

        forget_address(run.path)
        host = options.console_host
        page = console_processes(run, ACTOR, options.console_port, host=host)
        with run_processes(run, page) as supervisor:
            join_here(run)
            from serl.ros.people.recorder import recording_station  # rclpy: only after require_ros

            teleop_commands.announce(run, supervisor, options.console_port)
            with recording_station(
                run, robot, clock, operators, services, supervisor.check, publication(options)
            ) as station:
                yield station


@contextmanager
def _open_arm_station(
    options: argparse.Namespace,
    run: RunFolder,
    operators: list[Operator],
    services: Mapping[str, Callable[[], str]],
) -> Iterator[RecordingStation]:
    """Provide a station at a real arm, with its guard's process and prompts at the terminal."""
    from serl.console.access import forget_address
    from serl.datasets.person import ACTOR
    from serl.ros.processes import console_processes, guard_processes, join_here, run_processes
    from serl.ros.real_arm import arm_of

    arm = arm_of(run)
    assert arm is not None, "the settings of the recording name an arm"
    page = []
    if options.console:
        forget_address(run.path)
        host = options.console_host
        page = console_processes(run, ACTOR, options.console_port, host=host)
    arms = {name: each.guarded for name, each in arm.named(ACTOR).items()}
    print_cut_boxes(run.config, arm.profile)
    with run_processes(run, [*guard_processes(run, ACTOR, arm), *page]) as supervisor:
        join_here(run)
        from serl.ros.people.recorder import arm_station  # rclpy: only after require_ros

        if options.console:
            teleop_commands.announce(run, supervisor, options.console_port)
        with at_the_terminal(run, arms) as ask:

            def check() -> None:
                supervisor.check()
                ask()

            with arm_station(run, operators, services, check) as station:
                yield station
