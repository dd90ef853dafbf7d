"""A node that publishes the reward of another process, ten times a second.

    python reward_process.py FOLDER TOPIC KIND

It publishes the numbers that it reads from its input, each until the next; "-" for none.
"""

from __future__ import annotations

import queue
import sys
import threading
from pathlib import Path

from serl.ros.node import RosNode
from serl.ros.reward_topic import KINDS
from serl.ros.topics import Topic
from serl.system.supervisor import is_orphaned


def main() -> None:
    folder, name, kind = Path(sys.argv[1]), sys.argv[2], KINDS[sys.argv[3]]
    words: queue.Queue[str] = queue.Queue()
    threading.Thread(target=lambda: [*map(words.put, sys.stdin)], daemon=True).start()
    number: float | None = None
    with RosNode("switch", folder, local=True) as node:
        publisher = node.publisher(Topic(name, kind, 10))
        while not (node.stopping or is_orphaned()):
            if not words.empty():
                word = words.get().strip()
                number = None if word == "-" else float(word)
            if number is not None:
                message = kind()
                if sys.argv[3] == "PointStamped":
                    message.point.x = number
                    message.header.stamp = node.handle.get_clock().now().to_msg()
                else:
                    message.data = bool(number) if sys.argv[3] == "Bool" else number
                publisher.publish(message)
            node.wait(0.05)


if __name__ == "__main__":
    main()
