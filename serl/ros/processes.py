"""The processes of a run, and how they are started in a ROS domain."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from serl.arm_profile import is_real
from serl.errors import BadInput, SerlError
from serl.guard.latch import GuardedArm
from serl.ros.environment import (
    ARM_NODE,
    Domain,
    choose_transport,
    clean_shared_memory,
    domain_id_of,
    environment,
    free_domain,
    guard_name,
    link_name,
    meet_others,
    ros_name,
    ros_status,
)
from serl.ros.real_arm import RealArm, arm_of, arms_behind_guards
from serl.runs.config import TrainConfig
from serl.runs.folder import PROCESSES_LOCK, RunFolder
from serl.runs.graph_file import GraphConfig, RobotEntry
from serl.runs.guard_setup import (
    GUARD_FOLDER,
    guarded_arm,
    guarded_arms,
    settle_guard,
    write_guard,
)
from serl.system.files import FileLock, read_bounded, write_atomic
from serl.system.supervisor import ProcessSpec, Supervisor

_DOMAIN = "ros_domain"
_MAX_NOTE_BYTES = 4096
_NICE, _FIRST = 10, -10
_ARM = "--arm"  # argument of a real arm's guard


def require_ros() -> None:
    """Raise `BadInput` unless ROS 2 can be used, in a free domain or that of `ROS_DOMAIN_ID`."""
    if problem := ros_status().problem:
        raise BadInput(problem)
    free_domain().close()


def chosen_arm(run: RunFolder, robot: str, namespace: str) -> RealArm:
    """Return another real arm for an actor; raises `BadInput` unless both run and arm are real."""
    if arm_of(run) is None or not is_real(robot):
        own = run.config.robot or "a simulation in its actors' processes"
        raise BadInput(f"--robot {robot}: {run.path} drives {own}")
    guarded_arms(run.config, robot, namespace)
    return RealArm(robot, namespace)


def learner_processes(run: RunFolder) -> list[ProcessSpec]:
    """Return the learner of a run, or of each stage; with low priority where an arm moves."""
    nice = _NICE if run.config.robot else 0
    return [
        ProcessSpec(
            f"{prefix(stage)}learner",
            "serl.ros.nodes.learner",
            ("--run", str(part.path)),
            nice=nice,
            node=_of_stage(stage, "learner"),
            saves=True,
        )
        for stage, part in run.parts().items()
    ]


def actor_processes(run: RunFolder, name: str, arm: RealArm | None = None) -> list[ProcessSpec]:
    """Return an actor, its link to each learner, and in real time its arm and a guard.

    A real arm, by default that of the run, has a driver of its own.
    """
    nice, arm = _NICE if run.config.robot else 0, arm or arm_of(run)
    links = [
        ProcessSpec(
            f"{prefix(stage)}link-{name}",
            "serl.ros.nodes.link",
            ("--run", str(part.path), "--actor", name),
            restarts=5,
            ends=False,
            nice=nice,
            node=_of_stage(stage, link_name(name)),
        )
        for stage, part in run.parts().items()
    ]
    own = ("--robot", arm.profile, "--namespace", arm.namespace) if arm else ()
    actor = ProcessSpec(
        name,
        "serl.ros.nodes.actor",
        ("--run", str(run.path), "--actor", name, *own),
        restarts=5,
        nice=_FIRST if nice else 0,
        node=ros_name(name),
    )
    return [*_guarded(run, name, arm), *links, actor]


def _guarded(run: RunFolder, name: str, arm: RealArm | None) -> list[ProcessSpec]:
    """Return the guard of an actor's arm, and the arm itself where it is simulated."""
    if arm is not None:
        return guard_processes(run, name, arm)
    return arm_processes(run, name) if run.config.robot else []


def arm_processes(run: RunFolder, name: str) -> list[ProcessSpec]:
    """Return the simulated arm of an actor, and the guard that alone commands it."""
    _, limits = guarded_arm(run.config, "sim")
    settings, latch = settle_guard(run.path / GUARD_FOLDER, name, limits)
    arm = ("--run", str(run.path), "--robot", name)
    guard = (*arm, "--config", str(settings), "--latch", str(latch))
    return [sim_process(run, name), _guard(name, name, guard)]


def sim_process(run: RunFolder, name: str, *options: str) -> ProcessSpec:
    """Return the process of a simulated arm, with further arguments."""
    arguments = ("--run", str(run.path), "--robot", name, *options)
    return ProcessSpec(
        f"sim-{name}",
        "serl.ros.nodes.sim",
        arguments,
        ends=False,
        nice=_FIRST,
        node=f"{name}/{ARM_NODE}",
    )


def policy_processes(
    run: RunFolder,
    name: str,
    checkpoint: Path,
    episodes: int | None,
    candidates: Sequence[Path] = (),
    most: int = 0,
) -> list[ProcessSpec]:
    """Return the processes that execute a trained policy: see `serl.ros.nodes.policy.run`.

    A simulated arm comes with its guard and its latch. A real one has its own driver and latch.
    """
    count = () if episodes is None else ("--episodes", str(episodes))
    others = [word for path in candidates for word in ("--candidate", str(path))]
    words = (*count, *others, "--most", str(most))
    policy = ProcessSpec(
        name,
        "serl.ros.nodes.policy",
        ("--run", str(run.path), "--actor", name, "--checkpoint", str(checkpoint), *words),
        restarts=0,
        nice=_FIRST if run.config.robot else 0,
        node=ros_name(name),
    )
    return [*_guarded(run, name, arm_of(run)), policy]


def guard_processes(run: RunFolder, name: str, arm: RealArm) -> list[ProcessSpec]:
    """Return the guard of a real arm, or of each arm of a pair.

    Each has the latch of its arm: see `serl.arm_profile.latch_path`. A guard enforces the task's
    box, and the profile's workspace where one was taught.
    """
    specs = []
    for setup in guarded_arms(run.config, arm.profile, arm.namespace):
        own = "-".join(filter(None, (name, setup.side)))
        settings = write_guard(run.path / GUARD_FOLDER, own, setup.config)
        guarded = RealArm(setup.robot, setup.namespace).guarded
        if not setup.side:
            note = f"{guarded.namespace}\n{guarded.latch.absolute()}\n"
            write_atomic(_arm_note(run, name), note.encode())
        arguments = (
            *("--run", str(run.path), "--robot", setup.namespace, _ARM, setup.robot),
            *("--config", str(settings), "--latch", str(guarded.latch)),
        )
        specs.append(_guard(own, setup.namespace, arguments))
    return specs


def _arm_note(run: RunFolder, name: str) -> Path:
    """Return the file that keeps the namespace and latch of an actor's real arm, for a console."""
    return run.path / GUARD_FOLDER / f"{name}.arm"


def _guard(name: str, robot: str, arguments: tuple[str, ...]) -> ProcessSpec:
    node = guard_name(robot)
    module = "serl.ros.nodes.guard"
    return ProcessSpec(f"guard-{name}", module, arguments, ends=False, nice=_FIRST, node=node)


def prefix(stage: str) -> str:
    """Return the prefix of a stage's process names; empty in a run without stages."""
    return f"{stage}-" if stage else ""


def _of_stage(stage: str, node: str) -> str:
    """Return a node's name relative to the run's namespace: that of its stage comes first."""
    return f"{ros_name(stage)}/{node}" if stage else node


def console_processes(
    run: RunFolder,
    actor: str,
    port: int,
    arm: RealArm | None = None,
    host: str = "",
    others: Mapping[str, RealArm | None] | None = None,
) -> list[ProcessSpec]:
    """Return the console of an actor, whose STOP goes to the guards of its arms as well.

    With a host, this machine's address in the lab network, it is open to a phone there. The
    `others` are further actors that it shows and stops, each with its real arm if that is not the
    run's.
    """
    arguments: tuple[str, ...] = ("--run", str(run.path), "--port", str(port))
    if host:
        arguments += ("--host", host)
    for name, given in {actor: arm, **(others or {})}.items():
        real = given or arm_of(run)
        arguments += ("--actor", name)
        if real is not None:
            arguments += ("--profile", name, real.profile)
        for guarded_name, guarded in _guarded_by(run, name, given).items():
            arguments += ("--guard", guarded_name, guarded.namespace, str(guarded.latch))
    return [ProcessSpec("console", "serl.ros.nodes.console", arguments, ends=False, node="console")]


def _guarded_by(run: RunFolder, actor: str, arm: RealArm | None) -> dict[str, GuardedArm]:
    """Return an actor's guarded arms: the given one, else the last that it drove, else the run's.

    Those of a pair have the names that `RealArm.named` gives; the last driven pair is not known.
    """
    note, driven = _arm_note(run, actor), arm or arm_of(run)
    if note.exists() and arm is None and (driven is None or not driven.is_pair):
        lines = read_bounded(note, _MAX_NOTE_BYTES).decode(errors="replace").splitlines()
        if len(lines) == 2:  # older versions wrote another format
            return {actor: GuardedArm(lines[0], Path(lines[1]))}
    return arms_behind_guards(run, [actor], arm)


def actor_names(run: RunFolder) -> list[str]:
    """Return the names of the actors that a run starts."""
    return [f"actor{index}" for index in range(run.config.actors)]


def check_one_arm(config: TrainConfig) -> None:
    """Raise `BadInput` when several actors would drive one real arm."""
    if config.actors > 1 and is_real(config.robot):
        raise BadInput(f"actors: {config.actors}: a real arm has one; `serl up` starts several")


def all_processes(run: RunFolder) -> list[ProcessSpec]:
    """Return the learner and all actors: the list that supervisor and launch files share.

    Raises:
        BadInput: several actors would drive one real arm.
    """
    check_one_arm(run.config)
    actors = [actor_processes(run, name) for name in actor_names(run)]
    return [*learner_processes(run), *(spec for specs in actors for spec in specs)]


def graph_processes(run: RunFolder, graph: GraphConfig) -> list[ProcessSpec]:
    """Return the processes of a graph file, for `serl up` and for a launch file.

    Raises:
        BadInput: the run's settings and the robots of the file do not agree.
    """
    config, specs = run.config, learner_processes(run) if graph.learner else []
    for robot in graph.robots:
        both_real = is_real(robot.profile) and is_real(config.robot)
        if robot.actor and robot.profile != config.robot and not both_real:
            requested, own = robot.profile or "null", config.robot or "null"
            raise BadInput(f"robots.{robot.name}.profile: {requested}, and {run.path} drives {own}")
        if robot.actor:
            specs += actor_processes(run, robot.name, real_arm_of(robot))
        elif robot.profile == "sim":
            sim, guard = arm_processes(run, robot.name)
            specs += [sim, guard] if robot.guard else [sim]
        elif robot.guard and (arm := real_arm_of(robot)) is not None:
            specs += guard_processes(run, robot.name, arm)
    if (console := graph.console) is not None:
        seen = next(robot for robot in graph.robots if robot.name == console.robot)
        others = {
            robot.name: real_arm_of(robot)
            for robot in graph.robots
            if robot.actor and robot != seen
        }
        arm = real_arm_of(seen)
        specs += console_processes(run, seen.name, console.port, arm, console.host, others)
    return specs


def real_arm_of(robot: RobotEntry) -> RealArm | None:
    """Return the real arm that an entry of a graph file describes; None without one."""
    if robot.profile is None or not is_real(robot.profile):
        return None
    return RealArm(robot.profile, robot.namespace)


def ends_with(graph: GraphConfig) -> frozenset[str]:
    """Return the processes whose end ends the graph; empty when it runs until it is stopped."""
    return frozenset({"learner"} if graph.learner else graph.actors)


@contextmanager
def run_processes(run: RunFolder, specs: Sequence[ProcessSpec]) -> Iterator[Supervisor]:
    """Run processes until the block is left, then stop them in order.

    Raises:
        BadInput: ROS 2 is missing, no ROS domain is free, the run has a learner already, or another
            process runs processes of it, also between two starts of its learner.
    """
    require_ros()
    foreign = any(_ARM in spec.arguments for spec in specs)  # with a third-party driver
    if foreign or (arm_of(run) is not None and run.config.network.local):  # actors join later
        use_driver_domain()
    with (
        FileLock(run.path / PROCESSES_LOCK, f"the run {run.path}"),
        _domain_for(run) as domain,
    ):
        prepare(run, domain.id)
        if foreign:
            meet_others(run.path)
        with _supervised(run, specs, domain.id) as supervisor:
            yield supervisor


def _domain_for(run: RunFolder) -> Domain:
    """Return a free domain for a run: that of its last start, if it was started."""
    before = None
    with suppress(BadInput):
        before = started_domain_id(run) if run.config.network.local else None
    return free_domain(network=run.config.network, before=before)


def use_driver_domain() -> None:
    """Put processes that are started from here into `ROS_DOMAIN_ID`, or ROS's default domain 0."""
    os.environ["ROS_DOMAIN_ID"] = os.environ.get("ROS_DOMAIN_ID") or "0"


def prepare(run: RunFolder, domain_id: int) -> None:
    """Prepare the run folder and shared memory for processes of a run in a ROS domain.

    Raises:
        BadInput: the run has a learner already.
    """
    parts = run.parts().values()
    for part in parts:  # fails while a learner runs; the learner process takes the lock
        part.lock_learner().close()
    clean_shared_memory()
    for path in {run.path, *(part.path for part in parts)}:
        choose_transport(path)
    write_atomic(run.path / _DOMAIN, str(domain_id).encode())


@contextmanager
def run_extra_processes(run: RunFolder, specs: Sequence[ProcessSpec]) -> Iterator[Supervisor]:
    """Run processes until the block is left, in addition to those of `run_processes`.

    Raises:
        BadInput: ROS 2 is missing, or no ROS domain is free.
    """
    require_ros()
    clean_shared_memory()
    choose_transport(run.path)
    if arm_of(run) is not None:
        use_driver_domain()
    with (
        _domain_for(run) as domain,
        _supervised(run, specs, domain.id) as supervisor,
    ):
        yield supervisor


@contextmanager
def run_in_domain(run: RunFolder, specs: Sequence[ProcessSpec]) -> Iterator[Supervisor]:
    """Run processes in the domain of a run that was started, on this host or on another.

    Raises:
        BadInput: ROS 2 is missing, or the run was never started.
    """
    require_ros()
    with _supervised(run, specs, started_domain_id(run)) as supervisor:
        yield supervisor


def join_here(run: RunFolder) -> None:
    """Put this process's nodes into the domain of a run; raises the errors of `run_in_domain`."""
    require_ros()
    os.environ["ROS_DOMAIN_ID"] = str(started_domain_id(run))


def started_domain_id(run: RunFolder) -> int:
    """Return the ROS domain in which a run was started; raises `BadInput` unless it was."""
    if not run.config.network.local:
        choose_transport(run.path)  # of this host alone
        return free_domain(network=run.config.network).id
    if not was_started(run):
        command = f"serl learner {shlex.quote(str(run.path))}"
        raise BadInput(f"{run.path}: no learner was started yet: {command}")
    try:
        domain = read_bounded(run.path / _DOMAIN, _MAX_NOTE_BYTES).decode()
        return domain_id_of({"ROS_DOMAIN_ID": domain})
    except UnicodeDecodeError:
        raise BadInput(f"{run.path / _DOMAIN}: damaged; expected the number of a domain") from None


def was_started(run: RunFolder) -> bool:
    """Check whether the run's ROS domain is known: from its settings, or from a learner's start."""
    return not run.config.network.local or (run.path / _DOMAIN).exists()


@contextmanager
def _supervised(
    run: RunFolder, specs: Sequence[ProcessSpec], domain_id: int
) -> Iterator[Supervisor]:
    supervisor = Supervisor(specs, environment(domain_id, run.path, run.config.network), run.log)
    try:
        supervisor.start()
        with _within(domain_id):
            yield supervisor
    except KeyboardInterrupt:
        with suppress(KeyboardInterrupt):  # one more: the processes are saving still
            supervisor.stop()
        if unsaved := supervisor.stop():
            raise SerlError(f"interrupted; not all is saved: {'; '.join(unsaved)}") from None
        raise
    finally:
        supervisor.stop()


@contextmanager
def _within(domain_id: int) -> Iterator[None]:
    """Put this process's nodes, and processes that the block starts, into a ROS domain."""
    before = os.environ.get("ROS_DOMAIN_ID")
    os.environ["ROS_DOMAIN_ID"] = str(domain_id)
    try:
        yield
    finally:
        os.environ.pop("ROS_DOMAIN_ID")
        if before is not None:
            os.environ["ROS_DOMAIN_ID"] = before
