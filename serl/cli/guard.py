"""`serl guard`: the guard of one arm on its own; programs that drive the arm may come and go."""

from __future__ import annotations

import argparse
from pathlib import Path

from serl.arm_profile import is_real, latch_path, load_robot
from serl.cli.arguments import integer
from serl.cli.terminal import print_cut_boxes
from serl.runs.config import resolve
from serl.runs.guard_setup import guard_arguments, guarded_arm, place_of, workspace_guard


def guard_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `serl guard`."""
    parser.add_argument(
        "robot", metavar="ROBOT", help="name of an arm (`serl list`), or path of its profile"
    )
    parser.add_argument(
        "--task", help="the task whose limits apply, else the workspace of the profile applies"
    )
    parser.add_argument(
        "--namespace", help="namespace of the arm's topics, such as /sim/arm, else /cell/NAME"
    )
    parser.add_argument(
        "--latch",
        type=Path,
        metavar="FILE",
        help="file that keeps a stop across restarts, else the arm's own",
    )
    parser.add_argument(
        "--fifo",
        type=integer(1, 99),
        metavar="PRIORITY",
        help="real-time priority (SCHED_FIFO), 1 to 99",
    )


def guard(options: argparse.Namespace) -> int:
    """Guard an arm until Ctrl-C.

    Raises:
        BadInput: ROS 2 is missing, or a profile, a task or a limit is invalid.
    """
    from serl.ros.environment import domain_id_of, lone_folder
    from serl.ros.processes import require_ros

    profile = load_robot(options.robot)
    place = place_of(profile, options.namespace)
    if options.task is None or (is_real(options.robot) and profile.workspace is None):
        config = workspace_guard(profile)  # refuses an arm without one, which has no other box here
    else:
        settings = resolve({"task": options.task})
        _, config = guarded_arm(settings, options.robot)
        print_cut_boxes(settings, options.robot)
    require_ros()
    from serl.ros.nodes import guard as guard_node  # rclpy: only after require_ros

    latch = options.latch or latch_path(options.robot, profile, place.namespace)
    fifo = () if options.fifo is None else ("--fifo", str(options.fifo))
    with lone_folder("guard", place.cell) as folder:
        print(
            f"{profile.name}: ROS_DOMAIN_ID={domain_id_of()}, services under {place.prefix}/guard; "
            f"latch {latch}; Ctrl-C ends it",
            flush=True,
        )
        arguments = guard_arguments(folder, place, profile, config, latch)
        return guard_node.main([*arguments, *fifo])
