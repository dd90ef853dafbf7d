"""A line on the terminal that says how far a piece of work is, and how long the rest takes."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TextIO

from serl.errors import SerlError
from serl.guard.latch import GuardedArm
from serl.runs.folder import RunFolder
from serl.system.terminal import Typed, TypedNoMore


class Countdown:
    """Called after each part of the work, with its number and its loss.

    On a terminal the line is written over itself, and ends with the work; elsewhere nothing is
    written.

    Args:
        part: what the work is made of, such as "epoch".
        total: how many of them.
        stream: where it is told; standard error if None.
        clock: seconds.
    """

    def __init__(
        self,
        part: str,
        total: int,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._part, self._total = part, total
        self._stream, self._clock = stream or sys.stderr, clock
        self._first: tuple[int, float] | None = None

    def __call__(self, number: int, loss: float) -> None:
        """Tell of a part that is done."""
        now_s = self._clock()
        first, began_s = self._first = self._first or (number, now_s)
        if not self._stream.isatty():
            return
        left = ""
        if number > first:  # the first one is slower: it warms up
            left_s = (now_s - began_s) / (number - first) * (self._total - number)
            left = f", {left_s // 60:.0f}:{left_s % 60:02.0f} left"
        text = f"{self._part} {number} of {self._total}, loss {loss:.4f}{left}"
        end = "\n" if number == self._total else ""
        print(f"\r{text:<60}", end=end, file=self._stream, flush=True)


Waiting = Mapping[str, str]
"""What an actor waits for a person to do, by its name; nothing of those that do not wait."""

_SOON_S = 1.0
"""What is over before that is not worth a person's attention."""


@contextmanager
def at_the_terminal(
    run: RunFolder, arms: Mapping[str, GuardedArm]
) -> Iterator[Callable[[], Waiting]]:
    """What to call again and again while processes of a run are up; it never waits for a person.

    It returns what each actor waits for a person to do.

    Args:
        run: whose domain this process is in.
        arms: arms behind guards, by the actor that drives each; without any nobody
            is asked.
    """
    if not arms:
        yield dict
        return
    from serl.ros.people.attendant import Attendant  # rclpy: once it is known to be there

    with Attendant(run, arms) as attendant:
        yield Terminal(attendant).serve


class Terminal:
    """Asks, and hears the answer, without waiting for it.

    Args:
        attendant: see `serl.ros.people.attendant`; knows what to ask, and does what is said.
        now_s: a monotonic clock.
    """

    def __init__(self, attendant: Any, now_s: Callable[[], float] = time.monotonic) -> None:
        self._attendant, self._now_s, self._typed = attendant, now_s, Typed()
        self._asked = self._hindrance = self._told = ""
        self._since_s, self._deserted = 0.0, False

    def serve(self) -> Waiting:
        """Called again and again; a question that nobody here can answer waits for other means.

        Returns:
            What each actor waits for.

        Raises:
            KeyboardInterrupt: Ctrl-C.
        """
        if self._attendant.asked_to_end:
            raise KeyboardInterrupt
        question = self._attendant.question()
        if not question:
            self._tell_hindrance()
        elif question != self._asked:
            self._typed.drop()  # what was typed before it is no answer
            _say(question)
            self._told, self._deserted = "", False
        elif not self._deserted and (line := self._line()) is not None:
            self._answer(line)
            question = ""
        self._asked = question
        waiting: Mapping[str, str] = self._attendant.waiting(heard=not self._deserted)
        return waiting

    def _line(self) -> str | None:
        try:
            return self._typed.line()
        except TypedNoMore:
            self._deserted = True
            _say(f"nobody is at this terminal: it waits for {self._attendant.means()}")
            return None

    def _answer(self, line: str) -> None:
        if line:
            _say(f"{line!r}: Enter alone is a yes")
            return
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


def _say(text: str) -> None:
    print(text, flush=True)  # noqa: T201
