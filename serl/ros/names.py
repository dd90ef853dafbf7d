"""Names of nodes: what they are made of, known without rclpy."""

from __future__ import annotations

import re

USE_SIM_TIME = "use_sim_time"
"""The parameter by which a node takes its time from `/clock`."""

ARM_NODE = "arm"
"""Of a simulated arm, in the namespace of its robot."""


def ros_name(text: str) -> str:
    """The text as a valid ROS 2 name: letters, digits and single underscores, no digit first."""
    name = re.sub(r"[^A-Za-z0-9]+", "_", text).strip("_")
    return name if name[:1].isalpha() else f"run_{name}".rstrip("_")


def guard_name(robot: str) -> str:
    """Of the guard of a robot, which is known by its namespace."""
    return ros_name(f"guard_{robot}")


def link_name(actor: str) -> str:
    """Of the link beside an actor."""
    return ros_name(f"link_{actor}")
