"""Drivers of the shipped arms, as described by their upstream sources."""

from __future__ import annotations

from pathlib import Path

from serl.ros.testing.driver import Driver

DATA = Path(__file__).parents[1] / "ros" / "data"

FAMILIES = {
    "franka": "crisp_controllers",
    "ur5e": "cartesian_compliance_ur",
    "xarm7": "cartesian_motion_xarm",
    "ur5e_servo": "moveit_servo",
    "kinova_gen3": "cartesian_motion_kinova",
}
"""Driver file name of each profile of a real arm."""


def file_of(robot: str) -> Path:
    """Return the file that describes the driver of a robot."""
    return DATA / f"{FAMILIES[robot]}.yaml"


def driver_of(robot: str) -> Driver:
    return Driver.read(file_of(robot))
