"""Teleoperation settings: device mappings, including those of the ROS 2 input topics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field, model_validator

from serl.intervention import Event
from serl.system.settings_file import merge
from serl.teleop import gamepad, keyboard, spacemouse
from serl.teleop.leader_arm import MAPPING as LEADER
from serl.teleop.leader_joints import LeaderJointsConfig
from serl.teleop.mapping import MappingConfig
from serl.teleop.operator import OperatorConfig
from serl.types import FrozenModel

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
"""Xbox pad as published by `joy_node`: sticks, right shoulder as deadman, A and B for labels."""

TWIST = MappingConfig(
    axes={name: (name, 1.0) for name in ("x", "y", "z", "roll", "pitch", "yaw")},
    dead_zone=0.05,
    threshold=0.01,
)
"""Unitless commands in [-1, 1] along the axes of an action, as MoveIt Servo accepts them."""


class TeleopConfig(FrozenModel):
    """Teleoperation settings of an actor.

    Entries that a mapping leaves out keep their defaults; a scale of 0 disables an axis.

    Attributes:
        operator: takeover and timeout settings of the operator.
        keyboard: mapping of the keys of a keyboard attached to this machine.
        terminal: mapping of the keys typed at the terminal of `serl teleop`.
        gamepad: mapping of the sticks and buttons of a gamepad.
        spacemouse: mapping of a SpaceMouse.
        device: settings of the plug-in device named by `--device`: its own, and its mapping.
        joy: mapping of the axes and buttons of `<actor>/joy`: axis0, axis1, ..., button0, ...
        twist: mapping of `<actor>/teleop/twist`.
        leader: mapping of `<actor>/leader`: poses of a leader arm's tool, in a frame with the same
            orientation as the robot's base frame.
        leader_joints: a leader arm that publishes its joints on `<actor>/leader_joints`.
        leader_m: translation of the leader arm (m) that is an action of 1.
        leader_rad: rotation of the leader arm (rad) that is an action of 1; use the value in the
            task's `motion`.
    """

    operator: OperatorConfig = OperatorConfig()
    terminal: MappingConfig = keyboard.MAPPING
    keyboard: MappingConfig = keyboard.MAPPING
    gamepad: MappingConfig = gamepad.MAPPING
    spacemouse: MappingConfig = spacemouse.MAPPING
    device: dict[str, Any] = Field({})
    joy: MappingConfig = JOY
    twist: MappingConfig = TWIST
    leader: MappingConfig = LEADER
    leader_joints: LeaderJointsConfig | None = None
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
