"""The process that learns: a ROS 2 node around `serl.learner`.

python -m serl.ros.learner_node --run runs/pick_cube/2026-11-21_10-00-00
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from serl.config import TrainConfig
from serl.continuation import Continuation
from serl.learner import Learner
from serl.metrics import MetricsWriter
from serl.ros.node import RosNode, own_arguments, run_node
from serl.ros.parameters import Described
from serl.ros.services import Request
from serl.ros.stats import Stats, Value
from serl.ros.transport import LearnerTransport
from serl.run_folder import RunFolder
from serl.supervisor import orphaned


def run(run_folder: Path) -> None:
    """Learn until the run's steps are done or the process is told to stop."""
    folder = RunFolder.open(run_folder)
    with (
        folder.lock_learner(),
        RosNode("learner", run_folder, parameters=_described(folder.config)) as node,
        MetricsWriter(folder.path) as metrics,
        closing(Continuation(folder, metrics)) as continuation,
    ):
        index = continuation.index
        transport = LearnerTransport(
            node, continuation.spec, folder.name, index.cursors, continuation.claim, index.places
        )
        learner = continuation.learner(transport)
        Stats(node, "learner", lambda: _numbers(learner, transport))
        save = Request(node, "save")
        learner.run(folder.config.steps, lambda: _interrupted(node, learner, save))
        transport.flush()  # the last weights say that the training is over


def _described(config: TrainConfig) -> dict[str, Described]:
    """Parameters that say how it learns; services of the run change nothing of it."""
    agent = config.agent
    return {
        "task": Described(config.task, "name of the task, or path of its file"),
        "steps": Described(config.steps, "online steps to train on"),
        "batch_size": Described(agent.batch_size, "transitions of each critic update"),
        "utd": Described(agent.utd, "critic updates for each online step"),
    }


def _interrupted(node: RosNode, learner: Learner, save: Request) -> bool:
    if save.taken():
        learner.checkpoint()
    return node.stopping or orphaned()


def _numbers(learner: Learner, transport: LearnerTransport) -> dict[str, Value]:
    progress = learner.progress
    return {
        "received": float(progress.received),
        "trained": float(progress.steps),
        "version": float(progress.version),
        "replay": float(learner.replay.online),
        "dropped": float(learner.replay.dropped),
        **{name: float(count) for name, count in transport.counts.items()},
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; exit code 2 on bad input, with one line on why."""
    parser = argparse.ArgumentParser(prog="python -m serl.ros.learner_node", description=__doc__)
    parser.add_argument("--run", type=Path, required=True, help="folder of the run")
    options = parser.parse_args(own_arguments(arguments))
    return run_node(lambda: run(options.run))


if __name__ == "__main__":
    sys.exit(main())
