"""The arm behind ROS 2 that a process drives, and what is waited for before its episodes begin."""

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
from serl.runs.real_arm import bodies_seen, within_workspace
from serl.runs.task_setup import make_task
from serl.system.signed_order import key_path
from serl.teleop.stop import StopLatch

RESTORE = "bring arm and scene to a start, then go on"
_SLICE_S, _SEEN_S = 0.2, 10.0


def make_arm(
    node: RosNode, run: RunFolder, name: str, epoch: int, config: TrainConfig | None = None
) -> Any:
    """The arm of an actor: the simulated one of its own namespace, or a real one.

    Args:
        node: of the process.
        run: whose arm it is.
        name: of the actor.
        epoch: of the actor's process.
        config: by default that of the run.

    Raises:
        BadInput: there is no such robot, or nowhere that it may be.
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
    arm = RosArm(node, where, profile, own, bodies_seen(task), lease, guarded=True)
    GainServices(node, arm)
    return arm


class Station:
    """A real arm between two episodes.

    Args:
        arm: waits there.
        hold: why a person holds it.
        ending: the process is to end.
        begin: called when the arm is had again, before it is looked at.
    """

    def __init__(
        self,
        arm: RosArm,
        hold: StopLatch,
        ending: Callable[[], bool],
        begin: Callable[[], object] = lambda: None,
    ) -> None:
        self._arm, self._hold, self._ending, self._begin = arm, hold, ending, begin

    def standby(self, ending: Callable[[], bool] | None = None) -> bool:
        """Return once nobody holds the arm, the guard has it and it is seen; as of `Actor`.

        An arm that a person let go on recovers, also where that was by the guard. One that was
        stopped, and that nobody held, is left as it is: a person is to be asked.

        Args:
            ending: asked again and again in place of the station's own.

        Raises:
            Silent: it is not seen.
        """
        is_ending = ending or self._ending
        held = self._hold.wait(is_ending)
        while not (self.has_arm or is_ending()):
            held |= self._awaits_person
            self._arm.remote.wait(lambda: self.has_arm or is_ending(), _SLICE_S)
        asks = bool(self._arm.stop_reason) and not held
        if not asks and not is_ending():
            self._begin()
            if held:
                self._recover()
            state = self._arm.observe_when_fresh(_SEEN_S).state
            self._arm.begin(pose_from(state["tcp_pose"]), bool(state["gripper"][0] < 0.5))
        return held

    def _recover(self) -> None:
        """Before it is looked at: what `act` met keeps it from being seen.

        Raises:
            Silent: it is not told for long where the arm is.
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
        """The guard says that it has not got the arm; one that is late says nothing."""
        standing = self._arm.guard.standing if self._arm.guard is not None else None
        return standing is not None and standing.state in (GuardState.DISARMED, *LATCHED)

    @property
    def has_arm(self) -> bool:
        """The guard moves the arm, or holds it."""
        guard = self._arm.guard
        return guard is not None and guard.has_arm
