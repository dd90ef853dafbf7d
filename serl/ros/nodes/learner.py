"""The learner process: a ROS 2 node around `serl.training.learner`.

    python -m serl.ros.nodes.learner --run runs/pick_cube/2026-11-21_10-00-00

When configured, it loads the run; while active, it trains. When deactivated it saves a checkpoint,
then receives the actors' records without training on them. A loaded run stays loaded.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path

from serl import plugins
from serl.log.metrics import MetricsWriter
from serl.ros.link.receiver import LearnerTransport
from serl.ros.node import RosNode, own_arguments, run_node
from serl.ros.parameters import DescribedParameter
from serl.ros.services import Request
from serl.ros.telemetry import WELL, Health, Stats, Value
from serl.runs.config import TrainConfig
from serl.runs.folder import RunFolder
from serl.runs.resume import Continuation
from serl.system.supervisor import is_orphaned
from serl.training.learner import Learner
from serl.training.link import read_home
from serl.training.plain_link import ExactlyOnce, close_end
from serl.transport import DDS, RunIdentity

_LOOK_S = 0.1
_LINKS_S = 30.0


def run(run_folder: Path) -> None:
    """Train until the run's steps are done or the process is asked to stop."""
    folder = RunFolder.open(run_folder)
    with (
        folder.lock_learner(),
        RosNode("learner", run_folder, parameters=_described(folder.config), managed=True) as node,
    ):
        LearnerNode(node, folder).run()


class LearnerNode:
    """A learner managed by ROS 2's lifecycle tools."""

    def __init__(self, node: RosNode, folder: RunFolder) -> None:
        self._node, self._folder = node, folder
        self._learner: Learner | None = None  # once it is loaded
        self._transport: LearnerTransport | ExactlyOnce | None = None
        self._save = Request(node, "save")
        Stats(node, "learner", self._numbers, self._health)
        node.handle.manage()

    def run(self) -> None:
        """Load the run once the node is configured, and train until done or asked to stop."""
        node, folder = self._node, self._folder
        while not node.handle.configured:
            if self._stopping():
                return
            node.wait(_LOOK_S)
        with (
            MetricsWriter(folder.path, wandb=folder.config.log.wandb) as metrics,
            closing(Continuation(folder, metrics)) as continuation,
            ExitStack() as stack,
        ):
            transport = self._open_end(continuation)
            stack.callback(close_end, transport)
            learner = continuation.learner(transport)
            self._transport, self._learner = transport, learner
            learner.run(folder.config.steps, lambda: self._interrupted(learner))
            if isinstance(transport, LearnerTransport):
                self._await_links(transport, {actor for actor, _ in continuation.index.cursors})
            transport.flush()  # the last weights mark the end of the training

    def _open_end(self, continuation: Continuation) -> LearnerTransport | ExactlyOnce:
        """Return the learner's end of the run's transport."""
        folder, index, spec = self._folder, continuation.index, continuation.spec
        config = folder.config.transport
        if config.kind == DDS:
            return LearnerTransport(
                self._node,
                spec,
                folder.name,
                index.cursors,
                continuation.claim,
                index.places,
                folder.config.actors,
            )

        def admit(actor: str) -> str:
            home = read_home(folder.link(actor))
            here = continuation.claim(actor, home, str(folder.link(actor).resolve()))
            return here if home else f"{actor}: this transport needs its folder in {folder.path}"

        kind = plugins.load("transport", config.kind)
        end = kind.learner_end(config, RunIdentity(folder.path, folder.name, spec))
        return ExactlyOnce(end, spec, folder.name, index.cursors, index.places, admit)

    def _await_links(self, transport: LearnerTransport, actors: set[str]) -> None:
        """Wait until the links of the run's actors have joined, so that they receive the end.

        They may not have joined a learner that was restarted just before the end.
        """
        deadline_s = time.monotonic() + _LINKS_S
        while not (actors <= transport.actors or self._stopping()):
            if time.monotonic() > deadline_s:
                break
            self._node.wait(_LOOK_S)

    def _interrupted(self, learner: Learner) -> bool:
        """Save if asked; while the node is inactive only receive; return whether to stop."""
        if self._save.taken() or not self._node.handle.active:
            learner.checkpoint()
        while not (self._node.handle.active or self._stopping()):
            learner.receive()
            self._node.wait(_LOOK_S)
        return self._stopping()

    def _stopping(self) -> bool:
        return self._node.stopping or is_orphaned()

    def _health(self) -> Health:
        loading = self._node.handle.configured and self._learner is None
        return (WELL[0], "loading") if loading else WELL

    def _numbers(self) -> dict[str, Value]:
        learner, transport = self._learner, self._transport
        if learner is None or transport is None:
            return {}
        progress = learner.progress
        return {
            "received": float(progress.received),
            "trained": float(progress.steps),
            "version": float(progress.version),
            "replay": float(learner.replay.online),
            "dropped": float(learner.replay.dropped),
            **{name: float(count) for name, count in transport.counts.items()},
        }


def _described(config: TrainConfig) -> dict[str, DescribedParameter]:
    """Return the node's parameters that show the training settings; they are read-only."""
    agent = config.agent
    return {
        "task": DescribedParameter(config.task, "name of the task, or path of its file"),
        "steps": DescribedParameter(config.steps, "online steps to train on"),
        "batch_size": DescribedParameter(agent.batch_size, "transitions of each critic update"),
        "utd": DescribedParameter(agent.utd, "critic updates for each online step"),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the process; the exit code is 2 on bad input, with the reason in one line."""
    parser = argparse.ArgumentParser(prog="python -m serl.ros.nodes.learner", description=__doc__)
    parser.add_argument("--run", type=Path, required=True, help="folder of the run")
    options = parser.parse_args(own_arguments(arguments))
    return run_node(lambda: run(options.run))


if __name__ == "__main__":
    sys.exit(main())
