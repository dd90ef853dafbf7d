"""Questions to the operator at the terminal of a command, and the answers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from serl.errors import SerlError
from serl.guard.latch import GuardedArm
from serl.runs.config import TrainConfig
from serl.runs.folder import RunFolder
from serl.runs.guard_setup import describe_cut_boxes
from serl.system.terminal import TerminalClosed, TerminalInput

if TYPE_CHECKING:
    from serl.teleop.human_input import HumanInput

Waiting = Mapping[str, str]
"""Requested operator action by actor name; without actors that are not waiting."""

_SOON_S = 1.0
"""Duration below which a hindrance is not reported."""

_HELD_S = 0.8
"""Time after a question, or after an Enter, in which an Enter is a repetition of a key held down.

Most systems wait up to 0.66 s before the first repetition."""


@contextmanager
def at_the_terminal(
    run: RunFolder, arms: Mapping[str, GuardedArm]
) -> Iterator[Callable[[], Waiting]]:
    """Provide a function that serves questions to the operator; to be called repeatedly.

    It never blocks, and returns the operator action that each actor is waiting for.

    Args:
        run: run in whose ROS domain this process is.
        arms: arms behind guards, by the actor that drives each; if empty, no questions are asked.
    """
    if not arms:
        yield dict
        return
    from serl.ros.people.attendant import Attendant  # rclpy: only for arms behind guards

    with Attendant(run, arms) as attendant:
        yield Terminal(attendant).serve


def print_cut_boxes(config: TrainConfig, robot: str | None) -> None:
    """Print the boxes of a real arm's guards that are smaller than the task's box."""
    for line in describe_cut_boxes(config, robot):
        _print_line(line)


class Terminal:
    """Non-blocking questions and answers at the terminal.

    Args:
        attendant: see `serl.ros.people.attendant`; supplies questions and executes answers.
        now_s: monotonic clock, s.
    """

    def __init__(self, attendant: Any, now_s: Callable[[], float] = time.monotonic) -> None:
        self._attendant, self._now_s, self._typed = attendant, now_s, TerminalInput()
        self._printed_question = self._hindrance = self._printed_hindrance = ""
        self._since_s, self._entered_s = 0.0, 0.0
        self._deserted = self._hinted = False

    def serve(self) -> Waiting:
        """Print new questions and process input; call repeatedly.

        After the end of standard input, questions must be answered by the attendant's other means.

        Returns:
            The operator action that each actor is waiting for.

        Raises:
            KeyboardInterrupt: Ctrl-C.
        """
        if self._attendant.is_interrupted:
            raise KeyboardInterrupt
        question = self._attendant.question()
        if not question:
            self._print_hindrance()
        elif question != self._printed_question:
            self._typed.drop()  # earlier input is no answer
            _print_line(question)
            self._printed_hindrance, self._deserted, self._hinted = "", False, False
            self._entered_s = self._now_s()
        elif not self._deserted and (line := self._line()) is not None and not self._is_held():
            self._answer(line)
            question = ""
        self._printed_question = question
        waiting: Mapping[str, str] = self._attendant.waiting(can_answer=not self._deserted)
        return waiting

    def _line(self) -> str | None:
        try:
            return self._typed.line()
        except TerminalClosed:
            self._deserted = True
            _print_line(f"this terminal has no input: waiting for {self._attendant.means()}")
            return None

    def _is_held(self) -> bool:
        """Return whether a line comes too soon: one long press must not answer each question."""
        before_s, self._entered_s = self._entered_s, self._now_s()
        held = self._typed.is_keyboard and self._entered_s - before_s < _HELD_S
        if held:
            self._typed.drop()
            if not self._hinted:
                _print_line("too soon after the question or the last Enter: press Enter again")
            self._hinted = True
        return held

    def _answer(self, line: str) -> None:
        if line:
            _print_line(f"{line!r}: press Enter alone to confirm")
            return
        try:
            _print_line(self._attendant.answer())
        except SerlError as error:
            _print_line(str(error))

    def _print_hindrance(self) -> None:
        """Print a hindrance that cannot be resolved here, once, if it lasts `_SOON_S`."""
        if (hindrance := self._attendant.hindrance()) != self._hindrance:
            self._hindrance, self._since_s = hindrance, self._now_s()
        lasts = self._now_s() - self._since_s >= _SOON_S
        if hindrance and hindrance != self._printed_hindrance and lasts:
            _print_line(hindrance)
            self._printed_hindrance = hindrance


class HoldQuestions:
    """The question of a recording without a console: whether the robot may move again.

    `Terminal` asks it in place of the questions of an attendant.

    Args:
        human_input: the person's input, with the stop or pause that an answer ends.
    """

    is_interrupted = False

    def __init__(self, human_input: HumanInput) -> None:
        self._human_input = human_input

    def question(self) -> str:
        """Return the reason why the robot holds, and how to continue; empty while it may move."""
        reason = self._human_input.hold.reason
        return f"{reason}: Enter continues" if reason else ""

    def means(self) -> str:
        """Return the way to continue without a terminal: there is none."""
        return "Ctrl-C"

    def waiting(self, can_answer: bool) -> Waiting:
        """Return no actor: the recording waits in this process."""
        return {}

    def hindrance(self) -> str:
        """Return "": every answer succeeds."""
        return ""

    def answer(self) -> str:
        """End the stop and the pause; return the result."""
        self._human_input.hold.release()
        self._human_input.resume()
        return "take over to continue"


def _print_line(text: str) -> None:
    print(text, flush=True)
