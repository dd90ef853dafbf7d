"""`serl doctor --robot`: an arm's driver against its profile, before anything moves."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from serl.ros.doctor import Finding
from serl.runs.graph_file import checked_namespace
from serl.robot_file import load_robot


def robot_findings(robot: str, namespace: str) -> Iterator[Finding]:
    """Listen to an arm's driver, and ask it for its parameters; nothing is commanded or set.

    Args:
        robot: name of a profile, or path of a .py or .yaml file.
        namespace: of the driver's topics, from the root.

    Raises:
        BadInput: there is no such robot, or ROS 2 is missing.
    """
    profile, arm = load_robot(robot), checked_namespace(namespace).rstrip("/")
    from serl.ros.environment import domain_id_of, meet_others
    from serl.ros.processes import require_ros

    require_ros()
    domain = os.environ["ROS_DOMAIN_ID"] = str(domain_id_of())
    from serl.ros.node import RosNode  # rclpy: once it is known to be there
    from serl.ros.setup.driver_check import RobotCheck

    yield Finding(True, "profile", f"{profile.name}: {profile.summary}")
    with tempfile.TemporaryDirectory(prefix="serl-doctor-") as scratch:
        meet_others(Path(scratch))
        with RosNode("doctor", Path(scratch), local=True) as node:
            for finding in RobotCheck(node, profile, arm).findings():
                if finding.subject == "driver" and not finding.sound:
                    finding = finding._replace(text=f"{finding.text}; {_met_with(domain)}")
                yield finding


def _met_with(domain: str) -> str:
    """What makes a driver visible."""
    return (
        f"a driver is seen that was started on this host with ROS_DOMAIN_ID={domain}, and with "
        "the transports that ROS 2 has by default"
    )
