"""ROS 2 `launch` descriptions of the processes of a run, from the list that `serl train` uses.

`launch` and `launch_ros` belong to a ROS 2 installation; they are imported only when a launch file
is read, as the package `launch` on PyPI is unrelated.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple

from serl.arm_profile import load_robot
from serl.cli.arguments import number
from serl.cli.training import demonstrate
from serl.cli.up import run_of
from serl.console.access import forget_address
from serl.errors import BadInput, SerlError
from serl.report.display import Display
from serl.ros.environment import USE_SIM_TIME, domain_id_of, environment, meet_others, ros_name
from serl.ros.lifecycle import AUTOSTART
from serl.ros.processes import (
    actor_names,
    actor_processes,
    all_processes,
    arm_processes,
    ends_with,
    graph_processes,
    guard_processes,
    learner_processes,
    prepare,
    sim_process,
    started_domain_id,
)
from serl.ros.real_arm import RealArm
from serl.runs.config import parse_overrides
from serl.runs.folder import RunFolder
from serl.runs.graph_file import GraphConfig, checked_robot
from serl.runs.settings import run_settings
from serl.system.files import expand_home, home_path
from serl.system.settings_file import checked, read_yaml
from serl.system.supervisor import BAD_INPUT, ProcessSpec

_CLOCK = "--clock"
_RUN = {
    "task": ("", "task of a new run: its name, or the path of a .py or .yaml file"),
    "settings": ("", "settings of a new run, as on the command line: '--seed 2 --agent.utd 8'"),
    "config": ("", "YAML file of settings of a new run"),
    "runs": ("runs", "folder of all runs"),
    "run": ("", "folder of a run to continue, instead of a task"),
}
_ACTOR = {
    "run": ("", "folder of the run to join"),
    "name": ("actor0", "name of the actor, unique within the run"),
}
_ARM = {
    **_RUN,
    "name": ("arm", "name of the arm, its namespace within the run"),
}
_SIM = {
    **_ARM,
    "rtf": ("1.0", "simulated time per wall-clock time"),
    "lockstep": ("false", "true: time passes in the service `advance` only"),
}
_GUARD = {
    **_ARM,
    "profile": ("sim", "name of a robot, or path of a .py or .yaml file with its profile"),
    "arm_namespace": ("/", "namespace of a real arm's topics, from the root"),
}
_FILE = {"file": ("", "YAML file of `serl up`")}
_EVERYWHERE = {
    "namespace": ("", "namespace of all nodes, instead of the run's own"),
    "autostart": ("true", "false: a lifecycle manager configures and activates the nodes"),
    "use_sim_time": ("false", "true: nodes use /clock, which a simulated arm then publishes"),
}

Declared = Mapping[str, tuple[str, str]]
Arguments = Mapping[str, str]


class _LaunchGraph(NamedTuple):
    """The processes that a launch file starts.

    Attributes:
        domain_id: ROS domain of the run.
        processes: processes in the order of starting.
        ends_with: names of the processes at whose end everything stops.
    """

    run: RunFolder
    domain_id: int
    processes: Sequence[ProcessSpec]
    ends_with: frozenset[str]


def describe_training() -> Any:
    """Return the launch description of a learner and all actors of a run."""
    return _description(_RUN, partial(_run_graph, processes=all_processes))


def describe_learner() -> Any:
    """Return the launch description of the learner of a run."""
    return _description(_RUN, partial(_run_graph, processes=learner_processes))


def describe_actor() -> Any:
    """Return the launch description of an actor that joins a run, with its link."""
    return _description(_ACTOR, _actor_graph)


def describe_simulation() -> Any:
    """Return the launch description of a simulated arm for use with any controller."""
    return _description(_SIM, _simulation_graph)


def describe_guard() -> Any:
    """Return the launch description of the guard of a simulated or real arm."""
    return _description(_GUARD, _guard_graph)


def describe_file() -> Any:
    """Return the launch description of the graph of a YAML file, as `serl up` starts it."""
    return _description(_FILE, _file_graph)


def _actor_graph(arguments: Arguments) -> _LaunchGraph:
    if not arguments["run"]:
        raise BadInput("run: expected the folder of a run, as in run:=runs/pick_cube/2026-...")
    name = checked_robot(arguments["name"], "actor")
    run = RunFolder.open(home_path(arguments["run"]))
    specs = actor_processes(run, name)
    return _LaunchGraph(run, started_domain_id(run), specs, frozenset({name}))


def _simulation_graph(arguments: Arguments) -> _LaunchGraph:
    steps = ("--lockstep",) if _is_true(arguments, "lockstep") else ()
    try:
        number(0.01, 100)(arguments["rtf"])
    except (argparse.ArgumentTypeError, ValueError) as error:
        raise BadInput(f"rtf: {error}") from None
    name = checked_robot(arguments["name"], "robot")
    run = _run_of(arguments)
    spec = sim_process(run, name, "--rtf", arguments["rtf"], *steps)
    return _prepare_graph(run, [spec], frozenset())


def _guard_graph(arguments: Arguments) -> _LaunchGraph:
    profile, place = expand_home(arguments["profile"]), arguments["arm_namespace"]
    load_robot(profile)
    if not place.startswith("/"):
        raise BadInput(f"arm_namespace: {place!r}: expected one from the root, such as /right")
    run, name = _run_of(arguments), checked_robot(arguments["name"], "robot")
    if profile == "sim":
        return _prepare_graph(run, arm_processes(run, name)[1:], frozenset())
    specs = guard_processes(run, name, RealArm(profile, place))
    return _prepare_graph(run, specs, frozenset())


def _file_graph(arguments: Arguments) -> _LaunchGraph:
    if not arguments["file"]:
        raise BadInput("file: expected a YAML file, as in file:=cell.yaml")
    graph = checked(GraphConfig, read_yaml(home_path(arguments["file"])))
    run = run_of(graph)
    specs, ends = graph_processes(run, graph), ends_with(graph)
    if graph.console is not None:
        forget_address(run.path)
    if not graph.learner:
        return _LaunchGraph(run, started_domain_id(run), specs, ends)
    demonstrate(run, Display())
    return _prepare_graph(run, specs, ends)


def _run_graph(
    arguments: Arguments, processes: Callable[[RunFolder], list[ProcessSpec]]
) -> _LaunchGraph:
    """Prepare a run in the caller's ROS domain, visible to standard ROS 2 tools."""
    run = _run_of(arguments)
    demonstrate(run, Display())
    specs = processes(run)
    names = {spec.name for spec in specs}
    ends = {"learner"} if "learner" in names else set(actor_names(run))
    return _prepare_graph(run, specs, frozenset(ends))


def _prepare_graph(
    run: RunFolder, specs: Sequence[ProcessSpec], ends: frozenset[str]
) -> _LaunchGraph:
    """Return processes of a run in the caller's ROS domain, visible to standard ROS 2 tools."""
    domain_id = domain_id_of(network=run.config.network)
    prepare(run, domain_id)
    for path in {run.path, *(part.path for part in run.parts().values())}:
        meet_others(path)
    return _LaunchGraph(run, domain_id, specs, ends)


def _is_true(arguments: Arguments, name: str) -> bool:
    if arguments[name] not in ("true", "false"):
        raise BadInput(f"{name}: expected true or false, got {arguments[name]!r}")
    return arguments[name] == "true"


def _with_clock(processes: Sequence[ProcessSpec]) -> list[ProcessSpec]:
    """Return the processes, with /clock published by the first simulated arm."""
    source = next((p for p in processes if p.module == "serl.ros.nodes.sim"), None)
    if source is None or _CLOCK in source.arguments:
        return list(processes)
    with_clock = replace(source, arguments=(*source.arguments, _CLOCK))
    return [with_clock if process is source else process for process in processes]


def _run_of(arguments: Arguments) -> RunFolder:
    """Open the run to continue, or create a new one."""
    if bool(arguments["task"]) == bool(arguments["run"]):
        raise BadInput("expected task:=NAME for a new run, or run:=FOLDER to continue one")
    if arguments["run"]:
        if arguments["settings"] or arguments["config"]:
            raise BadInput(f"{arguments['run']} has its own settings: give no others")
        return RunFolder.open(home_path(arguments["run"]))
    file = read_yaml(home_path(arguments["config"])) if arguments["config"] else {}
    overrides = parse_overrides(shlex.split(arguments["settings"]))
    config = run_settings(arguments["task"], file, overrides)
    return RunFolder.create(home_path(arguments["runs"]), config, datetime.now())


def _description(arguments: Declared, graph: Callable[[Arguments], _LaunchGraph]) -> Any:
    """Return a launch description with arguments, which builds the graph from their values."""
    from launch import LaunchDescription
    from launch.actions import DeclareLaunchArgument, OpaqueFunction
    from launch.substitutions import LaunchConfiguration

    declared = {**arguments, **_EVERYWHERE}

    def build(context: Any) -> list[Any]:
        values = {name: LaunchConfiguration(name).perform(context) for name in declared}
        parameters = {} if _is_true(values, "autostart") else {AUTOSTART: False}
        made = graph(values)
        if _is_true(values, USE_SIM_TIME):
            parameters[USE_SIM_TIME] = True
            made = made._replace(processes=_with_clock(made.processes))
        pushed = context.launch_configurations.get("ros_namespace", "")
        namespace = _within(pushed, values["namespace"])
        return _Launch(made, namespace, parameters).actions()

    return LaunchDescription(
        [
            *(
                DeclareLaunchArgument(name, default_value=default, description=text)
                for name, (default, text) in declared.items()
            ),
            OpaqueFunction(function=build),
        ]
    )


def _within(pushed: str, namespace: str) -> str:
    """Return the absolute namespace, below that of a `launch_ros` group; empty for none."""
    names = [namespace] if namespace.startswith("/") else [pushed, namespace]
    inner = "/".join(filter(None, (name.strip("/") for name in names)))
    return f"/{inner}" if inner else ""


class _Launch:
    """Launch actions for the processes of a graph, with restarts of crashed ones up to their limit.

    Args:
        graph: the processes to start.
        namespace: namespace of all nodes, from the root; empty for the run's.
        parameters: parameters of nodes with a lifecycle.
    """

    def __init__(self, graph: _LaunchGraph, namespace: str, parameters: Mapping[str, bool]) -> None:
        self._graph = graph
        self._namespace, self._parameters = namespace, parameters
        self._crashes: Counter[str] = Counter()

    def actions(self) -> list[Any]:
        """Return one action for each process, after a log line with the run's path."""
        from launch.actions import LogInfo

        nodes = [self._node(spec) for spec in self._graph.processes]
        return [LogInfo(msg=f"run: {self._graph.run.path}"), *nodes]

    def _node(self, spec: ProcessSpec) -> Any:
        """Return the action of a process; a node with a lifecycle is managed by launch events."""
        from launch_ros.actions import LifecycleNode, Node

        run = self._graph.run
        environ = environment(self._graph.domain_id, run.path, run.config.network)
        identity: dict[str, Any] = {"namespace": self._namespace or None}
        if spec.node:
            place, _, name = f"{self._run_namespace}/{spec.node}".rpartition("/")
            parameters = [dict(self._parameters)] if self._parameters else []
            identity = {"name": name, "namespace": place, "parameters": parameters}
        return (LifecycleNode if spec.node else Node)(
            executable=sys.executable,
            arguments=["-m", spec.module, *spec.arguments],
            exec_name=spec.name,
            prefix=f"nice -n {spec.nice}" if spec.nice > 0 else None,
            env={**environ, "SERL_PARENT": str(os.getpid())},
            output="both",
            on_exit=lambda event, context: (
                [] if context.is_shutdown else self._ended(spec, event.returncode)
            ),
            **identity,
        )

    @property
    def _run_namespace(self) -> str:
        """The namespace of the run's nodes, from the root."""
        return self._namespace or f"/{ros_name(self._graph.run.path.name)}"

    def _ended(self, spec: ProcessSpec, code: int) -> Any:
        """Return the actions after a process ended: a restart, a shutdown, or none.

        Raises:
            SerlError: the process failed for good; launch then stops all others and ends with exit
                code 1.
        """
        from launch.actions import LogInfo, Shutdown

        if code == 0 and spec.ends:
            done = spec.name in self._graph.ends_with
            return [Shutdown(reason=f"{spec.name} is done")] if done else []
        self._crashes[spec.name] += 1
        if code == BAD_INPUT or self._crashes[spec.name] > spec.restarts:
            raise SerlError(f"{spec.name} ended with exit code {code}")
        return [LogInfo(msg=f"{spec.name} is started again"), self._node(spec)]
