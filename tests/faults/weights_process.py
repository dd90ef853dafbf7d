"""Process with only the link's weights receiver, which handles one message.

python -m tests.faults.weights_process FILE MESSAGE
"""

from __future__ import annotations

import sys
from pathlib import Path
from random import Random
from typing import cast

from serl.ros.node import RosNode
from serl.ros.nodes.link import WeightsReceiver
from serl.ros.topics import WEIGHTS, to_cdr
from serl.testing.samples import BLIND

from .cable import Cable

if __name__ == "__main__":
    cable = Cable(Random(0))
    receiver = WeightsReceiver(cast(RosNode, cable.node()), Path(sys.argv[1]), BLIND.digest)
    cable.node().publisher(WEIGHTS).publish(to_cdr(Path(sys.argv[2]).read_bytes()))
    cable.deliver()
    receiver.poll()
