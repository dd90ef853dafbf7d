"""The process that drives an arm: a ROS 2 node around `serl.actor`.

It writes its log and reads its weights from files; the link process beside it does the talking,
so that no DDS stall reaches the control loop. The node itself beats and can be paused or stopped.

    python -m serl.ros.actor_node --run runs/pick_cube/2026-11-21_10-00-00 --actor actor0
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from serl.assembly import make_actor, make_spec, make_task
from serl.episodes import next_epoch
from serl.files import checked_name
from serl.link import WeightsFile, announce
from serl.quarantine import read_logged, survey
from serl.recording import EpisodeLog
from serl.recovery import recover
from serl.ros.control import People
from serl.ros.node import RosNode, run_node
from serl.ros.services import serve
from serl.ros.stats import Stats, Value
from serl.run_folder import RunFolder
from serl.supervisor import orphaned
from serl.types import Record, is_online

logger = logging.getLogger(__name__)


def run(run_folder: Path, name: str) -> None:
    """Run episodes until the training is over or the process is told to stop."""
    folder = RunFolder.open(run_folder)
    config = folder.config
    spec = make_spec(make_task(config))
    episodes, link = folder.episodes(checked_name(name, "actor")), folder.link(name)
    recover(episodes)
    before = survey(episodes, logger.warning)
    records = read_logged(before, folder.name, name, spec, logger.warning)
    steps_before = sum(map(is_online, records))
    epoch = next_epoch(episodes)
    with (
        RosNode(name, run_folder, local=True) as node,
        EpisodeLog(episodes, spec, folder.name, name, epoch, config.log) as log,
    ):
        people = People(node, name, config.teleop, link, episodes)

        def record(item: Record) -> None:
            log.append(item)
            people.take(item)

        def ending() -> bool:
            over = actor.policy.trained_steps >= config.steps
            return over or node.stopping or orphaned()

        actor = make_actor(
            config,
            folder.name,
            name,
            WeightsFile(link / "weights.safetensors", spec.digest),
            record,
            stopping=lambda: people.hold.wait_paused(ending),
            start=len(before),
            steps_before=steps_before,
            epoch=epoch,
            admit=log.admit,
            standby=lambda: people.hold.wait(ending),
            attend=people.attend,
            attended=people.attended,
        )
        serve(node, "stop", lambda: _end(node))
        numbers: dict[str, Value] = {"episodes": 0.0, "successes": 0.0, "version": 0}
        Stats(node, f"actor {name}", lambda: numbers | {"paused": float(bool(people.hold.reason))})
        announce(link, folder.name, name, epoch, spec)
        with actor.robot:
            for count, result in enumerate(actor.episodes(), 1):
                successes = float(numbers["successes"]) + result.success
                numbers = {"episodes": float(count), "successes": successes}
                numbers["version"] = actor.policy.version


def _end(node: RosNode) -> str:
    node.stopping = True
    return "stopping"


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; exit code 2 on bad input, with one line on why."""
    parser = argparse.ArgumentParser(prog="python -m serl.ros.actor_node", description=__doc__)
    parser.add_argument("--run", type=Path, required=True, help="folder of the run")
    parser.add_argument("--actor", required=True, help="name of the actor")
    options = parser.parse_args(arguments)
    return run_node(lambda: run(options.run, options.actor))


if __name__ == "__main__":
    sys.exit(main())
