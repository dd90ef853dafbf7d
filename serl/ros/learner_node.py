"""The process that learns: a ROS 2 node around `serl.learner`.

python -m serl.ros.learner_node --run runs/pick_cube/2026-11-21_10-00-00
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from serl.assembly import make_learner, make_spec, make_task
from serl.checkpoint import Checkpoint, checkpoint_paths, load_latest
from serl.episodes import episode_name, episode_paths, read_records
from serl.errors import BadInput
from serl.learner import Learner
from serl.metrics import EventRow, MetricsWriter
from serl.ros.node import RosNode, run_node
from serl.ros.services import Request
from serl.ros.stats import Stats, Value
from serl.ros.transport import LearnerTransport
from serl.run_folder import RunFolder
from serl.specs import Spec
from serl.supervisor import orphaned
from serl.types import Record


def run(run_folder: Path) -> None:
    """Learn until the run's steps are done or the process is told to stop."""
    folder = RunFolder.open(run_folder)
    config = folder.config
    spec = make_spec(make_task(config))
    with (
        folder.lock_learner(),
        RosNode("learner", run_folder) as node,
        MetricsWriter(folder.path) as metrics,
    ):
        checkpoint = _checkpoint(folder, metrics)
        logged = list(_logged(folder, spec))
        cursors = Counter((record.key.actor, record.key.epoch) for record in logged)
        transport = LearnerTransport(node, spec, folder.name, dict(cursors))
        demonstrations = _demonstrations(folder, spec)
        learner = make_learner(
            config, transport, metrics, folder.save_checkpoint, demonstrations, checkpoint, logged
        )
        Stats(node, "learner", lambda: _numbers(learner, transport))
        save = Request(node, "save")
        learner.run(config.steps, lambda: _interrupted(node, learner, save))


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


def _checkpoint(folder: RunFolder, metrics: MetricsWriter) -> Checkpoint | None:
    """The newest sound checkpoint, None at the first start; damage is never a fresh start."""
    if not checkpoint_paths(folder.checkpoints):
        return None
    checkpoint, warning = load_latest(folder.checkpoints)
    metrics.write(checkpoint.step, EventRow(f"resumed at {checkpoint.step:,} steps"))
    if warning:
        metrics.write(checkpoint.step, EventRow(warning))
        print(warning, file=sys.stderr)  # noqa: T201
    return checkpoint


def _logged(folder: RunFolder, spec: Spec) -> Iterator[Record]:
    """What all actors recorded so far: by start of an actor, then by episode."""
    paths = [path for actor in folder.actors() for path in episode_paths(folder.episodes(actor))]
    return read_records(sorted(paths, key=episode_name), spec)


def _demonstrations(folder: RunFolder, spec: Spec) -> Iterator[Record]:
    recorded = (folder.demonstrations,) if folder.config.demos else ()
    for path in folder.config.demo_paths or recorded:
        if not episode_paths(path):
            raise BadInput(f"{path}: expected demonstrations, found no episode files")
        yield from read_records(path, spec)


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; exit code 2 on bad input, with one line on why."""
    parser = argparse.ArgumentParser(prog="python -m serl.ros.learner_node", description=__doc__)
    parser.add_argument("--run", type=Path, required=True, help="folder of the run")
    options = parser.parse_args(arguments)
    return run_node(lambda: run(options.run))


if __name__ == "__main__":
    sys.exit(main())
