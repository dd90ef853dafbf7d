"""Gamepads: hold the right shoulder button to take over, release it to hand back."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from serl.errors import BadInput
from serl.intervention import Event
from serl.teleop.device import Buttons, Device, DeviceLost, DeviceReport
from serl.teleop.evdev_input import Names, open_input
from serl.teleop.mapping import MappingConfig

AXES = ("left_x", "left_y", "left_trigger", "right_x", "right_y", "right_trigger")
BUTTONS = (
    *("south", "east", "west", "north", "left_shoulder", "right_shoulder"),
    *("select", "start", "mode"),
)
"""Names in SDL's order for an Xbox pad on Linux; see `MAPPING`."""

_TRIGGERS = {"left_trigger", "right_trigger"}


class PygamePad:
    """A `Device` that reads a pygame joystick.

    Args:
        joystick: a `pygame.joystick.Joystick` or an object with the same interface.
        removed: processes pygame's events and returns True if the joystick was unplugged; pygame
            then reports its axes as at rest.
        now_s: monotonic clock in seconds.
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

    def read(self) -> DeviceReport:
        """Return the current state; raises `DeviceLost` once the device is gone."""
        self._gone |= self._removed()
        pad = self._joystick
        if self._gone or not pad.get_init():
            raise DeviceLost(f"{self.name}: was unplugged")
        axes = dict(zip(AXES, map(pad.get_axis, range(pad.get_numaxes())), strict=False))
        down = zip(BUTTONS, map(pad.get_button, range(pad.get_numbuttons())), strict=False)
        self._buttons.hold(frozenset(name for name, held in down if held))
        axes |= {name: self._trigger(name, axes[name]) for name in _TRIGGERS & axes.keys()}
        return DeviceReport(axes, *self._buttons.take(), self._now_s())

    def close(self) -> None:
        """Close the device; a second call does nothing."""
        self._joystick.quit()

    def _trigger(self, name: str, position: float) -> float:
        """Scale a trigger to [0, 1]; SDL reports 0 until its first motion, then -1 to 1."""
        if position != 0.0:
            self._moved.add(name)
        return (position + 1.0) / 2.0 if name in self._moved else 0.0


def open_pygame_pad() -> PygamePad:
    """Open the first gamepad found by pygame.

    Raises:
        BadInput: no gamepad was found, or pygame is missing.
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


_SOUTH = 304

NAMES = Names(
    keys={
        _SOUTH: "south",
        305: "east",
        307: "north",
        308: "west",
        310: "left_shoulder",
        311: "right_shoulder",
        314: "select",
        315: "start",
        316: "mode",
    },
    axes={
        0: "left_x",
        1: "left_y",
        2: "left_trigger",
        3: "right_x",
        4: "right_y",
        5: "right_trigger",
    },
    triggers=frozenset({"left_trigger", "right_trigger"}),
)
"""Names used by the kernel's Xbox and PlayStation drivers (linux/input-event-codes.h)."""

MAPPING = MappingConfig(
    axes={
        "left_y": ("x", -1.0),
        "left_x": ("y", -1.0),
        "right_y": ("z", -1.0),
        "right_x": ("yaw", -1.0),
        "right_trigger": ("gripper", 1.0),
        "left_trigger": ("gripper", -1.0),
    },
    deadman="right_shoulder",
    events={
        "south": Event.SUCCESS,
        "east": Event.FAILURE,
        "west": Event.DISCARD,
        "select": Event.RESET,
        "mode": Event.STOP,
    },
)


def open_gamepad(path: Path | None = None) -> Device:
    """Open the first gamepad, or the one at `path`; uses pygame if evdev is missing.

    Raises:
        BadInput: as `open_input`, or both packages are missing.
    """
    if path is None and find_spec("evdev") is None:
        return open_pygame_pad()
    return open_input(NAMES, {_SOUTH}, "gamepad", path)


class Gamepad:
    """The gamepad's `serl.teleop.mapping.DeviceKind`; its mapping is `teleop.gamepad`."""

    Config = MappingConfig

    @staticmethod
    def open(path: Path | None, config: MappingConfig) -> Device:
        """Open a gamepad; see `open_gamepad`."""
        return open_gamepad(path)


device = Gamepad
