"""`serl doctor`: checks of an installation, a ROS graph or a robot, with advice for each fault."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from serl.arm_profile import load_robot
from serl.cli.arguments import add_namespace, check_namespace
from serl.ros.doctor import Finding, findings, network_findings
from serl.runs.folder import RunFolder
from serl.runs.graph_file import checked_namespace
from serl.system.authentication import new_key


def robot_findings(robot: str, namespace: str) -> Iterator[Finding]:
    """Check an arm's driver by its topics and parameters; nothing is commanded or set.

    Args:
        robot: name of a profile, or path of a .py or .yaml file.
        namespace: namespace of the driver's topics, from the root.

    Raises:
        BadInput: the robot does not exist, or ROS 2 is missing.
    """
    profile, arm = load_robot(robot), checked_namespace(namespace).rstrip("/")
    from serl.ros.environment import domain_id_of, lone_folder
    from serl.ros.processes import require_ros

    require_ros()
    from serl.ros.node import RosNode  # rclpy: only after require_ros
    from serl.ros.setup.driver_check import RobotCheck

    yield Finding(True, "profile", f"{profile.name}: {profile.summary}")
    with lone_folder("doctor") as folder, RosNode("doctor", folder, local=True) as node:
        for finding in RobotCheck(node, profile, arm).findings():
            if finding.subject == "driver" and not finding.sound:
                remedy = (
                    f"start the driver on this host, with ROS_DOMAIN_ID={domain_id_of()} and the "
                    "default transports of ROS 2"
                )
                finding = finding._replace(text=f"{finding.text}; {remedy}")
            yield finding


def examine_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `serl doctor`."""
    group = parser.add_mutually_exclusive_group()
    group.add_argument(
        "--network",
        nargs="?",
        const="",
        metavar="RUN",
        help="list the open sockets of a node, with the network settings of RUN if given",
    )
    group.add_argument(
        "--graph",
        nargs="?",
        const="",
        metavar="RUN|DOMAIN",
        help="list publishers, subscribers, rates and faults in the ROS domain of RUN, or in "
        "DOMAIN (default: ROS_DOMAIN_ID)",
    )
    group.add_argument(
        "--robot", metavar="NAME", help="compare an arm's driver with its profile; nothing moves"
    )
    group.add_argument(
        "--new-key",
        type=Path,
        metavar="FILE",
        help="write a new key, for training on several hosts",
    )
    add_namespace(parser)


def examine(options: argparse.Namespace) -> int:
    """Print the findings; return exit code 1 when there is a fault.

    Raises:
        BadInput: the run, domain or robot does not exist, or cannot be examined.
    """
    check_namespace(options)
    if options.new_key:
        new_key(options.new_key)
        print(f"new key: {options.new_key}; copy it to each host of the training, and nowhere else")
        return 0
    if options.graph is not None:
        from serl.cli.doctor_graph import examine_graph  # imports rclpy

        return 0 if examine_graph(options.graph) else 1
    sound = True
    for finding in _findings(options):
        print(finding, flush=True)
        sound &= finding.sound
    return 0 if sound else 1


def _findings(options: argparse.Namespace) -> Iterator[Finding]:
    if options.robot is not None:
        return robot_findings(options.robot, options.namespace)
    if options.network is None:
        return findings()
    path = Path(options.network) if options.network else None
    return network_findings(path and RunFolder.open(path, data_only=True).path)
