"""Drivers of the shipped arms, each as its upstream sources describe it."""

from __future__ import annotations

from pathlib import Path

from serl.ros.testing.driver import Driver

DATA = Path(__file__).parents[1] / "ros" / "data"

FAMILIES = {
    "franka": "crisp_controllers",
    "ur5e": "cartesian_compliance_ur",
    "xarm7": "cartesian_motion_xarm",
    "ur5e_servo": "moveit_servo",
}
"""The file behind each profile of a real arm."""


def file_of(robot: str) -> Path:
    """The description of a robot's driver."""
    return DATA / f"{FAMILIES[robot]}.yaml"


def driver_of(robot: str) -> Driver:
    return Driver.read(file_of(robot))
