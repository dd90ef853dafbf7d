"""The process that executes a trained policy: an actor without a learner.

    python -m serl.ros.nodes.policy --run RUN/deployments/2026-11-22_10-00-00 --checkpoint FOLDER

The operator may take over, stop and pause it like any actor. On a real arm it waits before each
episode until the guard has the arm and, unless the reset is automatic, until the operator has
restored the scene.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from serl import plugins
from serl.arm_profile import is_real
from serl.clock import Clock, RealTime, VirtualClock, WallClock
from serl.errors import BadInput, NeedsPerson
from serl.guard.camera_monitor import CameraMonitor, CameraMonitorConfig
from serl.log.annotations import ToolLog
from serl.log.episode_log import EpisodeLog
from serl.loop import EpisodeKey, Result
from serl.ros.arm.camera_settings import note_cameras
from serl.ros.arm.state_publisher import state_publishers
from serl.ros.arm.station import RESTORE, HeldSite, Station, make_arm
from serl.ros.node import RosNode, own_arguments, run_node
from serl.ros.people.control import OperatorInterface, action_frame, describe
from serl.ros.reward_topic import connect_reward
from serl.ros.services import serve
from serl.ros.telemetry import Stats, Value
from serl.runs.assembly import make_acting_agent
from serl.runs.config import TrainConfig
from serl.runs.deployment import (
    FixedWeights,
    TrialResult,
    append_trial_result,
    load_fitting,
    read_trial_results,
)
from serl.runs.folder import RunFolder
from serl.runs.race import TrialPlan
from serl.runs.scene_reset import is_attended, make_scene_reset
from serl.runs.task_setup import make_spec, make_task, make_unshaped_task
from serl.system.supervisor import is_orphaned
from serl.task import SimulatedTask
from serl.training.actor import Actor
from serl.training.evaluation import Purpose, void_cause
from serl.training.learned_policy import LearnedPolicy
from serl.training.resets import EpisodeStarts


def run(
    folder: RunFolder,
    name: str,
    checkpoint: Path,
    episodes: int | None,
    candidates: Sequence[Path] = (),
    most: int = 0,
) -> None:
    """Run episodes until their number is reached or the process is asked to stop.

    Args:
        folder: folder of the deployment, whose settings name the robot.
        name: name of the actor.
        checkpoint: folder of the checkpoint that holds the policy.
        episodes: number of episodes that count as trials; None for no end.
        candidates: further checkpoints, of which trials choose one first; see `TrialPlan`.
        most: largest number of these trials of each checkpoint.
    """
    policies = {
        int(path.name): make_policy(folder.config, path) for path in (*candidates, checkpoint)
    }
    policy = policies[int(checkpoint.name)]

    def plan_trials() -> TrialPlan:
        """Return the plan after all trials so far, whose results may have been corrected since."""
        return TrialPlan(list(policies), most, episodes, read_trial_results(folder.path))

    with (
        RosNode(
            name, folder.path, local=True, parameters=describe(folder.config), managed=True
        ) as node,
        ExitStack() as opened,
    ):
        frame = action_frame(folder.config)
        people = OperatorInterface(node, name, folder.config.teleop, frame, folder.link(name))
        people.manage()
        deployed = _DeploymentSite(node, folder, name, people)
        serve(node, "stop", deployed.end)
        numbers: dict[str, Value] = {"episodes": 0.0, "successes": 0.0, "version": policy.version}
        Stats(
            node,
            f"actor {name}",
            lambda: numbers | {"paused": float(bool(people.hold.reason))},
            lambda: people.health,
        )
        opened.enter_context(deployed.robot)
        if not deployed.simulated:
            trained = checkpoint.parents[1:4]  # RUN/checkpoints/N, or RUN/stages/NAME/checkpoints/N
            note_cameras(node, deployed.robot, folder, trained)
        actor = deployed.actor(policy, opened)
        number = 0
        while (step := (plan := plan_trials()).next()) is not None:
            if deployed.leaves_the_scene:
                people.hold.pause(RESTORE)
            actor.policy = policies[step]
            if (result := actor.episode()) is None:
                return
            outcome = deployed.trial_result(number, result)._replace(
                log_count=actor.key.episode, checkpoint=step, purpose=plan.purpose
            )
            append_trial_result(folder.path, outcome)
            number += 1
            successes = float(numbers["successes"]) + outcome.success
            numbers = numbers | {"episodes": float(number), "successes": successes}


def make_policy(config: TrainConfig, checkpoint: Path) -> LearnedPolicy:
    """Return the policy of a checkpoint, acting as in its trials.

    Raises:
        BadInput: the checkpoint is damaged, or was made for another spec or network.
    """
    agent = make_acting_agent(config, make_spec(make_task(config)), 0)
    weights = FixedWeights(load_fitting(checkpoint, config))
    policy = LearnedPolicy(agent, weights, exploring_share=0.0, frames=config.agent.frames)
    if not policy.refresh():
        raise BadInput(f"{checkpoint}: its weights do not fit the agent of these settings")
    return policy


class _DeploymentSite(HeldSite):
    """An arm in a deployment: simulated in this process, simulated in its node, or real.

    Attributes:
        simulated: whether the arm is simulated.
        leaves_the_scene: whether only the operator restores the scene after an episode.
    """

    def __init__(
        self,
        node: RosNode,
        folder: RunFolder,
        name: str,
        people: OperatorInterface,
    ) -> None:
        self._node, self._folder, self._name, self._people = node, folder, name, people
        config, self._epoch = folder.config, time.time_ns()
        self.simulated = not is_real(config.robot)
        self._task: SimulatedTask = (
            make_task(config) if self.simulated else make_unshaped_task(config)
        )
        connect_reward(node, self._task)
        rate_hz = self._task.config.rate_hz
        self.robot: Any
        self._clock: Clock
        if config.robot:
            self.robot = make_arm(node, folder, name, self._epoch)
            self.robot.silence_s, people.hold.beat = people.silence_s, self.robot.beat
            self._clock = WallClock(rate_hz, self.robot.beat)
        else:
            self.robot = plugins.make_simulation(self._task)
            pace = RealTime(WallClock(rate_hz), people.has_operator)
            self._clock = VirtualClock(self.robot.advance, rate_hz, pace)
        self.leaves_the_scene = is_attended(config)
        if self.simulated:
            self.starts = EpisodeStarts(self.robot, Purpose.FINAL, config.seed, "evaluation")

        def is_ending() -> bool:
            return node.stopping or is_orphaned()

        station = None if self.simulated else Station(self.robot, people.hold, is_ending)
        super().__init__(people.hold, station, is_ending)

    def actor(self, policy: LearnedPolicy, opened: ExitStack) -> Actor:
        """Return the actor that runs and logs the episodes; `opened` closes the log."""
        config, name = self._folder.config, self._name
        episodes, key = (
            self._folder.episodes(name),
            EpisodeKey(self._folder.name, name, self._epoch, 0),
        )
        spec = make_spec(self._task)
        log = opened.enter_context(
            EpisodeLog(episodes, spec, key.run, name, self._epoch, config.log)
        )
        human_input = self._people.human_input(self.robot, None, episodes)
        self.teleop = human_input
        # In simulation a static scene gives equal pictures; those rendered here have no stamps.
        still = CameraMonitorConfig(frozen_readings=0, stamped=config.robot is not None)
        limits = still if self.simulated else CameraMonitorConfig()
        monitor = CameraMonitor(self.robot.observation_spec.images, limits)
        observers = [log, monitor, ToolLog(episodes), human_input, self._people]
        observers += state_publishers(self._node, name, config, self.robot)
        reset = make_scene_reset(config, self._task, self.robot, name, 0)
        return Actor(
            key, self.robot, self._task, policy, self._clock, observers, self, config.actor, reset
        )

    def trial_result(self, number: int, result: Result) -> TrialResult:
        """Return an episode's result; in simulation a success has to hold in the ground truth."""
        success = result.success
        if success and self.simulated:
            success = self._task.is_success(self.robot.truth())
        duration_s = result.steps / self._task.config.rate_hz
        return TrialResult(
            number,
            success,
            result.human_steps > 0,
            result.steps,
            duration_s,
            result.text,
            void_cause(result.reason, result.fault),
        )

    def end(self) -> str:
        """Stop the process; handler of the service `stop`."""
        self._node.stopping = True
        return "stopping"

    def on_reset_failed(self, error: NeedsPerson) -> None:
        """Pause for an operator, also in simulation."""
        self._hold.pause(str(error))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the process; the exit code is 2 on bad input, with the reason in one line."""
    parser = argparse.ArgumentParser(prog="python -m serl.ros.nodes.policy", description=__doc__)
    parser.add_argument("--run", type=Path, required=True, help="folder of the deployment")
    parser.add_argument("--actor", default="actor0", help="name of the actor")
    parser.add_argument("--checkpoint", type=Path, required=True, help="folder of the checkpoint")
    parser.add_argument("--episodes", type=int, help="number of episodes; default: no limit")
    parser.add_argument(
        "--candidate", type=Path, action="append", default=[], help="further checkpoint to select"
    )
    parser.add_argument("--most", type=int, default=0, help="most selection trials of each")
    given = parser.parse_args(own_arguments(arguments))
    return run_node(
        lambda: run(
            RunFolder.open(given.run),
            given.actor,
            given.checkpoint,
            given.episodes,
            given.candidate,
            given.most,
        )
    )


if __name__ == "__main__":
    sys.exit(main())
