"""An operator's device that rests until it is received, then drives a circle by the pose.

python device_process.py RUN ROBOT
"""

from __future__ import annotations

import math
import sys
import time
from pathlib import Path

from geometry_msgs.msg import PoseStamped

from serl.cli.teleop import BEAT_S
from serl.ros.node import RosNode
from serl.ros.people.teleop import RemoteHand, device_topics
from serl.ros.topics import Topic, latest_only
from serl.system.supervisor import is_orphaned
from serl.teleop.mapping import AXES, Wish

OFF_BEATS, PAUSE_S, STUCK_S = 50, 0.5, 3.0
CENTRE_M, RADIUS_M, PUSH = (0.45, 0.0), 0.05, 0.67
REST = Wish((0.0,) * len(AXES), False, ())


def around(x: float, y: float) -> Wish:
    """Return the input that moves along the circle and corrects towards it."""
    x, y = x - CENTRE_M[0], y - CENTRE_M[1]
    back = (RADIUS_M - math.hypot(x, y)) / RADIUS_M
    angle = math.atan2(y, x) + math.atan2(1.0, back)
    rest = (0.0,) * (len(AXES) - 2)
    return Wish((PUSH * math.cos(angle), PUSH * math.sin(angle), *rest), True, ())


def main() -> None:
    folder, robot = Path(sys.argv[1]), sys.argv[2]
    seen = before = (0.0, 0.0)
    moved_s = time.monotonic()

    def see(message: PoseStamped) -> None:
        nonlocal seen, before, moved_s
        seen = message.pose.position.x, message.pose.position.y
        if math.dist(seen, before) > 1e-3:
            before, moved_s = seen, time.monotonic()

    with RosNode("device", folder, local=True) as node:
        node.subscribe(Topic(f"{robot}/current_pose", PoseStamped, latest_only()), see)
        topic = device_topics(robot)[0]
        hand = RemoteHand(node, topic)
        count, sent_s = 0, time.monotonic()
        while not (node.stopping or is_orphaned()):
            last_s, sent_s = sent_s, time.monotonic()
            if sent_s - last_s > PAUSE_S or sent_s - moved_s > STUCK_S:
                count, moved_s = 0, sent_s  # rest first after a pause or without motion
            hand.send(REST if count < OFF_BEATS else around(*seen))
            # The first received message must not have hands on.
            count += node.handle.count_subscribers(node.absolute(topic.name)) > 0
            time.sleep(BEAT_S)


if __name__ == "__main__":
    main()
