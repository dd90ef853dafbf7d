"""Names, types and defaults of the drivers of arms, each with the upstream file that says so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

_FOLDER = Path(__file__).parents[1] / "ros" / "data"

FAMILIES = {
    "franka": "crisp_controllers",
    "ur5e": "cartesian_compliance_ur",
    "xarm7": "cartesian_motion_xarm",
    "ur5e_servo": "moveit_servo",
}
"""The file of facts behind each profile of ours."""


def facts(family: str) -> dict[str, Any]:
    """What a family's driver is called and has; not from our profile of it."""
    found: dict[str, Any] = yaml.safe_load((_FOLDER / f"{family}.yaml").read_text())
    return found


def joint_names(driver: dict[str, Any]) -> list[str]:
    """Of the arm, in their order."""
    joints = driver["joints"]
    count = joints.get("count", 0)
    return joints.get("names") or [f"{joints['prefix']}{n}" for n in range(1, count + 1)]
