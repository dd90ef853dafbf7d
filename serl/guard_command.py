"""`serl guard`: the guard of one arm, alone; whoever drives the arm comes and goes."""

from __future__ import annotations

import argparse
import os
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import yaml

from serl import plugins
from serl.arm_profile import ArmProfile
from serl.assignment import make_task
from serl.config import resolve
from serl.errors import BadInput
from serl.files import write_atomic
from serl.guard_config import GuardConfig
from serl.guard_setup import guard_of, make_guard_config
from serl.robot_file import latch_path, write_robot

_NAMESPACE = re.compile(r"(/[A-Za-z][A-Za-z0-9_]*){1,2}/?")


class Place(NamedTuple):
    """Where an arm is in the ROS graph.

    Attributes:
        cell: the first part of its namespace.
        robot: the second one.
    """

    cell: str
    robot: str

    @property
    def namespace(self) -> str:
        """Of the arm, from the root."""
        return f"/{self.cell}/{self.robot}"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Of the command."""
    parser.add_argument("robot", help="name of an arm, or the path of its profile")
    parser.add_argument("--task", help="whose limits hold; else those of the profile's workspace")
    parser.add_argument("--namespace", help="of the arm, such as /sim/arm; /cell/NAME")
    parser.add_argument("--latch", type=Path, help="file that remembers a stop")
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
        config = make_guard_config(make_task(resolve({"task": options.task})), profile)
    require_ros()
    from serl.ros import guard_node  # rclpy: once it is known to be there

    latch = options.latch or latch_path(options.robot)
    domain = domain_id_of()
    os.environ["ROS_DOMAIN_ID"] = str(domain)
    fifo = () if options.fifo is None else ("--fifo", str(options.fifo))
    with tempfile.TemporaryDirectory(prefix="serl-guard-") as scratch:
        folder = Path(scratch) / place.cell
        folder.mkdir()
        meet_others(folder)
        print(  # noqa: T201
            f"{profile.name}: ROS_DOMAIN_ID={domain}, services under {place.namespace}/guard; "
            f"latch {latch}; Ctrl-C ends it",
            flush=True,
        )
        arguments = guard_arguments(folder, place, profile, config, latch)
        return guard_node.main([*arguments, *fifo])


def guard_arguments(
    folder: Path, place: Place, profile: ArmProfile, config: GuardConfig, latch: Path
) -> Sequence[str]:
    """What the guard's process is started with; what it reads is written for it."""
    settings, arm = folder / f"{place.robot}.guard.yaml", folder / f"{place.robot}.yaml"
    write_atomic(settings, yaml.safe_dump(config.model_dump(mode="json")).encode())
    write_robot(arm, profile)
    where = ("--run", str(folder), "--robot", place.robot, "--arm", str(arm))
    return (*where, "--config", str(settings), "--latch", str(latch))


def load_robot(robot: str) -> ArmProfile:
    """The profile of a known name, of a `.py` or of a `.yaml` file."""
    profile = plugins.load("robot", robot)
    if not isinstance(profile, ArmProfile):
        raise BadInput(f"robot {robot}: expected an ArmProfile, got {type(profile).__name__}")
    return profile


def place_of(profile: ArmProfile, namespace: str | None) -> Place:
    """Where an arm is: as asked, or beside other arms of the cell.

    Raises:
        BadInput: it is no namespace of one or two names.
    """
    if namespace is None:
        return Place("cell", profile.name)
    if not _NAMESPACE.fullmatch(namespace):
        raise BadInput(f"--namespace {namespace!r}: expected one such as /cell/arm")
    *cell, robot = namespace.strip("/").split("/")
    return Place(cell[0] if cell else "cell", robot)
