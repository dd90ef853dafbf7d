"""Settings of device mappings: dead zones, axes, scales and buttons."""

from __future__ import annotations

import pytest

from serl.errors import BadInput
from serl.runs.config import parse_overrides, resolve
from serl.teleop import gamepad
from serl.teleop.config import JOY, TeleopConfig


def teleop_config(*words: str) -> TeleopConfig:
    return resolve({"task": "reach"}, parse_overrides(words)).teleop


def test_override_of_one_mapping_setting_keeps_all_others() -> None:
    config = teleop_config("--teleop.joy.dead_zone=0.3", "--teleop.gamepad.axes.left_y=[x, -0.5]")
    assert config.joy == JOY.model_copy(update={"dead_zone": 0.3})
    axes = {**gamepad.MAPPING.axes, "left_y": ("x", -0.5)}
    assert config.gamepad == gamepad.MAPPING.model_copy(update={"axes": axes})
    assert config.spacemouse == TeleopConfig().spacemouse


def test_teleop_settings_survive_json_round_trip() -> None:
    config = teleop_config("--teleop.joy.axes.axis1=[y, 0]", "--teleop.keyboard.deadman=null")
    assert config.keyboard.deadman is None
    assert TeleopConfig.model_validate(config.model_dump(mode="json")) == config


@pytest.mark.parametrize(
    ("word", "line"),
    [
        ("--teleop.joy=7", "teleop.joy"),
        ("--teleop.joy.axes.axis1=[elbow, 1]", "teleop.joy.axes.axis1"),
        ("--teleop.joy.axes.axis1=[x, 2]", "teleop.joy.axes.axis1"),
        ("--teleop.joy.axes=7", "teleop.joy.axes"),
        ("--teleop.gamepad.dead=1", "teleop.gamepad.dead"),
        ("--teleop.spacemouse.events.left=jump", "teleop.spacemouse.events.left"),
        ("--teleop=7", "teleop"),
    ],
)
def test_invalid_teleop_setting_is_refused_by_name(word: str, line: str) -> None:
    with pytest.raises(BadInput, match=line):
        teleop_config(word)
