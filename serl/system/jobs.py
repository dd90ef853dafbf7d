"""Commands that run beside each other, a few at a time, each with a log file."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from serl.system.supervisor import last_line

GRACE_S = 60.0
"""Time for terminated commands to save and end, after which they are killed."""

_POLL_S = 0.2


class Job(NamedTuple):
    """A command with the name in its messages.

    Attributes:
        log: file to which its output is appended.
        without: environment variables that it does not inherit.
    """

    name: str
    command: tuple[str, ...]
    log: Path
    without: tuple[str, ...] = ()

    def start(self) -> subprocess.Popen[bytes]:
        """Start the command in a session of its own, which no Ctrl-C at the terminal reaches."""
        inherited = {name: v for name, v in os.environ.items() if name not in self.without}
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            return subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**inherited, "SERL_PARENT": str(os.getpid())},
                start_new_session=True,
            )

    def last_line(self) -> str:
        """Return the last line of the log."""
        return last_line(self.log)


def run_jobs(
    jobs: Iterable[Job],
    count: int,
    on_start: Callable[[Job], object],
    on_end: Callable[[Job, int], object],
) -> None:
    """Run jobs, at most `count` at a time; stop those that run when it is interrupted.

    Args:
        jobs: jobs in the order of starting; the next one is taken when there is room for it.
        count: number of jobs at a time.
        on_start: called with each job before it starts.
        on_end: called with each job and its exit code.

    Raises:
        KeyboardInterrupt: Ctrl-C; all jobs have been terminated and have ended.
    """
    waiting, running = iter(jobs), dict[Job, subprocess.Popen[bytes]]()
    try:
        while True:
            while len(running) < count and (job := next(waiting, None)) is not None:
                on_start(job)
                running[job] = job.start()
            if not running:
                return
            time.sleep(_POLL_S)
            for job in [job for job, process in running.items() if process.poll() is not None]:
                on_end(job, running.pop(job).returncode)
    finally:
        stop(list(running.values()))


def stop(processes: list[subprocess.Popen[bytes]], grace_s: float = GRACE_S) -> None:
    """Terminate processes, and kill those that have not ended after `grace_s`.

    The signal is not that of Ctrl-C, which all children of a shell's background job ignore.
    """
    for process in processes:
        with suppress(ProcessLookupError):
            process.terminate()
    deadline_s = time.monotonic() + grace_s
    for process in processes:
        try:
            process.wait(max(0.0, deadline_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
