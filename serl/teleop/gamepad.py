"""A gamepad: hold the right shoulder to drive, let go to hand back."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from serl.intervention import Event
from serl.teleop.device import Device
from serl.teleop.evdev_input import Names, open_input
from serl.teleop.mapping import MappingConfig
from serl.teleop.pygame_pad import open_pygame_pad

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
"""As the kernel's drivers of Xbox and PlayStation pads name them (linux/input-event-codes.h)."""

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
    """The first gamepad, or the one at `path`; by pygame where evdev is missing.

    Raises:
        BadInput: as `open_input`, or both packages are missing.
    """
    if path is None and find_spec("evdev") is None:
        return open_pygame_pad()
    return open_input(NAMES, {_SOUTH}, "gamepad", path)


class Gamepad:
    """See `serl.teleop.mapping.DeviceKind`; the mapping is `teleop.gamepad`."""

    Config = MappingConfig

    @staticmethod
    def open(path: Path | None, config: MappingConfig) -> Device:
        """As `open_gamepad`."""
        return open_gamepad(path)


device = Gamepad
