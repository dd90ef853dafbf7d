"""Names of nodes and their rules; importable without rclpy."""

from __future__ import annotations

import re

USE_SIM_TIME = "use_sim_time"
"""Name of the parameter that makes a node take its time from `/clock`."""

ARM_NODE = "arm"
"""Node name of a simulated arm, in the namespace of its robot."""


def ros_name(text: str) -> str:
    """Make a valid ROS 2 name of a text: letters, digits, single underscores, no digit first."""
    name = re.sub(r"[^A-Za-z0-9]+", "_", text).strip("_")
    return name if name[:1].isalpha() else f"run_{name}".rstrip("_")


def guard_name(robot: str) -> str:
    """Return the node name of a robot's guard; the robot is given by its namespace."""
    return ros_name(f"guard_{robot}")


def link_name(actor: str) -> str:
    """Return the node name of an actor's link."""
    return ros_name(f"link_{actor}")
