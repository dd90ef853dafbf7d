"""What drivers tell of their arms, as the files say that `tests/ros/data` cites."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from std_msgs.msg import Bool

from serl import plugins
from serl.arm_profile import ArmProfile
from serl.ros.arm_faults import fault_words

from ..upstream import FAMILIES, facts

pytestmark = pytest.mark.ros


def words(robot: str, message: Any) -> str:
    profile: ArmProfile = plugins.load("robot", robot)
    assert profile.fault is not None
    return fault_words(profile.fault, message)


@pytest.mark.parametrize("robot", ["ur5e", "ur5e_servo"])
def test_a_robot_of_universal_robots_whose_program_ended_is_ill(robot: str) -> None:
    assert words(robot, Bool(data=True)) == ""
    assert words(robot, Bool(data=False)) == "that its program does not run"


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ("well", ""),
        ("guided", ""),
        ("reflex", "a reflex: cartesian_reflex, joint_reflex"),
        ("stopped", "that its user stopped it"),
        ("recovering", "that it recovers from an error"),
        ("ill", "an error: communication_constraints_violation"),
    ],
)
def test_a_franka_says_in_which_mode_it_is_and_which_errors_it_has(
    state: str, expected: str
) -> None:
    """A message of the shape that the fixture cites: franka_msgs is in no wheel."""
    row = facts(FAMILIES["franka_ros2"])["fault_message"][state]
    names = ["joint_reflex", "cartesian_reflex", "communication_constraints_violation"]
    told = {name: name in row["current_errors"] for name in sorted(names)}
    errors = SimpleNamespace(**told, get_fields_and_field_types=lambda: told)
    message = SimpleNamespace(robot_mode=row["robot_mode"], current_errors=errors)
    assert words("franka_ros2", message) == expected


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ("well", ""),
        ("ready", ""),
        ("stopped", "that it is stopped"),
        ("changed", "that it is stopped"),
        ("collided", "error 31"),
    ],
)
def test_an_xarm_says_that_it_is_stopped_and_by_which_error(state: str, expected: str) -> None:
    """A message of the shape that the fixture cites: xarm_msgs is in no wheel."""
    row = facts(FAMILIES["xarm7"])["fault_message"][state]
    assert words("xarm7", SimpleNamespace(**row)) == expected
