from __future__ import annotations

from io import StringIO

from serl.cli.terminal import Countdown


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


def test_countdown_shows_progress_and_time_left_in_terminal() -> None:
    terminal, times = Terminal(), iter([10.0, 12.0, 14.0])
    countdown = Countdown("epoch", 40, terminal, lambda: next(times))
    for epoch in (1, 2, 3):
        countdown(epoch, 0.25)
    lines = [line.strip() for line in terminal.getvalue().split("\r")[1:]]
    assert lines == [
        "epoch 1 of 40, loss 0.2500",
        "epoch 2 of 40, loss 0.2500, 1:16 left",
        "epoch 3 of 40, loss 0.2500, 1:14 left",
    ]


def test_countdown_ends_its_line_after_last_epoch() -> None:
    terminal = Terminal()
    Countdown("epoch", 1, terminal)(1, 0.5)
    assert terminal.getvalue().endswith("\n")


def test_countdown_prints_nothing_to_pipe() -> None:
    pipe = StringIO()
    Countdown("epoch", 1, pipe)(1, 0.5)
    assert pipe.getvalue() == ""
