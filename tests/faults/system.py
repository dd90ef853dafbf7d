"""Run of real processes: actors that log at a given rate, real links and a learner.

The learner is the real one but for its networks (`summing.py`); actors log random records instead
of driving a robot. So a kill costs seconds, not ten. Both keep books of their own (`books.py`),
against which the run is checked in the end; and what was learned, with all kills and resumes, must
be what an undisturbed learner learns from the same records.
"""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import psutil

from serl.log.episode_reader import episode_paths, read_records
from serl.log.recovery import recover
from serl.ros.environment import clean_shared_memory, environment, free_domain
from serl.runs.config import resolve
from serl.runs.folder import RunFolder
from serl.runs.task_setup import make_spec, make_task
from serl.runs.verify import verify
from serl.system.authentication import new_key
from serl.system.supervisor import ProcessSpec, Supervisor
from serl.types import Key

from ..ros.support.namespaces import ADDRESSES, Hosts
from .books import (
    accepted_book,
    appended_book,
    count_lines,
    enough_file,
    lines_of,
    lost_or_doubled,
    read_book,
)
from .records import STEPS
from .strace import ROOT
from .summing import check_resumes

LIMIT_S = 60.0
FEW = 20
"""Number of records after which progress is assumed."""

ALLOWED_GROWTH_MB = 50.0
"""Time limit of a process that has to keep unsent data on the disk."""

LEARNER = "learner"
SETTINGS = {
    "task": "reach",
    "demos": 0,
    "steps": 10**9,
    "log": {"min_free_bytes": 0},
    "agent": {"batch_size": 8, "utd": 1},
    "learner": {"checkpoint_every": 500},
}

_FOREVER = 1_000_000  # restarts


class System:
    """Running system of processes, created by `running`.

    Attributes:
        run: run folder, on the learner's host if there are several.
        far: run folder of the actors; differs from `run` only if they are on another host.
        actors: names of the actors.
        kills: number of process kills so far.
        losses: number of link losses so far.
    """

    def __init__(
        self, folder: Path, actors: int, rate_hz: float, domain: int, hosts: Hosts | None
    ) -> None:
        settings: dict[str, Any] = {**SETTINGS, "actors": actors}
        if hosts is not None:
            new_key(folder / "key")
            settings["network"] = {"hosts": ADDRESSES, "key_file": folder / "key"}
        self.run = self.far = RunFolder.create(folder, resolve(settings), datetime.now())
        if hosts is not None:
            elsewhere = folder / "elsewhere" / self.run.name
            self.far = RunFolder.open(Path(shutil.copytree(self.run.path, elsewhere)))
        self.spec = make_spec(make_task(self.run.config))
        self.actors = [f"actor{number}" for number in range(actors)]
        self.kills = self.losses = 0
        self._hosts = hosts
        self._lost: dict[str, float] = {}  # actors without a network and the end of each loss
        for run in (self.run, self.far):
            (run.path / "spec.json").write_text(self.spec.model_dump_json())
        environ = environment(domain, self.run.path)
        environ |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        specs = self._specs(rate_hz)
        if hosts is not None:
            specs = [_on(hosts.pids[spec.name != LEARNER], spec) for spec in specs]
        self.supervisor = Supervisor(specs, environ, self.run.log)

    def _specs(self, rate_hz: float) -> list[ProcessSpec]:
        here, there = str(self.run.path), str(self.far.path)
        specs = [ProcessSpec(LEARNER, "tests.faults.learner_process", (here,), _FOREVER)]
        for actor in self.actors:
            link, acting = ("--run", there, "--actor", actor), (there, actor, str(rate_hz))
            specs += [
                ProcessSpec(link_of(actor), "serl.ros.nodes.link", link, _FOREVER, ends=False),
                ProcessSpec(actor, "tests.faults.actor_process", acting, _FOREVER),
            ]
        return specs

    @property
    def names(self) -> list[str]:
        """Return the names of all processes."""
        return [spec.name for spec in self.supervisor.specs]

    def process(self, name: str) -> psutil.Process:
        """Return the current process of this name."""
        return psutil.Process(self.supervisor.pids()[name])

    def signal(self, name: str, number: signal.Signals) -> None:
        """Send a signal unless the process has ended."""
        if self.supervisor.states()[name] == "running":
            os.kill(self.supervisor.pids()[name], number)

    def kill(self, *names: str) -> None:
        """Send SIGKILL and wait for the processes to end; `until` restarts them."""
        for name in names:
            self.signal(name, signal.SIGKILL)
            self.kills += 1
        for name in names:
            while self.supervisor.states()[name] == "running":
                time.sleep(0.001)

    def hang(self, name: str, duration_s: float) -> None:
        """Suspend a process with SIGSTOP for a duration; the others continue."""
        self.signal(name, signal.SIGSTOP)
        self.rest(duration_s)
        self.signal(name, signal.SIGCONT)

    def lose(self, actor: str, duration_s: float) -> None:
        """Interrupt the link between an actor and the learner for a duration.

        With several hosts all actors lose the network; on one host the link process is stopped.
        """
        self.losses += 1
        self._lost[actor] = time.monotonic() + duration_s
        if self._hosts is not None:
            self._hosts.pull_cable()
        else:
            self.signal(link_of(actor), signal.SIGSTOP)

    @property
    def lost(self) -> list[str]:
        """Return the names of the actors that `lose` disconnects."""
        return list(self._lost) if self._hosts is None else self.actors if self._lost else []

    @property
    def stopped(self) -> list[str]:
        """Return the names of the actors whose links are stopped."""
        return list(self._lost) if self._hosts is None else []

    def rest(self, duration_s: float, restart: bool = True) -> None:
        """Let time pass; restart processes that ended if `restart` is set."""
        deadline_s = time.monotonic() + duration_s
        while time.monotonic() < deadline_s:
            if restart:
                self.supervisor.check()
            self._end_losses(time.monotonic())
            time.sleep(0.02)

    def _end_losses(self, now_s: float) -> None:
        for actor in [actor for actor, until_s in self._lost.items() if until_s <= now_s]:
            del self._lost[actor]
            if self._hosts is None:
                self.signal(link_of(actor), signal.SIGCONT)
            elif not self._lost:
                self._hosts.plug_cable()

    def until(
        self, condition: Callable[[], object], limit_s: float = LIMIT_S, restart: bool = True
    ) -> float:
        """Rest until the condition holds; return the seconds it took."""
        begin_s = time.monotonic()
        while not condition():
            waited_s = time.monotonic() - begin_s
            assert waited_s < limit_s, f"not within {limit_s:g} s: {self.tell()}"
            self.rest(0.05, restart)
        return time.monotonic() - begin_s

    def appended(self, actor: str) -> int:
        """Return the number of records the actor has noted as logged."""
        return count_lines(appended_book(self.far.path, actor))

    def accepted(self) -> int:
        """Return the number of records the learner has noted as accepted."""
        return count_lines(accepted_book(self.run.path))

    def total(self) -> int:
        """Return the number of records all actors have noted as logged."""
        return sum(map(self.appended, self.actors))

    def tell(self) -> str:
        """Return a readable summary of the progress."""
        states = ", ".join(f"{name} {state}" for name, state in self.supervisor.states().items())
        return f"{self.total()} appended, {self.accepted()} accepted; {states}"

    def finish(self, limit_s: float = LIMIT_S) -> None:
        """End all losses, end the actors and wait until the learner has all logged records."""
        self._end_losses(float("inf"))
        enough_file(self.far.path).touch()
        self.until(lambda: all(map(self.supervisor.finished, self.actors)), limit_s)
        expected = sum(len(self.logged(actor)) for actor in self.actors)
        self.until(lambda: self.accepted() >= expected, limit_s)

    def logged(self, actor: str) -> list[Key]:
        """Return the keys in an actor's log."""
        paths = episode_paths(self.far.episodes(actor))
        return [record.key for record in read_records(paths, self.spec)]

    def received(self, actor: str) -> list[str]:
        """Return the records of this actor that the learner accepted, as lines of its book."""
        lines = read_book(accepted_book(self.run.path))
        return [line for line in lines if line.split(" ")[0] == actor]

    def check_books(self) -> None:
        """Check, while processes run, that all records logged so far are accepted exactly once."""
        for actor in self.actors:
            appended = read_book(appended_book(self.far.path, actor))
            self.until(partial(self._has_reached, actor, appended[-1:]))
            assert not (wrong := lost_or_doubled(appended, self.received(actor))), wrong

    def _has_reached(self, actor: str, line: list[str]) -> bool:
        return self.received(actor)[-1:] >= line

    def check(self) -> int:
        """Stop all processes; check for lost or duplicated records; return the logged steps."""
        self.supervisor.stop()
        records = steps = 0
        for actor in self.actors:
            recover(self.far.episodes(actor))
            keys = self.logged(actor)
            logged = lines_of(keys).splitlines()
            appended = read_book(appended_book(self.far.path, actor))
            assert len(set(logged)) == len(logged), "duplicated in the log"
            assert not set(appended) - set(logged), "lost in the log"
            # A kill may come between an append and the actor's note.
            assert len(logged) - len(appended) <= self.kills, "never appended"
            received = self.received(actor)
            assert received == logged, _first_difference(received, logged)
            records += len(keys)
            steps += sum(key.index < STEPS for key in keys)
        assert len(read_book(accepted_book(self.run.path))) == records
        for path in {self.run.path, self.far.path}:
            report = verify(path)
            assert report.sound, report
        check_resumes(self.run)
        return steps


def _on(pid: int, spec: ProcessSpec) -> ProcessSpec:
    """Return the process specification moved to the host of process `pid`."""
    arguments = (str(pid), spec.module, *spec.arguments)
    return replace(spec, module="tests.faults.within", arguments=arguments)


def moves(count: Callable[[], int], by: int) -> Callable[[], bool]:
    """Return a condition that holds once a count has grown by `by`."""
    before = count()
    return lambda: count() >= before + by


def link_of(actor: str) -> str:
    """Return the name of an actor's link process."""
    return f"link-{actor}"


def _first_difference(found: list[str], expected: list[str]) -> str:
    pairs = zip(found, expected, strict=False)
    place = next((n for n, (one, other) in enumerate(pairs) if one != other), len(expected))
    return f"{len(found)} accepted, {len(expected)} logged; from {place} on: {found[place:][:2]}"


@contextmanager
def running(
    folder: Path, *, actors: int = 1, rate_hz: float = 200.0, hosts: Hosts | None = None
) -> Iterator[System]:
    """Start a system in a ROS domain of its own; end it when the block is left.

    Args:
        folder: empty folder.
        actors: number of actors.
        rate_hz: records per second of each actor; 0 for the maximum rate.
        hosts: the learner is on the first, the actors on the second; None for one host.
    """
    with free_domain() as domain, patch.dict(os.environ, {"ROS_DOMAIN_ID": str(domain.id)}):
        system = System(folder, actors, rate_hz, domain.id, hosts)
        try:
            system.supervisor.start()
            yield system
        finally:
            for name in system.names:
                system.signal(name, signal.SIGCONT)
            system.supervisor.stop()
            clean_shared_memory()
