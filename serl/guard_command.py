"""`serl guard`: the guard of one arm, alone; whoever drives the arm comes and goes."""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import yaml

from serl.arm_profile import ArmProfile
from serl.config import resolve
from serl.files import write_atomic
from serl.guard_config import GuardConfig
from serl.guard_setup import guard_of, guarded_arm
from serl.robot_command import checked_namespace
from serl.robot_file import latch_path, load_robot, write_robot


class Place(NamedTuple):
    """Where an arm is in the ROS graph.

    Attributes:
        cell: name of the folder of its nodes, and so their namespace.
        robot: the arm's own namespace: below that of the cell, or from the root where it begins
            with a slash; empty for the root itself.
    """

    cell: str
    robot: str

    @property
    def namespace(self) -> str:
        """Of the arm, from the root; "/" for the root itself."""
        if self.robot and not self.robot.startswith("/"):
            return f"/{self.cell}/{self.robot}"
        return self.robot or "/"

    @property
    def prefix(self) -> str:
        """What its names begin with, from the root, before their first slash."""
        return self.namespace.rstrip("/")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Of the command."""
    parser.add_argument("robot", help="name of an arm, or the path of its profile")
    parser.add_argument("--task", help="whose limits hold; else those of the profile's workspace")
    parser.add_argument("--namespace", help="of the arm, such as /sim/arm, or /; /cell/NAME")
    parser.add_argument("--latch", type=Path, help="file that remembers a stop, else the arm's own")
    parser.add_argument("--fifo", type=int, metavar="PRIORITY", help="real-time, 1 to 99")


def guard(options: argparse.Namespace) -> int:
    """Guard an arm until Ctrl-C.

    Raises:
        BadInput: ROS 2 is missing, or a profile, a task or a limit is wrong.
    """
    from serl.ros.environment import domain_id_of, meet_others
    from serl.ros.graph import require_ros

    profile = load_robot(options.robot)
    place = place_of(profile, options.namespace)
    if options.task is None:
        config = guard_of(profile)
    else:
        _, config = guarded_arm(resolve({"task": options.task}), options.robot)
    require_ros()
    from serl.ros import guard_node  # rclpy: once it is known to be there

    latch = options.latch or latch_path(options.robot, profile, place.namespace)
    domain = domain_id_of()
    os.environ["ROS_DOMAIN_ID"] = str(domain)
    fifo = () if options.fifo is None else ("--fifo", str(options.fifo))
    with tempfile.TemporaryDirectory(prefix="serl-guard-") as scratch:
        folder = Path(scratch) / place.cell
        folder.mkdir()
        meet_others(folder)
        print(  # noqa: T201
            f"{profile.name}: ROS_DOMAIN_ID={domain}, services under {place.prefix}/guard; "
            f"latch {latch}; Ctrl-C ends it",
            flush=True,
        )
        arguments = guard_arguments(folder, place, profile, config, latch)
        return guard_node.main([*arguments, *fifo])


def guard_arguments(
    folder: Path, place: Place, profile: ArmProfile, config: GuardConfig, latch: Path
) -> Sequence[str]:
    """What the guard's process is started with; what it reads is written for it."""
    settings, arm = folder / "guard.yaml", folder / "arm.yaml"
    write_atomic(settings, yaml.safe_dump(config.model_dump(mode="json")).encode())
    write_robot(arm, profile)
    where = ("--run", str(folder), "--robot", place.robot or "/", "--arm", str(arm))
    return (*where, "--config", str(settings), "--latch", str(latch))


def place_of(profile: ArmProfile, namespace: str | None) -> Place:
    """Where an arm is: in the namespace that was asked for, or beside other arms of the cell.

    Raises:
        BadInput: it is no namespace.
    """
    if namespace is None:
        return Place("cell", profile.name)
    return Place("cell", checked_namespace(namespace).rstrip("/"))
