"""Keyboards: hold keys to take over, release them to hand back."""

from __future__ import annotations

from pathlib import Path

from serl.intervention import Event
from serl.teleop.evdev_input import InputDevice, Names, open_input
from serl.teleop.mapping import MappingConfig

NAMES = Names(
    {
        1: "escape",
        12: "minus",
        13: "equal",
        14: "backspace",
        16: "q",
        17: "w",
        18: "e",
        19: "r",
        22: "u",
        23: "i",
        24: "o",
        28: "enter",
        30: "a",
        31: "s",
        32: "d",
        33: "f",
        36: "j",
        37: "k",
        38: "l",
        45: "x",
        46: "c",
        47: "v",
        49: "n",
        57: "space",
    }
)
"""Key names by position on an English keyboard (linux/input-event-codes.h)."""

MAPPING = MappingConfig(
    pushes={
        "w": ("x", 1.0),
        "s": ("x", -1.0),
        "a": ("y", 1.0),
        "d": ("y", -1.0),
        "r": ("z", 1.0),
        "f": ("z", -1.0),
        "l": ("roll", 1.0),
        "j": ("roll", -1.0),
        "i": ("pitch", 1.0),
        "k": ("pitch", -1.0),
        "u": ("yaw", 1.0),
        "o": ("yaw", -1.0),
        "c": ("gripper", -1.0),
        "v": ("gripper", 1.0),
    },
    deadman="space",
    threshold=0.5,
    events={
        "enter": Event.SUCCESS,
        "backspace": Event.FAILURE,
        "x": Event.DISCARD,
        "n": Event.RESET,
        "equal": Event.REWARD,
        "minus": Event.PENALTY,
        "escape": Event.STOP,
    },
)
"""Any motion key takes over; the space bar takes over and holds the robot still."""


def open_keyboard(path: Path | None = None) -> InputDevice:
    """Open the first keyboard, or the one at `path`; raises as `open_input`."""
    return open_input(NAMES, {17, 30, 57}, "keyboard", path)


class Keyboard:
    """The keyboard's `serl.teleop.mapping.DeviceKind`; its mapping is `teleop.keyboard`."""

    Config = MappingConfig

    @staticmethod
    def open(path: Path | None, config: MappingConfig) -> InputDevice:
        """Open a keyboard; see `open_keyboard`."""
        return open_keyboard(path)


device = Keyboard
