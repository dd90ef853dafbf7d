"""A node of serl that communicates with other programs, in its own process.

    python meeting_process.py FOLDER

Prints the results of its exchange with `stock_process.py`.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from std_msgs.msg import String

from serl.ros.environment import meet_others
from serl.ros.node import RosNode
from serl.ros.services import Remote
from serl.ros.topics import Topic
from serl.system.sockets import open_sockets

LIMIT_S = 60.0


def main(folder: Path) -> None:
    meet_others(folder)
    said: list[str] = []
    with RosNode("ours", folder, local=True) as node:
        node.subscribe(Topic("/stock/said", String, 10), lambda m: said.append(m.data))
        publisher = node.publisher(Topic("/stock/heard", String, 10))
        deadline_s = time.monotonic() + LIMIT_S
        while "well" not in said and time.monotonic() < deadline_s:
            publisher.publish(String(data="well"))
            time.sleep(0.05)
        print("echoed:", "well" in said)  # noqa: T201
        print("asked:", Remote(node, lambda: None).trigger("/stock/ask"))  # noqa: T201
        print("loopback:", all(found.address.is_loopback for found in open_sockets()))  # noqa: T201


if __name__ == "__main__":
    main(Path(sys.argv[1]))
