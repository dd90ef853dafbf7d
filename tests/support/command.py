"""A program, such as a `serl` command, in a process whose output a test reads and answers."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Self

import psutil

from serl.ros.testing.processes import eventually
from serl.runs.folder import RunFolder

from .preloaded import is_server

LIMIT_S = 240.0
SERL = (sys.executable, "-m", "serl.cli.main")


class Program:
    """Process in a session of its own, interrupted when its context is left.

    Args:
        words: the command.
        output: file of the standard output and error; its folder is the working directory.
        environment: environment variables; None for those of this process.
    """

    def __init__(
        self, words: Sequence[str], output: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        variables = dict(os.environ if environment is None else environment)
        variables |= {"OMP_NUM_THREADS": "1", "COLUMNS": "200", "PYTHONUNBUFFERED": "1"}
        self.path = output
        with output.open("wb") as file:
            self.process = subprocess.Popen(
                words,
                cwd=output.parent,
                env=variables,
                stdin=subprocess.PIPE,
                stdout=file,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        if self.is_running:
            self.interrupt(group=True)

    @property
    def output(self) -> str:
        """All output so far."""
        return self.path.read_text()

    @property
    def is_running(self) -> bool:
        """Whether the process is still running."""
        return self.process.poll() is None

    def until(self, wanted: str | Callable[[], object], limit_s: float = LIMIT_S) -> None:
        """Block until a text is printed or a condition holds; fail if the process ends earlier."""

        def is_met() -> object:
            return wanted in self.output if isinstance(wanted, str) else wanted()

        eventually(lambda: not self.is_running or is_met(), limit_s, lambda: self.output)
        assert is_met(), self.output

    def say(self, line: str = "") -> None:
        """Send a line to the standard input."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def converse(self, answers: Mapping[str, str]) -> None:
        """Answer each prompt, recognised by its last words, until the process ends."""
        answered = 0

        def is_over() -> bool:
            nonlocal answered
            text = self.output
            for end, answer in answers.items():
                if len(text) > answered and text.rstrip(" \n").endswith(end):
                    answered = len(text)
                    self.say(answer)
                    break
            return not self.is_running

        eventually(is_over, LIMIT_S, lambda: self.output)

    def interrupt(self, number: signal.Signals = signal.SIGINT, group: bool = False) -> int:
        """Send a signal to the process, or to its group; return the exit code."""
        if group:
            os.killpg(self.process.pid, number)
        else:
            self.process.send_signal(number)
        return self.wait()

    def wait(self, limit_s: float = LIMIT_S) -> int:
        """Block until the process ends; return the exit code."""
        eventually(lambda: not self.is_running, limit_s, lambda: self.output)
        return int(self.process.returncode)

    def succeed(self, limit_s: float = 2.5 * LIMIT_S) -> str:
        """Block until the process ends; fail unless it succeeded; return its output."""
        assert self.wait(limit_s) == 0, self.output
        return self.output

    def assert_trials_ended(self) -> None:
        """Fail unless a command with trials succeeded, or says that void ones ended them.

        Pictures and poses are late on a busy machine, which makes trials void.
        """
        expected = 1 if "ended after" in self.output else 0
        assert self.process.returncode == expected, self.output

    def run_folder(self) -> RunFolder:
        """Block until the folder of the run is printed, and return the run."""
        self.until(lambda: re.search(r"^run: .+\n", self.output, re.MULTILINE))
        return RunFolder.open(self.path.parent / self.output.partition("run: ")[2].split("\n")[0])

    def children(self) -> list[psutil.Process]:
        """Return all descendants of the process."""
        below = psutil.Process(self.process.pid).children(recursive=True)
        return [process for process in below if not is_server(process)]

    def child(self, *words: str) -> psutil.Process:
        """Block until a descendant's command line contains all `words`, and return it."""
        found: list[psutil.Process] = []

        def is_found() -> bool:
            found[:] = [p for p in self.children() if set(words) <= set(_command_line(p))]
            return bool(found)

        eventually(is_found)
        return found[0]


class Command(Program):
    """`serl` command in a folder; `settings` become options with a value."""

    def __init__(self, folder: Path, *words: object, **settings: object) -> None:
        dotted = [f"--{name}={value}" for name, value in settings.items()]
        output = folder / f"{words[0]}.out"
        super().__init__([*SERL, *map(str, words), *dotted], output)


def _command_line(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []
