"""Somebody who listens to setpoints as controllers of ros2_control do: reliable, one at a time.

python reader_process.py RUN TOPIC
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from geometry_msgs.msg import PoseStamped

from serl.ros.node import RosNode
from serl.ros.topics import Topic
from serl.system.supervisor import is_orphaned

if __name__ == "__main__":
    with RosNode("reader", Path(sys.argv[1]), local=True) as node:
        node.subscribe(Topic(sys.argv[2], PoseStamped, 1), lambda message: None)
        while not (node.stopping or is_orphaned()):
            time.sleep(0.05)
