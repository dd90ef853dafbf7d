"""An actor that moves an arm in a circle: 10 cm/s, ten targets a second, a beat every 15 ms.

python driving_process.py RUN ROBOT MODE
"""

from __future__ import annotations

import math
import os
import sys
from pathlib import Path

from geometry_msgs.msg import PoseStamped
from sensor_msgs.msg import JointState
from std_msgs.msg import Header

from serl.clock import WallClock
from serl.ros.arm.guard_topics import COMMAND_GRIPPER, COMMAND_POSE, HEARTBEAT, publisher_topic
from serl.ros.node import RosNode, namespace
from serl.ros.topics import Topic
from serl.system.supervisor import is_orphaned

RADIUS_M, SPEED_M_S, RATE_HZ = 0.05, 0.1, 10.0


def main() -> None:
    folder, robot, mode = Path(sys.argv[1]), sys.argv[2], sys.argv[3]

    def own(topic: Topic) -> Topic:
        return publisher_topic(topic)._replace(name=f"{namespace(folder)}/{robot}/{topic.name}")

    with RosNode(f"actor_{robot}", folder, local=True) as node:
        commands, beats = node.publisher(own(COMMAND_POSE)), node.publisher(own(HEARTBEAT))
        gripper, clock_now = node.publisher(own(COMMAND_GRIPPER)), node.handle.get_clock().now
        count = 0

        def beat() -> None:
            nonlocal count
            count += 1
            beats.publish(
                Header(stamp=clock_now().to_msg(), frame_id=f"{os.getpid()} {mode} {count}")
            )

        clock, step = WallClock(RATE_HZ, beat, 0.015), 0
        while not (node.stopping or is_orphaned()):
            angle = step * SPEED_M_S / RATE_HZ / RADIUS_M
            message = PoseStamped()
            message.header.frame_id, message.header.stamp = "base", clock_now().to_msg()
            place = message.pose.position
            place.x, place.z = 0.45 + RADIUS_M * (1.0 - math.cos(angle)), 0.2
            place.y = RADIUS_M * math.sin(angle)
            message.pose.orientation.x, message.pose.orientation.w = 1.0, 0.0
            commands.publish(message)
            gripper.publish(JointState(header=message.header, position=[1.0]))
            step += 1
            clock.wait()


if __name__ == "__main__":
    main()
