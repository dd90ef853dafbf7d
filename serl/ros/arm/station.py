"""The arm that a process drives over ROS 2, and the conditions to wait for before an episode."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from serl.arm_profile import SIM, is_real, load_robot
from serl.errors import Silent
from serl.guard.config import LATCHED, GuardState
from serl.motion import pose_from
from serl.ros.arm.robot import GainServices, RosArm
from serl.ros.arm.simulated import SimulatedRosArm
from serl.ros.node import RosNode
from serl.runs.config import TrainConfig
from serl.runs.folder import RunFolder
from serl.runs.guard_setup import GUARD_FOLDER, simulated_latch
from serl.runs.real_arm import observed_bodies, within_workspace
from serl.runs.task_setup import make_task
from serl.system.signed_order import key_path
from serl.teleop.stop import StopLatch

RESTORE = "bring arm and scene to a start, then go on"
_SLICE_S, _SEEN_S = 0.2, 10.0


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
    profile, lease = load_robot(robot), f"{name}.{epoch}"
    if not is_real(robot):
        simulated = SimulatedRosArm(
            node, name, profile, task.config, task.scene.tracked, lease, guarded=True
        )
        assert simulated.guard is not None
        simulated.guard.key = key_path(simulated_latch(run.path / GUARD_FOLDER, name))
        return simulated
    motion = within_workspace(task.config.motion, profile)
    own = task.config.model_copy(update={"motion": motion})
    where = config.namespace.rstrip("/")
    bodies = observed_bodies(task)
    if config.reset.body is not None:
        bodies = tuple(dict.fromkeys((*bodies, config.reset.body)))
    arm = RosArm(node, where, profile, own, bodies, lease, guarded=True)
    GainServices(node, arm)
    return arm


class Station:
    """A real arm between two episodes.

    Args:
        arm: the arm.
        hold: latch of the operator's stop or pause, with its reason.
        is_ending: returns whether the process has to end.
    """

    def __init__(
        self,
        arm: RosArm,
        hold: StopLatch,
        is_ending: Callable[[], bool],
    ) -> None:
        self._arm, self._hold, self._is_ending = arm, hold, is_ending

    def standby(self, is_ending: Callable[[], bool] | None = None) -> bool:
        """Block until no operator holds the arm, the guard has it and a reading arrives.

        This is the `standby` of `Actor`; it returns whether the arm was held. An arm that the
        operator released recovers, also if that was done at the guard. An arm that was stopped
        without an operator's hold stays stopped: the operator has to be asked.

        Args:
            is_ending: called repeatedly in place of the station's own.

        Raises:
            Silent: no reading arrives.
        """
        is_ending = is_ending or self._is_ending
        held = self._hold.wait(is_ending)
        while not (self.has_arm or is_ending()):
            held |= self._awaits_person
            self._arm.remote.wait(lambda: self.has_arm or is_ending(), _SLICE_S)
        asks = bool(self._arm.stop_reason) and not held
        if not asks and not is_ending():
            if held:
                self._recover()
            state = self._arm.observe_when_fresh(_SEEN_S).state
            self._arm.begin(pose_from(state["tcp_pose"]), bool(state["gripper"][0] < 0.5))
        return held

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
        """Whether the guard reports that it is disarmed or stopped; False if its report is late."""
        standing = self._arm.guard.standing if self._arm.guard is not None else None
        return standing is not None and standing.state in (GuardState.DISARMED, *LATCHED)

    @property
    def has_arm(self) -> bool:
        """Whether the guard moves or holds the arm."""
        guard = self._arm.guard
        return guard is not None and guard.has_arm
