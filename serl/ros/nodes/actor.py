"""The actor process: runs episodes, logs them, and counts the actions that were too late."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from serl import plugins
from serl.arm_profile import is_real
from serl.clock import WallClock
from serl.intervention import Teleop
from serl.log.episode_log import EpisodeLog
from serl.log.episode_reader import next_epoch
from serl.log.recovery import read_logged, recover, survey
from serl.loop import EpisodeKey, Observer
from serl.robot import SimulatedRobot
from serl.ros.arm.camera_settings import note_cameras
from serl.ros.arm.state_publisher import state_publishers
from serl.ros.arm.station import RESTORE, HeldSite, Station, make_arm
from serl.ros.node import RosNode, own_arguments, run_node
from serl.ros.people.control import OperatorInterface, action_frame, describe
from serl.ros.reward_topic import connect_reward
from serl.ros.services import serve
from serl.ros.telemetry import Stats, Value
from serl.runs.assembly import ActorHistory, DrivenArm, RunSite, make_actor
from serl.runs.config import TrainConfig
from serl.runs.folder import RunFolder
from serl.runs.scene_reset import arm_settings, is_attended
from serl.runs.task_setup import make_rewarded_task, make_spec, make_task
from serl.system.files import checked_name
from serl.system.supervisor import is_orphaned
from serl.teleop.human_input import HumanInput
from serl.training.actor import Actor
from serl.training.link import ControlStatus, WeightsFile, announce, write_status
from serl.training.stages import take_turns
from serl.types import ActionSource, End, Step

TOO_LATE = 1.5
"""Delay in control periods after which an action is too late: its logged transition does not show
its effect."""


def delay_s(step: Step) -> float:
    """Return the seconds from the reading that an action answers until the action was issued."""
    taken_s = step.observation.stamps.get("robot", step.monotonic_s)
    return step.monotonic_s - taken_s


class Delays(Observer):
    """Counter of the actions of a robot in real time that were too late.

    An action is late after its reading if the policy took long, or after the previous action if
    issuing that took long.

    Attributes:
        late: number of actions issued more than 1.5 periods after either.
        worst_s: longest of these delays so far.
    """

    def __init__(self, period_s: float) -> None:
        self.late, self.worst_s = 0, 0.0
        self._period_s = period_s
        self._issued_s: float | None = None  # the previous action of the same episode

    def on_step(self, step: Step) -> None:
        """Count the action of a step if it was late."""
        apart_s = 0.0 if self._issued_s is None else step.monotonic_s - self._issued_s
        late_s = max(delay_s(step), apart_s)
        self.late += late_s > TOO_LATE * self._period_s
        self.worst_s = max(self.worst_s, late_s)
        self._issued_s = step.monotonic_s

    def on_end(self, end: End) -> None:
        """Expect no action until the next episode begins."""
        self._issued_s = None


class _NodeSite(HeldSite, RunSite, Observer):
    """The site of an actor's node: devices and services of operators, and a real arm's guard.

    Args:
        people: operators of the actor, across all stages.
        station: a real arm between two episodes; None in simulation.
        is_ending: returns whether the process has to end.
        episodes: folder of the actor's episodes, for labels.
    """

    def __init__(
        self,
        people: OperatorInterface,
        station: Station | None,
        is_ending: Callable[[], bool],
        episodes: Path,
    ) -> None:
        super().__init__(people.hold, station, is_ending)
        self._people, self._episodes = people, episodes
        people.hold.keep_pauses(is_real=station is not None)

    def attend(self, robot: SimulatedRobot, script: Teleop | None) -> HumanInput:
        """Return the operator input of all devices and services."""
        self._human_input = self._people.human_input(robot, script, self._episodes)
        return self._human_input

    def has_operator(self) -> bool:
        """Return whether a device sends messages."""
        return self._people.has_operator()

    def on_begin(self, chosen_by: ActionSource) -> None:
        """Direct the operators' events to this stage."""
        self._people.use(self._human_input)


logger = logging.getLogger(__name__)


def run(run_folder: Path, name: str, robot: str | None = None, namespace: str = "/") -> None:
    """Run episodes until the training is over or the process is asked to stop.

    Args:
        run_folder: folder of the run.
        name: name of the actor.
        robot: profile of the real arm to drive in place of the run's own; None for the run's.
        namespace: namespace of that arm's driver.
    """
    folder = RunFolder.open(run_folder)
    parts = folder.parts()
    actors: dict[str, Actor] = {}
    with (
        RosNode(
            name, run_folder, local=True, parameters=describe(folder.config), managed=True
        ) as node,
        ExitStack() as logs,
    ):
        frame = action_frame(folder.config, robot)
        people = OperatorInterface(node, name, folder.config.teleop, frame, folder.link(name))
        people.manage()

        def is_ending() -> bool:
            return (
                node.stopping
                or is_orphaned()
                or all(a.policy.trained_steps >= parts[s].config.steps for s, a in actors.items())
            )

        first = next(iter(parts.values()))
        own = {} if robot is None else arm_settings(first.config, robot, namespace)
        config = first.config.model_copy(update=own)
        arm = _driven_arm(node, folder, config, name, next_epoch(first.episodes(name)), people)
        delays = Delays(1.0 / make_task(first.config).config.rate_hz)
        station = None if arm.simulated else Station(arm.robot, people.hold, is_ending)
        seen = state_publishers(node, name, config, arm.robot)
        attended = is_attended(config)
        if attended:  # also after a crash: the scene has not been restored
            people.hold.pause(RESTORE)
        for stage, part in parts.items():
            placements = (0 if actors else 1) if stage else None
            arm = arm._replace(placements=placements)
            site = _NodeSite(people, station, is_ending, part.episodes(name))
            settings = part.config.model_copy(update=own)
            watching = [delays, people, site, *seen]
            actors[stage] = _make_actor(node, part, settings, name, arm, site, watching, logs)
        serve(node, "stop", lambda: _end(node))
        numbers = _publish_statistics(node, name, people)
        with next(iter(actors.values())).robot:
            if station is not None:
                note_cameras(node, arm.robot, folder)
            for stage, result in take_turns(actors, folder.config.stages or {}):
                numbers["episodes"] += 1.0
                numbers["successes"] += float(result.success)
                numbers["version"] = actors[stage].policy.version
                if isinstance(arm.clock, WallClock):
                    clock = arm.clock
                    status = ControlStatus(clock.periods, clock.overruns, delays.late)
                    numbers |= {key: float(count) for key, count in status._asdict().items()}
                    write_status(folder.link(name), status)
                if attended:
                    people.hold.pause(RESTORE)


def _publish_statistics(node: RosNode, name: str, people: OperatorInterface) -> dict[str, float]:
    """Publish an actor's statistics; return the mutable numbers that are published."""
    numbers = {"episodes": 0.0, "successes": 0.0, "version": 0}

    def values() -> dict[str, Value]:
        return {**numbers, "paused": float(bool(people.hold.reason))}

    Stats(node, f"actor {name}", values, lambda: people.health)
    return numbers


def _make_actor(
    node: RosNode,
    folder: RunFolder,
    config: TrainConfig,
    name: str,
    arm: DrivenArm,
    site: RunSite,
    observers: Sequence[Observer],
    logs: ExitStack,
) -> Actor:
    """Return the actor of a run, or of one of its stages; see `make_actor`. `logs` closes its log.

    The observers come after the log.
    """
    spec, logged = make_spec(make_task(config)), make_spec(make_rewarded_task(config))
    episodes, link = folder.episodes(checked_name(name, "actor")), folder.link(name)
    recover(episodes)
    before = survey(episodes, logger.warning)
    records = read_logged(before, folder.name, name, spec, logger.warning)
    history = ActorHistory.of(len(before), records)
    epoch = next_epoch(episodes)
    log = logs.enter_context(EpisodeLog(episodes, logged, folder.name, name, epoch, config.log))
    weights = WeightsFile(link / "weights.safetensors", spec.digest)
    key = EpisodeKey(folder.name, name, epoch, 0)
    actor = make_actor(config, key, weights, [log, *observers], arm, site, history, episodes)
    connect_reward(node, actor.task)
    announce(link, folder.name, name, epoch, spec)
    return actor


def _end(node: RosNode) -> str:
    node.stopping = True
    return "stopping"


def _driven_arm(
    node: RosNode,
    folder: RunFolder,
    config: TrainConfig,
    name: str,
    epoch: int,
    people: OperatorInterface,
) -> DrivenArm:
    """Return the configured arm: one in real time, or a simulation in this process."""
    if config.robot is None:
        return DrivenArm(plugins.make_simulation(make_task(config)))
    arm = make_arm(node, folder, name, epoch, config)
    arm.silence_s, people.hold.beat = people.silence_s, arm.beat
    clock = WallClock(make_task(config).config.rate_hz, arm.beat)
    return DrivenArm(arm, clock, simulated=not is_real(config.robot))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the process; the exit code is 2 on bad input, with the reason in one line."""
    parser = argparse.ArgumentParser(prog="python -m serl.ros.nodes.actor", description=__doc__)
    parser.add_argument("--run", type=Path, required=True, help="folder of the run")
    parser.add_argument("--actor", required=True, help="name of the actor")
    parser.add_argument("--robot", help="profile of a real arm; default: the run's")
    parser.add_argument("--namespace", default="/", help="of a real arm's topics, from the root")
    given = parser.parse_args(own_arguments(arguments))
    return run_node(lambda: run(given.run, given.actor, given.robot, given.namespace))


if __name__ == "__main__":
    sys.exit(main())
