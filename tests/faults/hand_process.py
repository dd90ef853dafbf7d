"""Operator process of an actor: no input until connected, then pushing at 50 messages per second.

python hand_process.py RUN ACTOR
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from serl.ros.node import RosNode
from serl.ros.people.teleop import RemoteHand, console_topic
from serl.system.supervisor import is_orphaned
from serl.teleop.mapping import AXES, Wish

OFF_BEATS, BEAT_S = 50, 0.02
REST = Wish((0.0,) * len(AXES), False, ())
PUSH = Wish((0.5, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0), True, ())


def main() -> None:
    folder, actor = Path(sys.argv[1]), sys.argv[2]
    with RosNode("hand", folder, local=True) as node:
        hand = RemoteHand(node, console_topic(actor))
        count = 0
        while not (node.stopping or is_orphaned()):
            hand.send(REST if count < OFF_BEATS else PUSH)
            # Operator input that is active in the first received message is ignored.
            count += hand.has_subscriber
            time.sleep(BEAT_S)


if __name__ == "__main__":
    main()
