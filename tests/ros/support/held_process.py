"""The stop and release services of an actor without a robot.

python held_process.py RUN ACTOR
"""

from __future__ import annotations

import sys
from pathlib import Path

from serl.ros.node import RosNode
from serl.ros.people.control import Control
from serl.system.supervisor import is_orphaned
from serl.teleop.human_input import HumanInput
from serl.teleop.mux import TeleopMux
from serl.teleop.stop import STOP_FILE, StopLatch


def main() -> None:
    run, actor = Path(sys.argv[1]), sys.argv[2]
    link = run / "link" / actor
    link.mkdir(parents=True)
    desk = HumanInput(TeleopMux([]), StopLatch(link / STOP_FILE), run)
    with RosNode(actor, run, local=True) as node:
        Control(node, actor, desk, lambda: False, None)
        while not (node.stopping or is_orphaned()):
            node.wait(0.1)


if __name__ == "__main__":
    main()
