"""Lines typed at this terminal, read without a buffer that could hide some of them."""

from __future__ import annotations

import os
import select
import sys
import termios

from serl.errors import SerlError


class TerminalClosed(SerlError):
    """The error for a standard input that cannot be read: absent, ended, or in the background."""


class TerminalInput:
    """The lines of standard input, which no other code may read."""

    def __init__(self) -> None:
        self._part = b""

    @property
    def is_keyboard(self) -> bool:
        """Whether standard input is a terminal, at which a key may be held down."""
        try:
            return os.isatty(_keyboard())
        except TerminalClosed:
            return False

    def drop(self) -> None:
        """Discard all earlier input: it does not answer the next prompt."""
        self._part = b""
        try:
            descriptor = _keyboard()
            if os.isatty(descriptor):
                termios.tcflush(descriptor, termios.TCIFLUSH)
            while _is_ready(descriptor, 0.0) and os.read(descriptor, 4096):
                pass
        except (OSError, TerminalClosed):
            return  # reported by the next call of `line`

    def line(self, timeout_s: float | None = 0.0) -> str | None:
        """Return the next line, without blanks around it; None when no line comes in time.

        Args:
            timeout_s: time to block; None to block without limit.

        Raises:
            TerminalClosed: no further line can come.
        """
        descriptor = _keyboard()
        while b"\n" not in self._part:
            try:
                if not _is_ready(descriptor, timeout_s):
                    return None
                more = os.read(descriptor, 4096)
            except OSError as error:  # a terminal that was hung up
                raise TerminalClosed(f"standard input: {error.strerror}") from None
            if not more:
                raise TerminalClosed("standard input has ended")
            self._part += more
        line, _, self._part = self._part.partition(b"\n")
        return line.decode(errors="replace").strip()


def _keyboard() -> int:
    """Return the descriptor of standard input; raise `TerminalClosed` if it accepts no typing."""
    try:
        descriptor = sys.stdin.fileno()
    except (AttributeError, OSError, ValueError):  # absent, closed, or replaced
        raise TerminalClosed("there is no standard input") from None
    if _is_in_background(descriptor):
        raise TerminalClosed("this process is in the background")
    return descriptor


def _is_in_background(descriptor: int) -> bool:
    """Return whether this process is in its terminal's background, where reading would stop it."""
    try:
        return os.tcgetpgrp(descriptor) != os.getpgrp()
    except OSError:  # no terminal, or the terminal of another session
        return False


def _is_ready(descriptor: int, timeout_s: float | None) -> bool:
    return bool(select.select([descriptor], [], [], timeout_s)[0])
