"""A gamepad by pygame, for machines where evdev cannot be installed; needs no window."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from serl.errors import BadInput
from serl.teleop.device import Buttons, DeviceLost, Report

AXES = ("left_x", "left_y", "left_trigger", "right_x", "right_y", "right_trigger")
BUTTONS = (
    *("south", "east", "west", "north", "left_shoulder", "right_shoulder"),
    *("select", "start", "mode"),
)
"""In SDL's order of an Xbox pad on Linux, by the names of `serl.teleop.gamepad`."""

_TRIGGERS = {"left_trigger", "right_trigger"}


class PygamePad:
    """A `Device` around a joystick of pygame.

    Args:
        joystick: `pygame.joystick.Joystick`, or what looks like one.
        removed: lets pygame take in what happened, and says whether the joystick was pulled out: it
            then looks as if it were at rest.
        now_s: monotonic seconds.
    """

    def __init__(
        self,
        joystick: Any,
        removed: Callable[[], bool],
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = f"gamepad {joystick.get_name()}"
        self._joystick, self._removed, self._now_s = joystick, removed, now_s
        self._gone = False
        self._buttons = Buttons()
        self._moved: set[str] = set()

    def read(self) -> Report:
        """The state now; raises `DeviceLost` once it is gone."""
        self._gone |= self._removed()
        pad = self._joystick
        if self._gone or not pad.get_init():
            raise DeviceLost(f"{self.name}: was unplugged")
        axes = dict(zip(AXES, map(pad.get_axis, range(pad.get_numaxes())), strict=False))
        down = zip(BUTTONS, map(pad.get_button, range(pad.get_numbuttons())), strict=False)
        self._buttons.hold(frozenset(name for name, held in down if held))
        axes |= {name: self._trigger(name, axes[name]) for name in _TRIGGERS & axes.keys()}
        return Report(axes, *self._buttons.take(), self._now_s())

    def close(self) -> None:
        """Let go of it; a second call does nothing."""
        self._joystick.quit()

    def _trigger(self, name: str, position: float) -> float:
        """SDL says 0 of a trigger until it was moved, and then -1 to 1."""
        if position != 0.0:
            self._moved.add(name)
        return (position + 1.0) / 2.0 if name in self._moved else 0.0


def open_pygame_pad() -> PygamePad:
    """The first gamepad.

    Raises:
        BadInput: there is none, or pygame is missing.
    """
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    try:
        import pygame
    except ImportError:
        needs = 'gamepad: needs the package evdev: pip install "serl[teleop]"; or pygame'
        raise BadInput(needs) from None
    pygame.init()
    pygame.joystick.init()
    if not pygame.joystick.get_count():
        raise BadInput("no gamepad found by pygame")
    joystick = pygame.joystick.Joystick(0)

    def removed() -> bool:
        number = joystick.get_instance_id()
        return any(
            event.type == pygame.JOYDEVICEREMOVED and event.instance_id == number
            for event in pygame.event.get()
        )

    return PygamePad(joystick, removed)
