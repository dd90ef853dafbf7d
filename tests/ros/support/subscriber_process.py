"""A reliable subscriber of the setpoints and guard states that an arm receives.

    python subscriber_process.py RUN ROBOT [FILE]

It appends them to the file, as `arm_process.py` does, where the arm itself is killed. Without one
it keeps one message of each, as controllers of ros2_control do.
"""

from __future__ import annotations

import os
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


def main(folder: Path, robot: str, file: str = "") -> None:
    prefix = f"{namespace(folder)}/{robot}"
    qos = QoSProfile(depth=200 if file else 1, reliability=ReliabilityPolicy.RELIABLE)
    with (
        Path(file or os.devnull).open("a", buffering=1) as log,
        RosNode(f"subscriber_{robot}", folder, local=True) as node,
    ):

        def write(text: str) -> None:
            log.write(f"{time.monotonic():.6f} {text}\n")

        def on_setpoint(message: Any) -> None:
            place = message.pose.position
            write(f"setpoint {place.x!r} {place.y!r} {place.z!r}")

        node.subscribe(Topic(f"{prefix}/target_pose", PoseStamped, qos), on_setpoint)
        state = GUARD_STATE._replace(name=f"{prefix}/{GUARD_STATE.name}", qos=qos)
        node.subscribe(state, lambda message: write(f"state {message.message}"))
        while not (node.stopping or is_orphaned()):
            time.sleep(0.05)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
