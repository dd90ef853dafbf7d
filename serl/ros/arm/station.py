"""The arm that a process drives over ROS 2, and the conditions to wait for before an episode."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from serl.arm_pair import ArmPair, read_pair
from serl.arm_profile import SIM, is_real, load_robot
from serl.bimanual import RIGHT
from serl.errors import NeedsPerson, SerlError, Silent
from serl.guard.config import LATCHED, GuardState
from serl.ros.arm.pair import MountedRosArm, RosPair
from serl.ros.arm.robot import GainServices, RosArm
from serl.ros.arm.simulated import SimulatedRosArm
from serl.ros.node import RosNode
from serl.runs.config import TrainConfig
from serl.runs.folder import RunFolder
from serl.runs.guard_setup import GUARD_FOLDER, simulated_latch
from serl.runs.mounted_arms import mounted_arms
from serl.runs.real_arm import observed_bodies, within_workspace
from serl.runs.task_setup import make_task
from serl.system.signed_order import key_path
from serl.task import SimulatedTask, TaskConfig
from serl.teleop.stop import StopLatch
from serl.training.actor import Site

logger = logging.getLogger(__name__)

RESTORE = "bring arm and scene to a start"
_SLICE_S, _SEEN_S = 0.2, 10.0
_STANDS_S = 2.0
"""Time for which a guard's reason has to last: a driver's launch may set parameters as well."""


def make_arm(
    node: RosNode, run: RunFolder, name: str, epoch: int, config: TrainConfig | None = None
) -> Any:
    """Return the arm of an actor: the simulated one in the actor's namespace, or a real one.

    Args:
        node: the process's node.
        run: folder of the run.
        name: name of the actor.
        epoch: epoch of the actor's process.
        config: settings to use in place of the run's.

    Raises:
        BadInput: the robot is unknown, or the task's box and its workspace do not intersect.
    """
    config = config or run.config
    task, robot = make_task(config), config.robot or SIM
    lease = f"{name}.{epoch}"
    if (pair := read_pair(robot)) is not None:
        return _make_pair(node, task, pair, lease, _bodies(task, config))
    profile = load_robot(robot)
    if not is_real(robot):
        simulated = SimulatedRosArm(
            node, name, profile, task.config, task.scene.tracked, lease, guarded=True
        )
        assert simulated.guard is not None
        simulated.guard.key = key_path(simulated_latch(run.path / GUARD_FOLDER, name))
        return simulated
    profile = profile.with_compliance(task.config.compliance)
    motion = within_workspace(task.config.motion, profile)
    own = task.config.model_copy(update={"motion": motion})
    where = config.namespace.rstrip("/")
    arm = RosArm(node, where, profile, own, _bodies(task, config), lease, guarded=True)
    GainServices(node, arm)
    return arm


def _bodies(task: SimulatedTask, config: TrainConfig) -> tuple[str, ...]:
    """Return the bodies whose poses a run on a real arm needs."""
    checked = () if config.reset.body is None else (config.reset.body,)
    return tuple(dict.fromkeys((*observed_bodies(task), *checked)))


def _make_pair(
    node: RosNode, task: SimulatedTask, pair: ArmPair, lease: str, bodies: tuple[str, ...]
) -> RosPair:
    """Return two arms with one lease; a camera named `right_...` is the right arm's."""
    config, mounted = task.config, []
    for arm in mounted_arms(task, pair):
        is_right = arm.side == "right"
        views = {
            name: view
            for name, view in config.all_views.items()
            if view.camera.startswith(RIGHT) == is_right
        }
        own = TaskConfig(
            rate_hz=config.rate_hz,
            motion=arm.own_motion,
            observe="pixels" if views else "state",
            views=views,
            zero_wrench=config.zero_wrench,
        )
        tracked = () if is_right else bodies
        profile = arm.profile.with_compliance(config.compliance)
        made = RosArm(node, arm.namespace.rstrip("/"), profile, own, tracked, lease, guarded=True)
        GainServices(node, made, arm.side)
        mounted.append(MountedRosArm(made, arm.mount))
    return RosPair(mounted[0], mounted[1], bodies, config.all_views)


class Station:
    """A real arm between two episodes.

    Args:
        arm: the arm, or a pair of arms.
        hold: latch of the operator's stop or pause, with its reason.
        is_ending: returns whether the process has to end.
    """

    def __init__(
        self,
        arm: RosArm | RosPair,
        hold: StopLatch,
        is_ending: Callable[[], bool],
    ) -> None:
        self._arm, self._hold, self._is_ending = arm, hold, is_ending
        self._problems: dict[RosArm, tuple[str, float]] = {}  # with the time of their first report

    def standby(self, is_ending: Callable[[], bool] | None = None) -> bool:
        """Block until no operator holds the arm, the guard has it and a reading arrives.

        This is the `standby` of `Actor`; it returns whether the arm was held. After a hold that
        the operator ended, here or at the guard, the arm recovers. An arm that was stopped without
        a hold stays stopped until the operator is asked.

        While it waits, the parameters of a restarted controller are set from the profile, once for
        each restart. The guard then lets the operator arm; a failure is only logged, as the guard
        reports the reason of its refusal until then.

        Args:
            is_ending: called repeatedly in place of the station's own.

        Raises:
            Silent: no reading arrives.
        """
        is_ending = is_ending or self._is_ending

        def is_over() -> bool:
            self._settle_restarted()  # also in a pause: the operator may have to arm before it ends
            return is_ending()

        held = self._hold.wait(is_over)
        while not (self.has_arm or is_over()):
            held |= self._awaits_person
            self._arm.remote.wait(lambda: self.has_arm or is_ending(), _SLICE_S)
            held |= self._hold.wait(is_over)  # a stop at a device, or a pause, came meanwhile
        needs_operator = bool(self._arm.stop_reason) and not held
        if not needs_operator and not is_ending():
            if held:
                self._recover()
            self._arm.begin_from(self._arm.observe_when_fresh(_SEEN_S))
        return held

    def _settle_restarted(self) -> None:
        """Settle each arm whose guard has refused it for two seconds after its driver's restart."""
        if self._hold.inactive:
            return
        arms = self._arm.arms if isinstance(self._arm, RosPair) else (self._arm,)
        for arm in arms:
            now_s, problem = time.monotonic(), arm.restart_problem
            before, since_s = self._problems.get(arm, ("", now_s))
            if not problem or problem != before:
                self._problems[arm] = (problem, now_s)
            elif now_s - since_s >= _STANDS_S:
                logger.warning("the controller was restarted: its parameters are set: %s", problem)
                try:
                    arm.settle()
                except SerlError as error:
                    logger.warning("%s: the controller is not settled: %s", arm.robot, error)

    def _recover(self) -> None:
        """Clear the arm's stop and faults, which would make the next reading fail.

        Raises:
            Silent: the arm's pose does not arrive within 10 s.
        """

        def recovered() -> bool:
            with suppress(Silent):
                self._arm.recover()
                return True
            return False

        if not self._arm.remote.wait(recovered, _SEEN_S):
            self._arm.recover()

    @property
    def _awaits_person(self) -> bool:
        """Whether a guard reports that it is disarmed or stopped; False if its report is late."""
        reports = [guard.report for guard in self._arm.guards]
        waits = (GuardState.DISARMED, *LATCHED)
        return any(report is not None and report.state in waits for report in reports)

    @property
    def has_arm(self) -> bool:
        """Whether each guard moves or holds its arm."""
        guards = self._arm.guards
        return bool(guards) and all(guard.has_arm for guard in guards)


class HeldSite(Site):
    """The site of a robot that an operator can stop and pause.

    Args:
        hold: latch of the operator's stop or pause, with its reason.
        station: a real arm between two episodes; None in simulation.
        is_ending: returns whether the process has to end.
    """

    def __init__(
        self, hold: StopLatch, station: Station | None, is_ending: Callable[[], bool]
    ) -> None:
        self._hold, self._station, self._is_ending = hold, station, is_ending

    def is_stopping(self) -> bool:
        """Block while paused; return whether the process has to end."""
        return self._hold.wait_paused(self._is_ending)

    def standby(self) -> bool:
        """Block until no operator, and no guard, holds the robot; return whether it was held."""
        if self._station is None:
            return self._hold.wait(self._is_ending)
        return self._station.standby()

    def on_reset_failed(self, error: NeedsPerson) -> None:
        """Pause a real arm for an operator; let a simulation place its scene."""
        if self._station is None:
            super().on_reset_failed(error)
        else:
            self._hold.pause(str(error))

    def on_robot_stopped(self, reason: str) -> None:
        """Pause a real arm for an operator."""
        if self._station is not None:
            self._hold.pause(reason)

    def on_silence(self, error: Silent) -> None:
        """Pause a real arm for an operator; raise the error in simulation."""
        if self._station is None:
            raise error
        self._hold.pause(str(error))
