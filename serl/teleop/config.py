"""How people at devices may drive; what the topics of ROS 2 mean that any node can send."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from serl.intervention import Event
from serl.system.settings_file import merge
from serl.teleop import gamepad, keyboard, spacemouse
from serl.teleop.leader_arm import MAPPING as LEADER
from serl.teleop.mapping import MappingConfig
from serl.teleop.operator import OperatorConfig

JOY_AXES = tuple(f"axis{number}" for number in range(16))
JOY_BUTTONS = tuple(f"button{number}" for number in range(32))
TWIST_AXES = ("x", "y", "z", "roll", "pitch", "yaw")

JOY = MappingConfig(
    axes={
        "axis1": ("x", 1.0),
        "axis0": ("y", 1.0),
        "axis4": ("z", 1.0),
        "axis3": ("yaw", 1.0),
    },
    pushes={"button4": ("gripper", -1.0), "button3": ("gripper", 1.0)},
    deadman="button5",
    events={
        "button0": Event.SUCCESS,
        "button1": Event.FAILURE,
        "button2": Event.DISCARD,
        "button6": Event.RESET,
        "button8": Event.STOP,
    },
)
"""An Xbox pad as `joy_node` sends it: sticks, right shoulder to drive, A and B for labels."""

TWIST = MappingConfig(
    axes={name: (name, 1.0) for name in ("x", "y", "z", "roll", "pitch", "yaw")},
    dead_zone=0.05,
    threshold=0.01,
)
"""Unitless commands from -1 to 1, in the axes of an action, as MoveIt Servo takes them."""


class TeleopConfig(BaseModel):
    """People at devices.

    What is not said of a mapping stays as it is by default; an axis is taken away by the scale 0.

    Attributes:
        operator: when hands are on, and when a device is silent.
        keyboard: what the keys of a keyboard of this machine mean ...
        gamepad: ... the sticks and buttons of a gamepad ...
        spacemouse: ... and a SpaceMouse.
        device: settings of a device from outside, which `--device` names: its own, and its mapping.
        joy: what axes and buttons of `<actor>/joy` mean: axis0, axis1, ..., button0, ...
        twist: what `<actor>/teleop/twist` means.
        leader: what `<actor>/leader` means, poses of a leader arm's tool in a frame that looks as
            the robot's base does ...
        leader_m: ... of which so much is an action of 1 ...
        leader_rad: ... and so much of a turn; best what the task's `motion` says.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    operator: OperatorConfig = OperatorConfig()
    keyboard: MappingConfig = keyboard.MAPPING
    gamepad: MappingConfig = gamepad.MAPPING
    spacemouse: MappingConfig = spacemouse.MAPPING
    device: dict[str, Any] = {}
    joy: MappingConfig = JOY
    twist: MappingConfig = TWIST
    leader: MappingConfig = LEADER
    leader_m: float = Field(0.015, gt=0, le=0.1)
    leader_rad: float = Field(0.1, gt=0, le=1)

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, values: Any) -> Any:
        if not isinstance(values, Mapping):
            return values
        mappings = {
            name: field.default.model_dump()
            for name, field in cls.model_fields.items()
            if isinstance(field.default, MappingConfig)
        }
        return {
            name: merge(mappings[name], value)
            if name in mappings and isinstance(value, Mapping)
            else value
            for name, value in values.items()
        }
