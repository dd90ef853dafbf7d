"""A line on the terminal that says how far a piece of work is, and how long the rest takes."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TextIO


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
