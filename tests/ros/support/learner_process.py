"""A learner without training that records the keys of received records.

    python learner_process.py RUN_FOLDER HELLO_FILE

The lines of `received.txt` are also its cursors: after a kill it continues behind them.
Like the real learner it holds the run's lock, which tells a cut-off link that it is alive
and makes it rejoin. Its weights are the name of its folder. `counts.json` has its counters.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections import Counter
from contextlib import closing
from pathlib import Path

import numpy as np

from serl.log.wire import decode_hello
from serl.ros.link.receiver import LearnerTransport
from serl.ros.node import RosNode
from serl.runs.folder import LEARNER_LOCK
from serl.system.files import FileLock, write_atomic
from serl.transport import Snapshot


def main(run_folder: Path, hello_file: Path) -> None:
    hello = decode_hello(hello_file.read_bytes())
    received = run_folder / "received.txt"
    lines = received.read_text().splitlines(keepends=True) if received.exists() else []
    whole = [line.split() for line in lines if line.endswith("\n")]
    received.write_text("".join(line for line in lines if line.endswith("\n")))
    cursors = Counter((actor, int(epoch)) for actor, epoch, _, _ in whole)
    with (
        closing(FileLock(run_folder / LEARNER_LOCK, "learner")),
        RosNode("learner", run_folder) as node,
        received.open("ab", buffering=0) as file,
    ):
        transport = LearnerTransport(node, hello.spec, hello.run, cursors)
        name = np.frombuffer(str(run_folder).encode(), np.uint8)
        published_s, version = -math.inf, 0
        written = b""
        while not node.stopping:
            if time.monotonic() - published_s > 1.0:  # foreign weights can displace the last ones
                published_s, version = time.monotonic(), version + 1
                transport.publish(Snapshot(version, {}, {"folder": name}))
            keys = [record.key for record in transport.receive()]
            text = "".join(f"{k.actor} {k.epoch} {k.episode} {k.index}\n" for k in keys)
            file.write(text.encode())
            counts = json.dumps({**transport.counts, **node.counts}).encode()
            if counts != written:
                write_atomic(run_folder / "counts.json", written := counts)
            if not keys:
                node.wait(0.005)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
