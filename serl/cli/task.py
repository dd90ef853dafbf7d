"""`serl task new`: teach a task without a simulation at an arm, and write its file."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from serl.arm_profile import is_real, load_robot
from serl.cli.arguments import add_namespace, arm_words, quoted
from serl.cli.setup import SetupTerminal, setup_session
from serl.errors import BadInput
from serl.real_task import NAME, write_task
from serl.ros.setup.checks import SessionLeft
from serl.system.files import check_destination


def new_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `serl task new`."""
    parser.add_argument("name", metavar="NAME", help="name of the task, such as ram")
    parser.add_argument(
        "--robot",
        required=True,
        metavar="FILE",
        help="profile of the arm, with the workspace and cameras that `serl setup` wrote",
    )
    add_namespace(parser)
    parser.add_argument("--out", type=Path, metavar="FILE", help="file to write, else NAME.yaml")


def new(options: argparse.Namespace) -> int:
    """Guide a person through the teaching of a task; return exit code 1 if the person leaves.

    Raises:
        BadInput: the name, the file or the arm cannot be used, or ROS 2 is missing.
        SerlError: the arm does not answer, or a taught place cannot be used.
    """
    name, out = options.name, options.out or Path(f"{options.name}.yaml")
    if not re.fullmatch(NAME, name):
        raise BadInput(f"{name!r}: expected a name of lower-case letters, digits and _")
    if out.suffix != ".yaml":
        raise BadInput(f"--out {out}: expected a .yaml file")
    if out.exists():
        raise BadInput(f"{out}: exists already; give another --out")
    check_destination(out)
    if not is_real(options.robot):
        raise BadInput(f"--robot {options.robot}: expected a real arm's profile")
    profile = load_robot(options.robot)
    if profile.workspace is None:
        raise BadInput(f"arm {profile.name}: it has no workspace yet: serl setup {options.robot}")
    asker = SetupTerminal()
    with setup_session(profile, options.robot, options.namespace, out, asker) as session:
        from serl.ros.setup.task import teach_task  # rclpy: only after require_ros

        try:
            summary = asker.ask("task.summary", "Summary of the task, in a few words:")
            taught = teach_task(session)
        except SessionLeft:
            asker.show("stopped; nothing was written")
            return 1
    write_task(out, name, summary or name, taught.config, taught.training)
    asker.show(f"{out}\nnext: serl train {quoted(out)}{arm_words(options)} --console")
    return 0
