"""`serl order`: end a stop or arm a guard by an order signed with the guard's or actor's key."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from serl.errors import BadInput
from serl.system.signed_order import load_order_key

_LIMIT_S = 20.0
_SERVICE = re.compile(r"(/[A-Za-z][A-Za-z0-9_]*){2,}")


def order_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `serl order`."""
    parser.add_argument(
        "services",
        nargs="+",
        metavar="SERVICE",
        help="services to call, in this order, such as /cell/left/guard/ack",
    )
    parser.add_argument(
        "--key",
        type=Path,
        required=True,
        metavar="FILE",
        help="key file of the guard (LATCH.key) or of the actor (link/ACTOR/stopped.key)",
    )


def order(options: argparse.Namespace) -> int:
    """Send signed orders, one after the other, and print the answers.

    Raises:
        BadInput: ROS 2 is missing, a name is invalid, or the key cannot be read.
        SerlError: an order was refused, or not answered; the remaining ones are not sent.
    """
    from serl.ros.environment import lone_folder
    from serl.ros.processes import require_ros

    for service in options.services:
        if not _SERVICE.fullmatch(service):
            raise BadInput(f"{service!r}: expected a service such as /cell/left/guard/ack")
    load_order_key(options.key)
    require_ros()
    from serl.ros.node import RosNode  # rclpy: only after require_ros
    from serl.ros.services import Remote

    with lone_folder("order") as folder, RosNode("order", folder, local=True) as node:
        remote = Remote(node, lambda: None)
        for service in options.services:
            answer = remote.order(service, options.key, _LIMIT_S)
            print(f"{service}: {answer}", flush=True)
    return 0
