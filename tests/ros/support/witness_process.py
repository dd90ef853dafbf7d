"""Writes down what an arm hears of its guard, where the arm itself is killed.

    python witness_process.py RUN ROBOT

In `arm.txt` of the run, as `arm_process.py` does: setpoints, and states of the guard.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from geometry_msgs.msg import PoseStamped
from rclpy.qos import QoSProfile, ReliabilityPolicy

from serl.ros.arm.guard_topics import GUARD_STATE
from serl.ros.node import RosNode, namespace
from serl.ros.topics import Topic
from serl.system.supervisor import is_orphaned


def main() -> None:
    folder, robot = Path(sys.argv[1]), sys.argv[2]
    prefix = f"{namespace(folder)}/{robot}"
    many = QoSProfile(depth=200, reliability=ReliabilityPolicy.RELIABLE)
    with (
        (folder / "arm.txt").open("a", buffering=1) as log,
        RosNode(f"witness_{robot}", folder, local=True) as node,
    ):

        def write(text: str) -> None:
            log.write(f"{time.monotonic():.6f} {text}\n")

        def follow(message: Any) -> None:
            place = message.pose.position
            write(f"setpoint {place.x!r} {place.y!r} {place.z!r}")

        node.subscribe(Topic(f"{prefix}/target_pose", PoseStamped, many), follow)
        state = GUARD_STATE._replace(name=f"{prefix}/{GUARD_STATE.name}", qos=many)
        node.subscribe(state, lambda message: write(f"state {message.message}"))
        while not (node.stopping or is_orphaned()):
            time.sleep(0.05)


if __name__ == "__main__":
    main()
