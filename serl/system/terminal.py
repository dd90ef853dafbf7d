"""What a person types at this terminal: lines, read past every buffer that could hide some."""

from __future__ import annotations

import os
import select
import sys
import termios

from serl.errors import SerlError


class TypedNoMore(SerlError):
    """Nobody can type at this terminal: it has ended, or never was one."""


class Typed:
    """Standard input, of which nobody else reads."""

    def __init__(self) -> None:
        self._part = b""

    def drop(self) -> None:
        """Forget what was typed so far: it is no answer to what is asked next."""
        self._part = b""
        try:
            descriptor = _keyboard()
            if os.isatty(descriptor):
                termios.tcflush(descriptor, termios.TCIFLUSH)
            while _is_ready(descriptor, 0.0) and os.read(descriptor, 4096):
                pass
        except (OSError, TypedNoMore):
            return  # which the next line tells

    def line(self, timeout_s: float | None = 0.0) -> str | None:
        """The next line, without blanks around it; None when none comes in time (None: for ever).

        Raises:
            TypedNoMore: none ever will.
        """
        descriptor = _keyboard()
        while b"\n" not in self._part:
            try:
                if not _is_ready(descriptor, timeout_s):
                    return None
                more = os.read(descriptor, 4096)
            except OSError as error:  # a terminal that was hung up
                raise TypedNoMore(f"standard input: {error.strerror}") from None
            if not more:
                raise TypedNoMore("standard input has ended")
            self._part += more
        line, _, self._part = self._part.partition(b"\n")
        return line.decode(errors="replace").strip()


def _keyboard() -> int:
    """The descriptor of standard input; raises `TypedNoMore` where nobody can type."""
    try:
        descriptor = sys.stdin.fileno()
    except (AttributeError, OSError, ValueError):  # none, closed, or a stand-in
        raise TypedNoMore("there is no standard input") from None
    if _is_in_background(descriptor):
        raise TypedNoMore("this process is in the background")
    return descriptor


def _is_in_background(descriptor: int) -> bool:
    """Of its terminal: who reads from it there is stopped."""
    try:
        return os.tcgetpgrp(descriptor) != os.getpgrp()
    except OSError:  # no terminal, or that of another session
        return False


def _is_ready(descriptor: int, timeout_s: float | None) -> bool:
    return bool(select.select([descriptor], [], [], timeout_s)[0])
