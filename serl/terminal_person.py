"""The person at the terminal beside real arms: asked what nothing but a person may do."""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from serl.errors import SerlError
from serl.run_folder import RunFolder

_SOON_S = 1.0
"""What is over before that is not worth a person's attention."""


@contextmanager
def at_the_terminal(run: RunFolder, arms: Mapping[str, str]) -> Iterator[Callable[[], None]]:
    """What to call again and again while processes of a run are up; it never waits for a person.

    Args:
        run: whose domain this process is in.
        arms: namespaces of real arms, by the actor that drives each; without any nobody is asked.
    """
    if not arms:
        yield lambda: None
        return
    from serl.ros.attendant import Attendant  # rclpy: once it is known to be there

    with Attendant(run, arms) as attendant:
        yield Terminal(attendant).serve


class Terminal:
    """Asks, and hears the answer, without waiting for it.

    Args:
        attendant: see `serl.ros.attendant`; knows what to ask, and does what is said.
        now_s: a monotonic clock.
    """

    def __init__(self, attendant: Any, now_s: Callable[[], float] = time.monotonic) -> None:
        self._attendant, self._now_s = attendant, now_s
        self._asked = self._hindrance = self._told = ""
        self._since_s = 0.0

    def serve(self) -> None:
        """Called again and again.

        Raises:
            SerlError: there is a question, and nobody who could answer.
            KeyboardInterrupt: Ctrl-C.
        """
        if self._attendant.asked_to_end:
            raise KeyboardInterrupt
        question, typed = self._attendant.question(), _typed()
        if question and typed == b"":
            raise SerlError(f"nobody is at the terminal: {question}")
        if not question:
            self._tell_hindrance()
        elif question != self._asked:  # what was typed before it is no answer
            _say(question)
            self._told = ""
        elif typed and b"\n" in typed:
            self._answer()
            question = ""
        self._asked = question

    def _answer(self) -> None:
        try:
            _say(self._attendant.answer())
        except SerlError as error:
            _say(str(error))

    def _tell_hindrance(self) -> None:
        """Say once what a person cannot settle here, unless it is over soon."""
        if (hindrance := self._attendant.hindrance()) != self._hindrance:
            self._hindrance, self._since_s = hindrance, self._now_s()
        lasts = self._now_s() - self._since_s >= _SOON_S
        if hindrance and hindrance != self._told and lasts:
            _say(hindrance)
            self._told = hindrance


def _typed() -> bytes | None:
    """What was typed since; empty when nobody can type any more, None for nothing."""
    if sys.stdin is None:
        return b""
    descriptor = sys.stdin.fileno()
    return os.read(descriptor, 4096) if select.select([descriptor], [], [], 0.0)[0] else None


def _say(text: str) -> None:
    print(text, flush=True)  # noqa: T201
