"""`serl` in a process of its own, with a person at its terminal."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from serl.ros.testing.processes import eventually

LIMIT_S = 120.0


class Terminal:
    """A command, what it has said, and who answers."""

    def __init__(self, folder: Path, *words: object) -> None:
        self.folder = folder
        self._output = folder / f"{words[0]}.out"
        self.process = subprocess.Popen(
            [sys.executable, "-m", "serl.cli.main", *map(str, words)],
            cwd=folder,
            env={**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200", "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.PIPE,
            stdout=self._output.open("wb"),
            stderr=subprocess.STDOUT,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self.process.poll() is None:
            self.interrupt()

    @property
    def output(self) -> str:
        return self._output.read_text()

    def until(self, text: str) -> None:
        eventually(lambda: self.process.poll() is not None or text in self.output, LIMIT_S)
        assert text in self.output, self.output

    def press_enter(self) -> None:
        self.say("")

    def say(self, answer: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{answer}\n")
        self.process.stdin.flush()

    def converse(self, answers: Mapping[str, str]) -> None:
        """Answer each question by the first of its ends that fits, until the command is done."""
        heard = 0

        def done() -> bool:
            nonlocal heard
            said = self.output
            for end, answer in answers.items():
                if len(said) > heard and said.rstrip(" \n").endswith(end):
                    heard = len(said)
                    self.say(answer)
                    break
            return self.process.poll() is not None

        eventually(done, LIMIT_S)

    def interrupt(self) -> int:
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(30)
