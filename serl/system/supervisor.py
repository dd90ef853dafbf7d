"""The supervisor of a run's processes: starts them, restarts crashed ones or ends the run.

This supervisor and the launch files of ROS 2 use the same list of process specifications.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from serl.errors import BadInput, SerlError
from serl.system.json_fields import printable

BAD_INPUT = 2
"""Exit code of a process whose input is unusable; a restart would not help."""

SAVING_S = 20.0
"""Longest time in which a process saves its work when it is stopped, s."""

_TAIL_BYTES = 4096
_AUTOGROUP_TRIES = 5


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """One process of a run.

    Attributes:
        name: name of the process in messages, and of its log file.
        module: Python module run by `python -m`.
        arguments: command-line arguments of the module.
        restarts: number of restarts after crashes.
        ends: whether exit code 0 means that the work is done; otherwise it leads to a restart, too.
        nice: niceness of the process, as for the command `nice`, and of its session; a higher
            priority is skipped where it is not permitted.
        node: full name of the process's node below the run's namespace if ROS 2 manages its
            lifecycle; empty for a process without a managed node.
        saves: whether the process saves its work when it is stopped; it then has `SAVING_S` to end.
    """

    name: str
    module: str
    arguments: tuple[str, ...] = ()
    restarts: int = 3
    ends: bool = True
    nice: int = 0
    node: str = ""
    saves: bool = False


@dataclass
class _Child:
    spec: ProcessSpec
    process: subprocess.Popen[bytes]
    log: IO[bytes]


@dataclass
class Supervisor:
    """The supervisor of the processes of one run.

    Attributes:
        specs: processes to run, in the order of starting; they are stopped in the reverse order.
        environment: environment variables of the processes.
        logs: folder of one log file per process.
        events: restarts and kills so far, one line each.
    """

    specs: Sequence[ProcessSpec]
    environment: Mapping[str, str]
    logs: Path
    events: list[str] = field(default_factory=list)
    _children: dict[str, _Child] = field(default_factory=dict)
    _crashes: Counter[str] = field(default_factory=Counter)
    _terminated: set[int] = field(default_factory=set)  # processes

    def start(self) -> None:
        """Start every process."""
        self.logs.mkdir(parents=True, exist_ok=True)
        for spec in self.specs:
            self._start(spec)

    def finished(self, name: str) -> bool:
        """Return whether the process ended by itself with exit code 0."""
        return self._children[name].process.poll() == 0

    def states(self) -> dict[str, str]:
        """Return the state of each process in words, by name."""
        return {name: _state(child.process.poll()) for name, child in self._children.items()}

    def pids(self) -> dict[str, int]:
        """Return the process ids by name."""
        return {name: child.process.pid for name, child in self._children.items()}

    def check(self) -> None:
        """Restart the processes that crashed.

        Raises:
            BadInput: a process refused its input; a restart would not help.
            SerlError: a process crashed more often than its `restarts` allow.
        """
        for name, child in list(self._children.items()):
            code = child.process.poll()
            if code is None or (code == 0 and child.spec.ends):
                continue
            self._crashes[name] += 1
            why = _state(code)
            if code == BAD_INPUT:
                raise BadInput(f"{name}: {self._last_line(name)}")
            if self._crashes[name] > child.spec.restarts:
                raise SerlError(f"{name} {why}: {self._last_line(name)}")
            self.events.append(f"{name} {why}: started again ({self._last_line(name)})")
            self._start(child.spec)

    def stop(self, grace_s: float = 4.0) -> list[str]:
        """Terminate all processes in reverse order of starting; kill those left after `grace_s`.

        The signal is not that of Ctrl-C, which children of a background job ignore at first. A
        process gets it once: a second one would end the process before it has saved its work.

        Returns:
            A line for each process that did not save its work, at this call or an earlier one.
        """
        running = [c for c in reversed(self._children.values()) if c.process.poll() is None]
        for child in running:
            if child.process.pid not in self._terminated:
                self._terminated.add(child.process.pid)
                child.process.terminate()
        began_s = time.monotonic()
        for child in running:
            name, limit_s = child.spec.name, SAVING_S if child.spec.saves else grace_s
            try:
                child.process.wait(max(0.0, began_s + limit_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                child.process.kill()
                child.process.wait()
                self.events.append(f"{name} did not stop in {limit_s:g} s: killed")
        for child in self._children.values():
            child.log.close()
        return [
            f"{name} {_state(child.process.returncode)}: {self._last_line(name)}"
            for name, child in reversed(self._children.items())
            if child.spec.saves and child.process.pid in self._terminated
            # Without a handler of the signal yet, it had nothing to save.
            if child.process.returncode not in (0, -signal.SIGTERM)
        ]

    def _start(self, spec: ProcessSpec) -> None:
        if (before := self._children.get(spec.name)) is not None:
            before.log.close()
        log = (self.logs / f"{spec.name}.log").open("ab")
        process = subprocess.Popen(
            [sys.executable, "-m", spec.module, *spec.arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**self.environment, "SERL_PARENT": str(os.getpid())},
            start_new_session=True,  # a Ctrl-C reaches the supervisor alone, which stops in order
        )
        if spec.nice:
            _set_niceness(process.pid, spec.nice)
        self._children[spec.name] = _Child(spec, process, log)

    def _last_line(self, name: str) -> str:
        return last_line(self.logs / f"{name}.log")


def _set_niceness(pid: int, nice: int) -> None:
    """Set the niceness of a process that leads a session, and that of its session.

    A kernel with autogroups (see sched(7)) applies the niceness of a process only within its
    session. It lets ordinary users set one session in each tenth of a second.
    """
    with suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, pid, nice)
    for _ in range(_AUTOGROUP_TRIES):
        try:
            Path(f"/proc/{pid}/autogroup").write_text(str(nice))
        except BlockingIOError:
            time.sleep(0.11)
        except OSError:  # not permitted, or a kernel without autogroups
            return
        else:
            return


def last_line(log: Path) -> str:
    """Return the last line of a log file, safe to print; a reference to the file if it is empty."""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - _TAIL_BYTES))
        lines = file.read().decode(errors="replace").strip().splitlines()
    return printable(lines[-1]) if lines else f"see {log}"


def is_supervised() -> bool:
    """Return whether this process was started by a supervisor."""
    return "SERL_PARENT" in os.environ


def is_orphaned() -> bool:
    """Return whether this process was started by a supervisor that is gone."""
    return is_supervised() and int(os.environ["SERL_PARENT"]) != os.getppid()


def _state(code: int | None) -> str:
    if code is None:
        return "running"
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return "finished" if code == 0 else f"ended with exit code {code}"
