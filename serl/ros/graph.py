"""The processes of a run, started in a ROS domain of their own."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from serl.errors import BadInput
from serl.files import write_atomic
from serl.ros.environment import (
    choose_transport,
    clean_shared_memory,
    domain_id_of,
    environment,
    free_domain,
    ros_status,
)
from serl.run_folder import RunFolder
from serl.supervisor import ProcessSpec, Supervisor

_DOMAIN = "ros_domain"


def require_ros() -> None:
    """Raise `BadInput` unless ROS 2 can be used, in a domain that is free or was asked for."""
    if problem := ros_status().problem:
        raise BadInput(problem)
    free_domain().close()


def learner_processes(run: RunFolder) -> list[ProcessSpec]:
    """The learner of a run."""
    return [ProcessSpec("learner", "serl.ros.learner_node", ("--run", str(run.path)))]


def actor_processes(run: RunFolder, name: str) -> list[ProcessSpec]:
    """An actor and the link beside it."""
    arguments = ("--run", str(run.path), "--actor", name)
    return [
        ProcessSpec(f"link-{name}", "serl.ros.link_node", arguments, restarts=5, ends=False),
        ProcessSpec(name, "serl.ros.actor_node", arguments, restarts=5),
    ]


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


@contextmanager
def started(run: RunFolder, specs: Sequence[ProcessSpec]) -> Iterator[Supervisor]:
    """Run processes until the block is left, then stop them in order.

    Raises:
        BadInput: ROS 2 is missing, no ROS domain is free, or the run has a learner already.
    """
    require_ros()
    run.lock_learner().close()  # the learner process takes it; whoever comes second changes nothing
    clean_shared_memory()
    choose_transport(run.path)
    with free_domain(network=run.config.network) as domain:
        write_atomic(run.path / _DOMAIN, str(domain.id).encode())
        with _supervised(run, specs, domain.id) as supervisor:
            yield supervisor


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
    with _supervised(run, specs, _started_domain_id(run)) as supervisor:
        yield supervisor


def join_here(run: RunFolder) -> None:
    """This process is about to join a run that has been started; raises as `joined`."""
    require_ros()
    os.environ["ROS_DOMAIN_ID"] = str(_started_domain_id(run))


def _started_domain_id(run: RunFolder) -> int:
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
