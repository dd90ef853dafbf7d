"""Questions to the operator at a terminal: printing, confirmation and hindrances."""

from __future__ import annotations

import os
import pty
import sys
from collections.abc import Iterator, Mapping

import pytest

from serl.cli.terminal import Terminal
from serl.errors import SerlError

QUESTION = "estop: first start: Enter confirms that it is safe to continue"
ARMING = "the guard is disarmed: Enter arms it"


class FakeAttendant:
    """Source of questions and hindrances, like `serl.ros.people.attendant`."""

    def __init__(self) -> None:
        self.is_interrupted = False
        self.asks, self.hinders, self.refuses = "", "", ""
        self.answered: list[str] = []

    def question(self) -> str:
        return self.asks

    def means(self) -> str:
        return "the service /guard/ack"

    def hindrance(self) -> str:
        return self.hinders

    def waiting(self, can_answer: bool) -> dict[str, str]:
        return {"actor0": self.asks if can_answer else "call /guard/ack"} if self.asks else {}

    def answer(self) -> str:
        if self.refuses:
            raise SerlError(self.refuses)
        self.answered.append(self.asks)
        return "acknowledged"


class TerminalBench:
    """A terminal, its keyboard and its clock."""

    def __init__(self, keyboard: int) -> None:
        self.attendant, self.now_s, self._keyboard = FakeAttendant(), 0.0, keyboard
        self.waiting: Mapping[str, str] = {}
        self._terminal = Terminal(self.attendant, lambda: self.now_s)

    def type(self, text: str = "\n") -> None:
        self.now_s += 1.0  # an Enter before would be of a key held down
        os.write(self._keyboard, text.encode())

    def serve(self, times: int = 1) -> None:
        for _ in range(times):
            self.waiting = self._terminal.serve()


@pytest.fixture(params=["pipe", "terminal"])
def bench(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[TerminalBench]:
    """Connect a terminal to stdin: a pipe, and a pseudo-terminal that reads line by line."""
    write, read = reversed(os.pipe()) if request.param == "pipe" else pty.openpty()
    with os.fdopen(read) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        yield TerminalBench(write)
    os.close(write)


def test_question_is_printed_once_and_enter_answers(
    bench: TerminalBench, capsys: pytest.CaptureFixture[str]
) -> None:
    bench.attendant.asks = QUESTION
    bench.serve(3)
    assert capsys.readouterr().out == f"{QUESTION}\n"
    assert bench.waiting == {"actor0": QUESTION}
    bench.type()
    bench.serve(2)
    assert bench.attendant.answered == [QUESTION]
    assert capsys.readouterr().out.startswith("acknowledged\n")


def test_input_before_question_does_not_answer(bench: TerminalBench) -> None:
    bench.type("\n\n")
    bench.serve()
    bench.type("\n" * 900)
    bench.attendant.asks = ARMING
    bench.serve(5)
    assert not bench.attendant.answered
    bench.type()
    bench.serve()
    assert bench.attendant.answered == [ARMING]


def test_input_longer_than_one_read_does_not_answer_later_question(bench: TerminalBench) -> None:
    for _ in range(3):
        bench.type("\n" * 3000)
    bench.attendant.asks = ARMING
    bench.serve(5)
    assert not bench.attendant.answered


def test_only_empty_enter_confirms(
    bench: TerminalBench, capsys: pytest.CaptureFixture[str]
) -> None:
    bench.attendant.asks = ARMING
    bench.serve()
    bench.type("n")
    bench.serve()
    bench.type("o\n")
    bench.serve(3)
    assert not bench.attendant.answered
    assert capsys.readouterr().out.splitlines() == [
        ARMING,
        "'no': press Enter alone to confirm",
        ARMING,
    ]
    bench.type()
    bench.serve()
    assert bench.attendant.answered == [ARMING]


def test_two_enters_answer_only_current_question(bench: TerminalBench) -> None:
    bench.attendant.asks = QUESTION
    bench.serve()
    bench.type("\n\n")
    bench.serve()
    bench.attendant.asks = ARMING
    bench.serve(3)
    assert bench.attendant.answered == [QUESTION]


def test_question_is_repeated_after_refused_answer(
    bench: TerminalBench, capsys: pytest.CaptureFixture[str]
) -> None:
    bench.attendant.asks, bench.attendant.refuses = QUESTION, "not now: the arm moves"
    bench.serve()
    bench.type()
    bench.serve(2)
    assert capsys.readouterr().out.splitlines() == [QUESTION, "not now: the arm moves", QUESTION]


def test_lasting_hindrance_is_printed_once(
    bench: TerminalBench, capsys: pytest.CaptureFixture[str]
) -> None:
    bench.attendant.hinders = "the guard waits: pose is stale"
    bench.serve(2)
    assert not capsys.readouterr().out, "a short hindrance is printed"
    bench.now_s = 1.5
    bench.serve(2)
    assert capsys.readouterr().out == "the guard waits: pose is stale\n"
    bench.attendant.hinders = ""
    bench.serve()
    bench.attendant.asks = QUESTION
    bench.serve()
    assert capsys.readouterr().out == f"{QUESTION}\n"


def test_question_without_terminal_waits_and_names_service(
    bench: TerminalBench, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Keep training on an arm when a system service runs it without a terminal."""
    with open(os.devnull) as closed_stdin:
        for stdin in (closed_stdin, None):
            monkeypatch.setattr(sys, "stdin", stdin)
            bench.attendant.asks = ARMING
            bench.serve(3)
            assert capsys.readouterr().out.splitlines() == [
                ARMING,
                "this terminal has no input: waiting for the service /guard/ack",
            ]
            assert bench.waiting == {"actor0": "call /guard/ack"}
            bench.attendant.asks = ""
            bench.serve()
    assert not bench.attendant.answered


def test_hung_up_terminal_counts_as_unattended(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write, read = pty.openpty()
    os.close(write)
    with os.fdopen(read) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        bench = TerminalBench(-1)
        bench.attendant.asks = ARMING
        bench.serve(3)
    assert "this terminal has no input" in capsys.readouterr().out


def test_terminal_raises_keyboard_interrupt_when_interrupted(bench: TerminalBench) -> None:
    bench.attendant.is_interrupted = True
    with pytest.raises(KeyboardInterrupt):
        bench.serve()


@pytest.mark.parametrize("bench", ["terminal"], indirect=True)
def test_enter_held_down_answers_one_question(bench: TerminalBench) -> None:
    bench.attendant.asks = QUESTION
    bench.serve()
    bench.type()
    bench.serve()
    assert bench.attendant.answered == [QUESTION]
    bench.attendant.asks = ARMING
    bench.serve()
    for _ in range(40):  # the key is repeated 25 times a second, half a second after the press
        bench.type("\n")
        bench.now_s -= 0.96
        bench.serve()
    assert bench.attendant.answered == [QUESTION]
    bench.type()
    bench.serve()
    assert bench.attendant.answered == [QUESTION, ARMING]
