"""The person at the terminal beside real arms: asked what nothing but a person may do."""

from __future__ import annotations

import select
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from serl.errors import SerlError
from serl.run_folder import RunFolder


@contextmanager
def at_the_terminal(run: RunFolder, arms: Mapping[str, str]) -> Iterator[Callable[[], None]]:
    """What to call again and again while processes of a run are up; it never waits.

    Args:
        run: whose domain this process is in.
        arms: namespaces of real arms, by the actor that drives each; without any nobody is asked.
    """
    if not arms:
        yield lambda: None
        return
    from serl.ros.attendant import Attendant  # rclpy: once it is known to be there

    with Attendant(run, arms) as attendant:
        yield _Terminal(attendant).serve


class _Terminal:
    """Asks, and hears the answer, without waiting for it.

    Args:
        attendant: see `serl.ros.attendant`; knows what to ask, and does what is said.
    """

    def __init__(self, attendant: Any) -> None:
        self._attendant, self._asked = attendant, ""

    def serve(self) -> None:
        """Called again and again.

        Raises:
            SerlError: there is a question, and nobody who could answer.
            KeyboardInterrupt: Ctrl-C.
        """
        if self._attendant.asked_to_end:
            raise KeyboardInterrupt
        question = self._attendant.question()
        if question and question != self._asked:
            print(question, flush=True)  # noqa: T201
        self._asked = question
        if question and select.select([sys.stdin], [], [], 0.0)[0]:
            if not sys.stdin.readline():
                raise SerlError(f"nobody is at the terminal: {question}")
            print(self._attendant.answer(), flush=True)  # noqa: T201
            self._asked = ""
