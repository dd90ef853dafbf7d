from __future__ import annotations

from typing import Any

import pytest

from serl import plugins
from serl.arm_profile import JOINTS, ArmProfile, Channel, ControllerProfile, Gains
from serl.errors import BadInput
from serl.system.settings_file import checked

SIM: ArmProfile = plugins.load("robot", "sim")


def _gripper_with_command_type(kind: str) -> dict[str, Any]:
    assert SIM.gripper is not None
    return SIM.gripper.model_dump() | {"command": {"name": "grip", "type": kind}}


@pytest.mark.parametrize("name", plugins.names("robot"))
def test_every_robot_plugin_is_profile_with_its_name(name: str) -> None:
    profile = plugins.load("robot", name)
    assert isinstance(profile, ArmProfile)
    assert profile.name == name


def test_gripper_opening_and_position_are_inverse() -> None:
    assert SIM.gripper is not None
    turned = SIM.gripper.model_copy(update={"closed": 0.8, "open": 0.0})  # as for a Robotiq gripper
    for gripper in (SIM.gripper, turned):
        assert gripper.opening(gripper.closed) == 0.0
        assert gripper.opening(gripper.open) == 1.0
        assert gripper.opening(gripper.position(0.25)) == pytest.approx(0.25)


def test_channel_package_is_first_part_of_type() -> None:
    action = Channel(name="/robotiq/gripper_cmd", type="control_msgs/action/GripperCommand")
    assert action.package == "control_msgs"


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"joint_low_rad": SIM.joint_low_rad[1:]}, "limits and home of 7 joints"),
        ({"home_rad": SIM.joint_low_rad}, "joint1: expected low"),
        ({"home_rad": (float("nan"), *SIM.home_rad[1:])}, "home_rad"),
        ({"pose": {"name": "a b", "type": "geometry_msgs/msg/PoseStamped"}}, "pose.name"),
        ({"pose": {"name": "pose", "type": "PoseStamped"}}, "pose.type"),
        ({"gripper": {**SIM.gripper.model_dump(), "open": 0.0}}, "must differ"),  # type: ignore[union-attr]
        ({"controller": {"node": "a", "error_clip": dict.fromkeys("xyz", (0, 1))}}, "error_clip"),
        ({"topic": "pose"}, "unknown setting"),
        ({"target": {"name": "a", "type": JOINTS}}, "target.type"),
        ({"fault": {"name": "a", "type": JOINTS}}, "fault.type"),
        ({"gripper": _gripper_with_command_type("std_msgs/msg/Float64")}, "gripper.*command.type"),
        ({"controller": {"node": "a", "stiffness_n_m": 2500.0}}, "stiffness_n_m"),
        (
            {"controller": {"node": "a", "parameters": {"k": 1.0}, "expected": {"k": 1.0}}},
            "expected: k: is set by",
        ),
        (
            {
                "controller": {
                    "node": "a",
                    "modes": {
                        "soft": {"parameters": {"k": 1.0}},
                        "hard": {"parameters": {"d": 1.0}},
                    },
                }
            },
            "expected each to change the same",
        ),
    ],
)
def test_invalid_arm_profile_is_refused_in_one_line(change: dict[str, Any], where: str) -> None:
    with pytest.raises(BadInput, match=where) as caught:
        checked(ArmProfile, SIM.model_dump() | change)
    assert "\n" not in str(caught.value)


def test_controller_matches_gains_of_start_or_of_one_mode() -> None:
    controller = ControllerProfile(
        node="a",
        parameters={"k": 500.0, "d": 30.0, "limit": True},
        expected={"units": "speed"},
        modes={"soft": Gains(parameters={"k": 100.0, "d": 10.0})},
    )
    valid = {"k": 500.0, "d": 30.0, "limit": True, "units": "speed"}
    assert controller.mismatch(valid) == ""
    assert controller.mismatch(valid | {"k": 100.0, "d": 10.0}) == ""
    assert controller.mismatch(valid | {"k": 100.0}) == "k is 100.0, expected 500.0"
    assert controller.mismatch(valid | {"limit": 1.0}) == "limit is 1.0, expected True"
    assert controller.mismatch(valid | {"units": ""}) == "units is , expected speed"
    assert "k is None" in controller.mismatch({})


def test_controller_is_switching_while_gains_lie_between_modes() -> None:
    controller = ControllerProfile(
        node="a",
        parameters={"k": 500.0, "limit": True},
        modes={name: Gains(parameters={"k": k}) for name, k in (("soft", 100.0), ("hard", 900.0))},
    )
    for k in (100.0, 300.0, 500, 900.0):
        assert controller.is_switching({"k": k, "limit": True})
    for wrong in ({"k": 99.0}, {"k": 901.0}, {"k": True}, {"k": None}, {"limit": False}, {}):
        assert not controller.is_switching({"limit": True, **wrong})
    assert not controller.is_switching({"k": float("nan"), "limit": True})
    fixed = ControllerProfile(node="a", parameters={"k": 500.0})
    assert fixed.is_switching({"k": 500.0})
    assert not fixed.is_switching({"k": 499.0})
