from __future__ import annotations

from io import StringIO

from serl.cli.terminal import Countdown


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_is_told_how_far_it_is_and_how_long_the_rest_takes() -> None:
    terminal, times = Terminal(), iter([10.0, 12.0, 14.0])
    told = Countdown("epoch", 40, terminal, lambda: next(times))
    for epoch in (1, 2, 3):
        told(epoch, 0.25)
    lines = [line.strip() for line in terminal.getvalue().split("\r")[1:]]
    assert lines == [
        "epoch 1 of 40, loss 0.2500",
        "epoch 2 of 40, loss 0.2500, 1:16 left",
        "epoch 3 of 40, loss 0.2500, 1:14 left",
    ]


def test_the_line_ends_with_the_work() -> None:
    terminal = Terminal()
    Countdown("epoch", 1, terminal)(1, 0.5)
    assert terminal.getvalue().endswith("\n")


def test_a_pipe_is_told_nothing() -> None:
    pipe = StringIO()
    Countdown("epoch", 1, pipe)(1, 0.5)
    assert pipe.getvalue() == ""
