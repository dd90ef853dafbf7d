"""Dead zones, axes, scales and buttons of devices are settings; one of them changes no other."""

from __future__ import annotations

import pytest

from serl.errors import BadInput
from serl.runs.config import parse_overrides, resolve
from serl.teleop import gamepad
from serl.teleop.config import JOY, TeleopConfig


def given(*words: str) -> TeleopConfig:
    return resolve({"task": "reach"}, parse_overrides(words)).teleop


def test_one_setting_of_a_mapping_leaves_all_others_as_they_were() -> None:
    config = given("--teleop.joy.dead_zone=0.3", "--teleop.gamepad.axes.left_y=[x, -0.5]")
    assert config.joy == JOY.model_copy(update={"dead_zone": 0.3})
    axes = {**gamepad.MAPPING.axes, "left_y": ("x", -0.5)}
    assert config.gamepad == gamepad.MAPPING.model_copy(update={"axes": axes})
    assert config.spacemouse == TeleopConfig().spacemouse


def test_settings_that_were_written_down_are_read_the_same() -> None:
    config = given("--teleop.joy.axes.axis1=[y, 0]", "--teleop.keyboard.deadman=null")
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
def test_what_cannot_be_is_one_line_that_names_it(word: str, line: str) -> None:
    with pytest.raises(BadInput, match=line):
        given(word)
