"""The person at the terminal: asked once, heard when there is a question, told what hinders."""

from __future__ import annotations

import os
import pty
import sys
from collections.abc import Iterator, Mapping

import pytest

from serl.cli.terminal import Terminal
from serl.errors import SerlError

QUESTION = "estop: first start: Enter confirms that you have dealt with it"
ARMING = "the guard is disarmed: Enter arms it"


class Attending:
    """Knows what to ask, as `serl.ros.people.attendant` does."""

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


class Bench:
    """A terminal, its keyboard and its clock."""

    def __init__(self, keyboard: int) -> None:
        self.attending, self.now_s, self._keyboard = Attending(), 0.0, keyboard
        self.waiting: Mapping[str, str] = {}
        self._terminal = Terminal(self.attending, lambda: self.now_s)

    def type(self, text: str = "\n") -> None:
        os.write(self._keyboard, text.encode())

    def serve(self, times: int = 1) -> None:
        for _ in range(times):
            self.waiting = self._terminal.serve()


@pytest.fixture(params=["pipe", "terminal"])
def bench(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    """At a pipe, and at a terminal, which gives one line at a time."""
    write, read = reversed(os.pipe()) if request.param == "pipe" else pty.openpty()
    with os.fdopen(read) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        yield Bench(write)
    os.close(write)


def test_a_question_is_asked_once_and_an_enter_answers_it(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    bench.attending.asks = QUESTION
    bench.serve(3)
    assert capsys.readouterr().out == f"{QUESTION}\n"
    assert bench.waiting == {"actor0": QUESTION}
    bench.type()
    bench.serve(2)
    assert bench.attending.answered == [QUESTION]
    assert capsys.readouterr().out.startswith("acknowledged\n")


def test_what_was_typed_before_a_question_is_no_answer_to_it(bench: Bench) -> None:
    bench.type("\n\n")
    bench.serve()
    bench.type("\n" * 900)
    bench.attending.asks = ARMING
    bench.serve(5)
    assert not bench.attending.answered
    bench.type()
    bench.serve()
    assert bench.attending.answered == [ARMING]


def test_more_than_one_look_at_a_pipe_takes_is_no_answer(bench: Bench) -> None:
    for _ in range(3):
        bench.type("\n" * 3000)
    bench.attending.asks = ARMING
    bench.serve(5)
    assert not bench.attending.answered


def test_enter_alone_is_a_yes(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    bench.attending.asks = ARMING
    bench.serve()
    bench.type("n")
    bench.serve()
    bench.type("o\n")
    bench.serve(3)
    assert not bench.attending.answered
    assert capsys.readouterr().out.splitlines() == [
        ARMING,
        "'no': press Enter alone to confirm",
        ARMING,
    ]
    bench.type()
    bench.serve()
    assert bench.attending.answered == [ARMING]


def test_two_enters_answer_one_question(bench: Bench) -> None:
    bench.attending.asks = QUESTION
    bench.serve()
    bench.type("\n\n")
    bench.serve()
    bench.attending.asks = ARMING
    bench.serve(3)
    assert bench.attending.answered == [QUESTION]


def test_a_question_that_is_refused_comes_again(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    bench.attending.asks, bench.attending.refuses = QUESTION, "not now: the arm moves"
    bench.serve()
    bench.type()
    bench.serve(2)
    assert capsys.readouterr().out.splitlines() == [QUESTION, "not now: the arm moves", QUESTION]


def test_what_no_answer_settles_is_told_once_when_it_lasts(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    bench.attending.hinders = "the guard waits: pose is stale"
    bench.serve(2)
    assert not capsys.readouterr().out, "it may be over soon"
    bench.now_s = 1.5
    bench.serve(2)
    assert capsys.readouterr().out == "the guard waits: pose is stale\n"
    bench.attending.hinders = ""
    bench.serve()
    bench.attending.asks = QUESTION
    bench.serve()
    assert capsys.readouterr().out == f"{QUESTION}\n"


def test_a_question_to_nobody_waits_and_says_how_else_it_is_answered(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A service has no terminal: a training on an arm does not end for that."""
    with open(os.devnull) as nobody:
        for stdin in (nobody, None):
            monkeypatch.setattr(sys, "stdin", stdin)
            bench.attending.asks = ARMING
            bench.serve(3)
            assert capsys.readouterr().out.splitlines() == [
                ARMING,
                "no person is at this terminal: it waits for the service /guard/ack",
            ]
            assert bench.waiting == {"actor0": "call /guard/ack"}
            bench.attending.asks = ""
            bench.serve()
    assert not bench.attending.answered


def test_a_terminal_that_is_hung_up_is_nobody(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write, read = pty.openpty()
    os.close(write)
    with os.fdopen(read) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        bench = Bench(-1)
        bench.attending.asks = ARMING
        bench.serve(3)
    assert "no person is at this terminal" in capsys.readouterr().out


def test_ctrl_c_is_one(bench: Bench) -> None:
    bench.attending.is_interrupted = True
    with pytest.raises(KeyboardInterrupt):
        bench.serve()
