"""A keyboard read through the terminal: works over ssh, without evdev or the group `input`.

A terminal repeats the character of a key while it is held, and sends nothing when it is released.
Each character therefore moves the robot for `MOTION_S` only; silence is a released key. Between the
first character and the first repetition most systems wait up to 0.66 s, in which the robot stands
while the operator keeps control.
"""

from __future__ import annotations

import os
import re
import select
import sys
import termios
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from serl.errors import BadInput
from serl.teleop import keyboard
from serl.teleop.device import DeviceLost, DeviceReport
from serl.teleop.mapping import MappingConfig

MOTION_S = 0.12
"""Time for which one character moves the robot; keys repeat 25 to 33 times a second."""

HANDS_S = 0.8
"""Time for which one character keeps control: longer than the wait for the first repetition."""

_ESCAPE = b"\x1b"
_SEQUENCE = re.compile(rb"\x1b(?:O[A-Z]|\[[0-?]*[ -/]*[@-~])")
_KEYS = {
    _ESCAPE: "escape",
    b"\r": "enter",
    b"\n": "enter",
    b"\x7f": "backspace",
    b"\x08": "backspace",
    b" ": "space",
    b"=": "equal",
    b"+": "equal",
    b"-": "minus",
    b"\x1b[A": "w",  # arrows: forward, backward, left, right
    b"\x1b[B": "s",
    b"\x1b[D": "a",
    b"\x1b[C": "d",
    b"\x1b[5~": "r",  # page up and down: up and down
    b"\x1b[6~": "f",
}
_LETTERS = frozenset(name for name in keyboard.NAMES.keys.values() if len(name) == 1)
_MAX_BYTES = 4096


class TerminalKeyboard:
    """A `Device` that reads the keys typed at a terminal, with the names of `keyboard.NAMES`.

    The terminal stays in its character mode until `close`: it shows no typed characters, and Ctrl-C
    still interrupts. A lone escape is a key of its own; one that arrives in two parts over a slow
    line counts as such, which stops the robot.

    Args:
        descriptor: open terminal.
        mapping: mapping of the keys; a key that moves the robot or takes over can be held.
        now_s: monotonic clock in seconds.

    Raises:
        BadInput: the descriptor is no terminal, or this process is in its background.
    """

    name = "this terminal"

    def __init__(
        self,
        descriptor: int,
        mapping: MappingConfig = keyboard.MAPPING,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        if not os.isatty(descriptor):
            raise BadInput("terminal: standard input is no terminal")
        self._descriptor, self._mapping, self._now_s = descriptor, mapping, now_s
        self._keys_s: dict[str, float] = {}  # time of each key's last character
        self._driven_s = float("-inf")
        self._before: list[Any] | None = None
        try:
            self._before = termios.tcgetattr(descriptor)
            self._set_mode()
        except DeviceLost as error:
            raise BadInput(f"terminal: {error}") from error

    def read(self) -> DeviceReport:
        """Return the keys that count as held; raises `DeviceLost` once the terminal is gone."""
        now_s, presses = self._now_s(), list[str]()
        pushes, deadman = self._mapping.pushes, self._mapping.deadman
        for key in _split(self._read_typed()):
            if now_s - self._keys_s.get(key, float("-inf")) > HANDS_S:  # no repetition
                presses.append(key)
            self._keys_s[key] = now_s
            if key in pushes or key == deadman:
                self._driven_s = now_s
        held = {
            key
            for key, last_s in self._keys_s.items()
            if key in pushes and now_s - last_s <= MOTION_S
        }
        if deadman is not None and now_s - self._driven_s <= HANDS_S:
            held.add(deadman)
        return DeviceReport({}, frozenset(held), tuple(presses), now_s)

    def close(self) -> None:
        """Restore the mode of the terminal; a second call does nothing."""
        before, self._before = self._before, None
        if before is not None:
            with suppress(termios.error):  # hung up
                termios.tcsetattr(self._descriptor, termios.TCSADRAIN, before)

    def _read_typed(self) -> bytes:
        self._set_mode()
        try:
            if not select.select([self._descriptor], [], [], 0.0)[0]:
                return b""
            typed = os.read(self._descriptor, _MAX_BYTES)
        except OSError as error:
            raise DeviceLost(f"{self.name}: {error.strerror or error}") from error
        if not typed:
            raise DeviceLost(f"{self.name}: it was hung up")
        return typed

    def _set_mode(self) -> None:
        """Choose the character mode again after a shell has stopped and continued this process."""
        try:
            if os.tcgetpgrp(self._descriptor) != os.getpgrp():
                raise DeviceLost(f"{self.name}: this process is in the background")
        except OSError:
            pass  # the terminal of another session
        try:
            mode = termios.tcgetattr(self._descriptor)
            if mode[3] & (termios.ICANON | termios.ECHO):
                mode[3] &= ~(termios.ICANON | termios.ECHO)
                mode[6][termios.VMIN], mode[6][termios.VTIME] = 1, 0
                termios.tcsetattr(self._descriptor, termios.TCSADRAIN, mode)
        except termios.error as error:
            raise DeviceLost(f"{self.name}: {error.args[-1]}") from error


def _split(typed: bytes) -> list[str]:
    """Return the names of the typed keys in order; keys without a name are left out."""
    keys, at = list[str](), 0
    while at < len(typed):
        sequence = _SEQUENCE.match(typed, at)
        part = sequence[0] if sequence else typed[at : at + 1]
        at += len(part)
        letter = part.decode("latin-1").lower()
        if key := _KEYS.get(part, letter if letter in _LETTERS else ""):
            keys.append(key)
    return keys


class Terminals:
    """The terminal's `serl.teleop.mapping.DeviceKind`; its mapping is `teleop.terminal`."""

    Config = MappingConfig

    @staticmethod
    def open(path: Path | None, config: MappingConfig) -> TerminalKeyboard:
        """Open standard input as a keyboard; raises `BadInput` if it is no terminal."""
        if path is not None:
            raise BadInput(f"terminal: expected no path, got {path}")
        try:
            return TerminalKeyboard(sys.stdin.fileno(), config)
        except (AttributeError, OSError, ValueError):  # absent, closed, or replaced
            raise BadInput("terminal: there is no standard input") from None


device = Terminals
