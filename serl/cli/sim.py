"""`serl sim`: the simulated arm as a ROS 2 robot, for use with any controller."""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

from serl.errors import BadInput
from serl.runs.config import parse_overrides, resolve
from serl.system.settings_file import read_yaml

ROBOT = "arm"
_FASTEST = 100.0


def simulate_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `serl sim`."""
    parser.add_argument("task", help="name of a task or path of a .py file")
    parser.add_argument("--config", type=Path, help="YAML file of settings")
    parser.add_argument("--rtf", type=float, default=1.0, help="times as fast as the wall clock")
    parser.add_argument("--lockstep", action="store_true", help="time passes in a service only")


def simulate(options: argparse.Namespace) -> int:
    """Run a simulated arm until Ctrl-C.

    Raises:
        BadInput: ROS 2 is missing, or a setting is invalid.
    """
    from serl.ros.environment import clean_shared_memory, free_domain, meet_others
    from serl.ros.processes import require_ros
    from serl.runs.task_setup import check_topics, make_task

    if not 0.0 < options.rtf <= _FASTEST:
        raise BadInput(f"--rtf {options.rtf:g}: expected above 0, at most {_FASTEST:g}")
    require_ros()
    file = read_yaml(options.config) if options.config else {}
    config = resolve(file, parse_overrides(options.overrides), {"task": options.task})
    check_topics(make_task(config))  # before the arm is announced
    clean_shared_memory()
    with free_domain() as domain, tempfile.TemporaryDirectory(prefix="serl-sim-") as scratch:
        from serl.ros.nodes.sim import run  # rclpy: only after require_ros

        folder = Path(scratch) / "sim"
        folder.mkdir()
        meet_others(folder)
        os.environ["ROS_DOMAIN_ID"] = str(domain.id)
        print(
            f"{config.task}: ROS_DOMAIN_ID={domain.id}, topics and services under /sim/{ROBOT}; "
            "Ctrl-C ends it",
            flush=True,
        )
        run(folder, config, ROBOT, options.lockstep, options.rtf, clock=True)
    return 0
