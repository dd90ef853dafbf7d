"""`serl sim`: the simulated arm as a ROS 2 robot, for use with any controller."""

from __future__ import annotations

import argparse
import os
from typing import Any

from serl.arm_pair import SIDES
from serl.cli.arguments import add_config, add_task, number
from serl.errors import BadInput
from serl.runs.config import parse_overrides, resolve
from serl.system.settings_file import checked, read_yaml

ROBOT = "arm"


def simulate_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `serl sim`."""
    add_task(parser)
    add_config(parser)
    parser.add_argument(
        "--rtf",
        type=number(0.01, 100),
        default=1.0,
        metavar="FACTOR",
        help="speed: simulated time per wall-clock time",
    )
    parser.add_argument(
        "--lockstep", action="store_true", help="simulated time passes only in calls of a service"
    )
    parser.add_argument(
        "--rehearsal",
        action="store_true",
        help="behave like a real arm: publish no ground truth, and have faults (--rehearsal.*)",
    )


def simulate(options: argparse.Namespace) -> int:
    """Run a simulated arm until Ctrl-C.

    Raises:
        BadInput: ROS 2 is missing, or a setting is invalid.
    """
    from serl.plugins import check_simulated
    from serl.ros.arm.rehearsal import LOOKS
    from serl.ros.environment import clean_shared_memory, free_domain, lone_folder
    from serl.ros.processes import require_ros
    from serl.runs.task_setup import check_topics, make_task

    require_ros()
    file = read_yaml(options.config) if options.config else {}
    overrides = parse_overrides(options.overrides)
    faults = _rehearsal(overrides.pop("rehearsal", None), options)
    looks = LOOKS if faults is not None else {}
    config = resolve(looks, file, overrides, {"task": options.task})
    task = make_task(config)
    check_simulated(task)  # before the arm is announced
    pair = faults is not None and task.scene.robot == "bimanual"
    if task.scene.robot == "bimanual" and not pair:
        raise BadInput(f"{task.name}: two arms: expected --rehearsal, which serves both")
    check_topics(task, pair)
    places = " and ".join(f"/sim/{side}" for side in SIDES) if pair else f"/sim/{ROBOT}"
    clean_shared_memory()
    with free_domain() as domain:
        from serl.ros.nodes.sim import run  # rclpy: only after require_ros

        os.environ["ROS_DOMAIN_ID"] = str(domain.id)
        print(
            f"{config.task}: ROS_DOMAIN_ID={domain.id}, topics and services under {places}; "
            "Ctrl-C ends it",
            flush=True,
        )
        with lone_folder("sim", "sim") as folder:
            run(folder, config, ROBOT, options.lockstep, options.rtf, True, faults)
    return 0


def _rehearsal(given: Any, options: argparse.Namespace) -> Any:
    """Return the settings of the rehearsal arm; None without one."""
    from serl.ros.arm.rehearsal import RehearsalConfig

    if not options.rehearsal and given is None:
        return None
    if options.lockstep:
        raise BadInput("--lockstep: a rehearsal arm moves in real time, as a real one does")
    return checked(RehearsalConfig, given or {}, "rehearsal.")
