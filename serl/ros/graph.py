"""The processes of a run, started in a ROS domain of their own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from serl.errors import BadInput
from serl.files import write_atomic
from serl.ros.environment import clean_shared_memory, environment, free_domain, ros_status
from serl.run_folder import RunFolder
from serl.supervisor import ProcessSpec, Supervisor

_DOMAIN = "ros_domain"


def learner_processes(run: RunFolder) -> list[ProcessSpec]:
    """The learner of a run."""
    return [ProcessSpec("learner", "serl.ros.learner_node", ("--run", str(run.path)))]


def actor_processes(run: RunFolder, name: str) -> list[ProcessSpec]:
    """An actor and the link beside it."""
    arguments = ("--run", str(run.path), "--actor", name)
    return [
        ProcessSpec(f"link-{name}", "serl.ros.link_node", arguments, restarts=5),
        ProcessSpec(name, "serl.ros.actor_node", arguments, restarts=5),
    ]


def all_processes(run: RunFolder) -> list[ProcessSpec]:
    """A learner and all actors: the one list that supervisor and launch files share."""
    actors = [actor_processes(run, f"actor{index}") for index in range(run.config.actors)]
    return [*learner_processes(run), *(spec for specs in actors for spec in specs)]


@contextmanager
def started(run: RunFolder, specs: Sequence[ProcessSpec]) -> Iterator[Supervisor]:
    """Run processes until the block is left, then stop them in order.

    Raises:
        BadInput: ROS 2 is missing, or no ROS domain is free.
    """
    if problem := ros_status().problem:
        raise BadInput(problem)
    clean_shared_memory()
    with free_domain() as domain:
        write_atomic(run.path / _DOMAIN, str(domain.id).encode())
        with _supervised(run, specs, domain.id) as supervisor:
            yield supervisor


@contextmanager
def joined(run: RunFolder, specs: Sequence[ProcessSpec]) -> Iterator[Supervisor]:
    """The same in the domain of a run that has been started.

    Raises:
        BadInput: ROS 2 is missing, or the run was never started.
    """
    if problem := ros_status().problem:
        raise BadInput(problem)
    file = run.path / _DOMAIN
    if not file.exists():
        raise BadInput(f"{run.path}: no learner was started yet: serl learner {run.path}")
    with _supervised(run, specs, int(file.read_text())) as supervisor:
        yield supervisor


@contextmanager
def _supervised(
    run: RunFolder, specs: Sequence[ProcessSpec], domain_id: int
) -> Iterator[Supervisor]:
    supervisor = Supervisor(specs, environment(domain_id, run.path), run.log)
    try:
        supervisor.start()
        yield supervisor
    finally:
        supervisor.stop()
