"""The processes of a run, started in a ROS domain of their own."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from serl import plugins
from serl.assignment import make_task
from serl.errors import BadInput
from serl.files import make_folder, write_atomic
from serl.graph_config import GraphConfig
from serl.guard_setup import make_guard_config, settle_guard, write_guard
from serl.ros.environment import (
    choose_transport,
    clean_shared_memory,
    domain_id_of,
    environment,
    free_domain,
    meet_others,
    ros_status,
)
from serl.ros.names import ARM_NODE, guard_name, ros_name
from serl.run_folder import RunFolder
from serl.supervisor import ProcessSpec, Supervisor

_DOMAIN = "ros_domain"
_NICE, _FIRST = 10, -10
_ARM = "--arm"  # of the guard of a real arm


def require_ros() -> None:
    """Raise `BadInput` unless ROS 2 can be used, in a domain that is free or was asked for."""
    if problem := ros_status().problem:
        raise BadInput(problem)
    free_domain().close()


def learner_processes(run: RunFolder) -> list[ProcessSpec]:
    """The learner of a run, or of each of its stages; it stands back where an arm moves."""
    nice = _NICE if run.config.robot else 0
    return [
        ProcessSpec(
            f"{prefix(stage)}learner",
            "serl.ros.learner_node",
            ("--run", str(part.path)),
            nice=nice,
        )
        for stage, part in run.parts().items()
    ]


def actor_processes(run: RunFolder, name: str) -> list[ProcessSpec]:
    """An actor, the link beside it to each learner, and in real time its arm and a guard."""
    nice = _NICE if run.config.robot else 0
    links = [
        ProcessSpec(
            f"{prefix(stage)}link-{name}",
            "serl.ros.link_node",
            ("--run", str(part.path), "--actor", name),
            restarts=5,
            ends=False,
            nice=nice,
        )
        for stage, part in run.parts().items()
    ]
    arguments = ("--run", str(run.path), "--actor", name)
    actor = ProcessSpec(
        name,
        "serl.ros.actor_node",
        arguments,
        restarts=5,
        nice=_FIRST if nice else 0,
        node=ros_name(name),
    )
    return [*(arm_processes(run, name) if run.config.robot else ()), *links, actor]


def arm_processes(run: RunFolder, name: str) -> list[ProcessSpec]:
    """The simulated arm of an actor, and the guard that alone commands it."""
    profile = plugins.load("robot", "sim")
    limits = make_guard_config(make_task(run.config), profile)
    settings, latch = settle_guard(run.path / "guard", name, limits)
    arm = ("--run", str(run.path), "--robot", name)
    guard = (*arm, "--config", str(settings), "--latch", str(latch))
    return [sim_process(run, name), _guard(name, name, guard)]


def sim_process(run: RunFolder, name: str, *options: str) -> ProcessSpec:
    """A simulated arm, with more arguments of its process."""
    arguments = ("--run", str(run.path), "--robot", name, *options)
    return ProcessSpec(
        f"sim-{name}",
        "serl.ros.sim_node",
        arguments,
        ends=False,
        nice=_FIRST,
        node=f"{name}/{ARM_NODE}",
    )


def policy_processes(
    run: RunFolder, name: str, robot: str, arm: str, checkpoint: Path, episodes: int | None
) -> list[ProcessSpec]:
    """What executes a trained policy in a deployment: see `serl.ros.policy_node`.

    A simulated arm comes with its guard and its latch. A real one has its own driver, in the
    namespace `arm`; its latch belongs to it, so it lies with the run that was trained.
    """
    count = () if episodes is None else ("--episodes", str(episodes))
    chosen = ("--robot", robot) if robot else ()
    arguments = ("--run", str(run.path), "--actor", name, "--checkpoint", str(checkpoint))
    real = bool(robot) and robot != "sim"
    place = ("--namespace", arm) if real else ()
    policy = ProcessSpec(
        name,
        "serl.ros.policy_node",
        (*arguments, *chosen, *place, *count),
        restarts=0,
        nice=_FIRST if robot else 0,
        node=ros_name(name),
    )
    if real:
        return [guard_process(run, name, robot, arm, checkpoint.parents[1] / "guard"), policy]
    return [*(arm_processes(run, name) if robot else ()), policy]


def guard_process(run: RunFolder, name: str, robot: str, arm: str, latches: Path) -> ProcessSpec:
    """The guard of a real arm, whose latch is the file `<robot>.latch` in a folder."""
    profile = plugins.load("robot", robot)
    limits = make_guard_config(make_task(run.config), profile)
    settings = write_guard(run.path / "guard", name, limits)
    make_folder(latches)
    latch = latches / f"{profile.name}.latch"
    arguments = ("--run", str(run.path), "--robot", arm, _ARM, robot)
    return _guard(name, arm, (*arguments, "--config", str(settings), "--latch", str(latch)))


def _guard(name: str, robot: str, arguments: tuple[str, ...]) -> ProcessSpec:
    node = guard_name(robot)
    module = "serl.ros.guard_node"
    return ProcessSpec(f"guard-{name}", module, arguments, ends=False, nice=_FIRST, node=node)


def prefix(stage: str) -> str:
    """What the names of a stage's processes begin with; nothing in a run without stages."""
    return f"{stage}-" if stage else ""


def console_processes(run: RunFolder, actor: str, port: int) -> list[ProcessSpec]:
    """The console beside an actor."""
    arguments = ("--run", str(run.path), "--actor", actor, "--port", str(port))
    return [ProcessSpec("console", "serl.ros.console_node", arguments, ends=False)]


def actor_names(run: RunFolder) -> list[str]:
    """Names of the actors that a run starts."""
    return [f"actor{index}" for index in range(run.config.actors)]


def all_processes(run: RunFolder) -> list[ProcessSpec]:
    """A learner and all actors: the one list that supervisor and launch files share."""
    actors = [actor_processes(run, name) for name in actor_names(run)]
    return [*learner_processes(run), *(spec for specs in actors for spec in specs)]


def described_processes(run: RunFolder, graph: GraphConfig) -> list[ProcessSpec]:
    """What a file describes: `serl up` supervises it, and a launch file starts it.

    Raises:
        BadInput: the run's settings and the robots of the file do not agree.
    """
    config, specs = run.config, learner_processes(run) if graph.learner else []
    for robot in graph.robots:
        if robot.actor and robot.profile != config.robot:
            asked, own = robot.profile or "null", config.robot or "null"
            raise BadInput(f"robots.{robot.name}.profile: {asked}, and {run.path} drives {own}")
        if robot.actor:
            specs += actor_processes(run, robot.name)
        elif robot.profile == "sim":
            arm, guard = arm_processes(run, robot.name)
            specs += [arm, guard] if robot.guard else [arm]
        elif robot.guard and robot.profile is not None:
            latches = run.path / "guard"
            specs.append(guard_process(run, robot.name, robot.profile, robot.namespace, latches))
    if graph.console is not None:
        specs += console_processes(run, graph.console.robot, graph.console.port)
    return specs


def ends_with(graph: GraphConfig) -> frozenset[str]:
    """When all of these are done, so is the graph; empty: it goes on until it is stopped."""
    return frozenset({"learner"} if graph.learner else graph.actors)


@contextmanager
def started(run: RunFolder, specs: Sequence[ProcessSpec]) -> Iterator[Supervisor]:
    """Run processes until the block is left, then stop them in order.

    Raises:
        BadInput: ROS 2 is missing, no ROS domain is free, or the run has a learner already.
    """
    require_ros()
    with free_domain(network=run.config.network) as domain:
        prepare(run, domain.id)
        if any(_ARM in spec.arguments for spec in specs):  # whose driver is not ours
            meet_others(run.path)
        with _supervised(run, specs, domain.id) as supervisor:
            yield supervisor


def prepare(run: RunFolder, domain_id: int) -> None:
    """Make ready for processes of a run in a ROS domain.

    Raises:
        BadInput: the run has a learner already.
    """
    parts = run.parts().values()
    for part in parts:  # the learner process takes it; whoever comes second changes nothing
        part.lock_learner().close()
    clean_shared_memory()
    for path in {run.path, *(part.path for part in parts)}:
        choose_transport(path)
    write_atomic(run.path / _DOMAIN, str(domain_id).encode())


@contextmanager
def beside(run: RunFolder, specs: Sequence[ProcessSpec]) -> Iterator[Supervisor]:
    """Run processes for as long as the block, beside whatever is `started` in it.

    Raises:
        BadInput: as of `started`.
    """
    require_ros()
    clean_shared_memory()
    choose_transport(run.path)
    before = os.environ.get("ROS_DOMAIN_ID")
    with free_domain(network=run.config.network) as domain:
        os.environ["ROS_DOMAIN_ID"] = str(domain.id)  # which `started` follows
        try:
            with _supervised(run, specs, domain.id) as supervisor:
                yield supervisor
        finally:
            os.environ.pop("ROS_DOMAIN_ID")
            if before is not None:
                os.environ["ROS_DOMAIN_ID"] = before


@contextmanager
def joined(run: RunFolder, specs: Sequence[ProcessSpec]) -> Iterator[Supervisor]:
    """The same in the domain of a run that has been started, on this host or on another.

    Raises:
        BadInput: ROS 2 is missing, or the run was never started.
    """
    require_ros()
    with _supervised(run, specs, started_domain_id(run)) as supervisor:
        yield supervisor


def join_here(run: RunFolder) -> None:
    """This process is about to join a run that has been started; raises as `joined`."""
    require_ros()
    os.environ["ROS_DOMAIN_ID"] = str(started_domain_id(run))


def started_domain_id(run: RunFolder) -> int:
    """The ROS domain in which a run was started; raises `BadInput` unless it was."""
    if not run.config.network.local:
        choose_transport(run.path)  # of this host alone
        return free_domain(network=run.config.network).id
    file = run.path / _DOMAIN
    if not file.exists():
        raise BadInput(f"{run.path}: no learner was started yet: serl learner {run.path}")
    return domain_id_of({"ROS_DOMAIN_ID": file.read_text()})


@contextmanager
def _supervised(
    run: RunFolder, specs: Sequence[ProcessSpec], domain_id: int
) -> Iterator[Supervisor]:
    supervisor = Supervisor(specs, environment(domain_id, run.path, run.config.network), run.log)
    try:
        supervisor.start()
        yield supervisor
    finally:
        supervisor.stop()
