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

from serl import plugins
from serl.assembly import make_actor, make_spec, make_task
from serl.clock import WallClock
from serl.config import TrainConfig
from serl.control_status import ControlStatus, write_control_status
from serl.episodes import next_epoch
from serl.files import checked_name
from serl.link import WeightsFile, announce
from serl.quarantine import read_logged, survey
from serl.recording import EpisodeLog
from serl.recovery import recover
from serl.ros.node import RosNode, run_node
from serl.ros.services import Pause
from serl.ros.simulated_arm import SimulatedRosArm
from serl.ros.stats import Stats, Value
from serl.run_folder import RunFolder
from serl.supervisor import orphaned
from serl.types import is_online

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
        pause = Pause(node)
        robot, clock = real_time_arm(node, config, name, epoch)
        actor = make_actor(
            config,
            folder.name,
            name,
            WeightsFile(link / "weights.safetensors", spec.digest),
            log.append,
            stopping=lambda: (
                pause.wait(lambda: node.stopping or orphaned())
                or actor.policy.trained_steps >= config.steps
            ),
            start=len(before),
            steps_before=steps_before,
            epoch=epoch,
            admit=log.admit,
            robot=robot,
            clock=clock,
        )
        numbers: dict[str, Value] = {"episodes": 0, "successes": 0, "version": 0}
        Stats(node, f"actor {name}", lambda: numbers | {"paused": float(pause.paused)})
        announce(link, folder.name, name, epoch, spec)
        with actor.robot:
            for result in actor.episodes():
                numbers = {
                    "episodes": float(numbers["episodes"]) + 1,
                    "successes": float(numbers["successes"]) + result.success,
                    "version": actor.policy.version,
                }
                if clock is not None:
                    status = ControlStatus(clock.periods, clock.overruns)
                    numbers |= {"periods": status.periods, "late": status.late}
                    write_control_status(link, status)


def real_time_arm(
    node: RosNode, config: TrainConfig, name: str, epoch: int
) -> tuple[SimulatedRosArm | None, WallClock | None]:
    """The arm that the configuration asks for, and the clock of its loop; nothing in process."""
    if config.robot is None:
        return None, None
    task = make_task(config)
    profile, tracked = plugins.load("robot", config.robot), task.scene.tracked
    arm = SimulatedRosArm(
        node, name, profile, task.config, tracked, lease=f"{name}.{epoch}", guarded=True
    )
    return arm, WallClock(task.config.rate_hz, arm.beat)


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; exit code 2 on bad input, with one line on why."""
    parser = argparse.ArgumentParser(prog="python -m serl.ros.actor_node", description=__doc__)
    parser.add_argument("--run", type=Path, required=True, help="folder of the run")
    parser.add_argument("--actor", required=True, help="name of the actor")
    options = parser.parse_args(arguments)
    return run_node(lambda: run(options.run, options.actor))


if __name__ == "__main__":
    sys.exit(main())
