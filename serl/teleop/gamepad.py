"""Gamepads: hold the right shoulder button to take over, release it to hand back."""

from __future__ import annotations

from pathlib import Path

from serl.intervention import Event
from serl.teleop.device import Device
from serl.teleop.evdev_input import Names, open_input
from serl.teleop.mapping import MappingConfig

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
    """Open the first gamepad, or the one at `path`; raises `BadInput` as `open_input` does."""
    return open_input(NAMES, {_SOUTH}, "gamepad", path)


class Gamepad:
    """The gamepad's `serl.teleop.mapping.DeviceKind`; its mapping is `teleop.gamepad`."""

    Config = MappingConfig

    @staticmethod
    def open(path: Path | None, config: MappingConfig) -> Device:
        """Open a gamepad; see `open_gamepad`."""
        return open_gamepad(path)


device = Gamepad
