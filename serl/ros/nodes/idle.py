"""An idle process of a run, whose sockets `serl doctor --network` lists.

    python -m serl.ros.nodes.idle --run runs/pick_cube/2026-11-21_10-00-00

It subscribes to every topic between actors and learner, prints `ready`, and ends at the end of its
standard input.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from serl.ros.node import RosNode, own_arguments, run_node
from serl.ros.topics import ACKS, ACTORS, REFUSED, STATS, TRANSITIONS, WEIGHTS


def run(run_folder: Path) -> None:
    """Join the run's network until the standard input ends."""
    with RosNode("doctor", run_folder) as node:
        for topic in (ACKS, ACTORS, REFUSED, STATS, TRANSITIONS, WEIGHTS):
            node.subscribe(topic, lambda message: None, raw=True)
        print("ready", flush=True)  # noqa: T201
        sys.stdin.read()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the process; the exit code is 2 on bad input, with the reason in one line."""
    parser = argparse.ArgumentParser(prog="python -m serl.ros.nodes.idle", description=__doc__)
    parser.add_argument("--run", type=Path, required=True, help="folder of the run")
    options = parser.parse_args(own_arguments(arguments))
    return run_node(lambda: run(options.run))


if __name__ == "__main__":
    sys.exit(main())
