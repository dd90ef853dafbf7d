"""The simulated arm: a Franka under Cartesian impedance control, in process and in lock-step."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

import numpy as np

from serl.motion import Pose
from serl.sim.world import World
from serl.specs import ArraySpec, ObservationSpec
from serl.task import Scene, TaskConfig
from serl.types import Action, Array, Image, Observation

_FILTER_S = 0.05

Vector64 = np.ndarray[Any, np.dtype[np.float64]]


class SimArm:
    """A Franka in MuJoCo with a task's scene; implements `serl.robot.SimulatedRobot`.

    A reading carries `tcp_pose`, `tcp_twist` and `wrench` in the base frame, `gripper` (opening,
    0 to 1), `q`, `dq`, `target_pose` (the last command) and `<name>_pose` of each tracked body. The
    wrench is the one that the surroundings exert on the tool: its mean over the last `advance` (or
    over the last 100 ms of that), less its value after the reset. The stamp "robot" is simulated
    time. Images are those of the task's `all_views`, each stamped by its name.

    A node that replaces a driver uses it as a `serl.robot.ServedRobot`.

    Attributes:
        stage: the world that contains the arm.
        model: MuJoCo model of the arm and its scene.
        data: state of the model.
        impedance: gains and clips of the arm's controller.
    """

    def __init__(self, scene: Scene, config: TaskConfig) -> None:
        self.stage = World(scene, config, (config.motion,))
        self.model, self.data = self.stage.model, self.stage.data
        (self._limb,) = self.stage.limbs
        self.impedance = self._limb.impedance
        self.reset(0)

    @property
    def stop_reason(self) -> str | None:
        """The reason of the first stop; None while motion is allowed."""
        return self._limb.stop_reason

    @property
    def observation_spec(self) -> ObservationSpec:
        """Names, shapes and units of a reading."""
        return self.stage.observation_spec

    @property
    def action_spec(self) -> ArraySpec:
        """Shape and bounds of an action, from the task's motion."""
        return self._limb.action_spec

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the renderer of the cameras."""
        self.stage.close()

    def reset(self, seed: int) -> Observation:
        """Place the arm and the bodies as the scene samples them from `seed`, at rest.

        The gripper is open, unless the scene puts an object into it.
        """
        self.stage.reset(seed)
        return self.observe()

    def observe(self) -> Observation:
        """Return the current reading.

        Raises:
            SerlError: the simulation became unstable; only a reset helps.
        """
        return self.stage.observe()

    def measure(self) -> dict[str, list[float]]:
        """Return the state of a reading by name, in full precision; raises like `observe`."""
        return self.stage.measure()

    def pictures(self) -> dict[tuple[str, tuple[int, int]], Image]:
        """Return the current pictures of the cameras of the task's views, by camera and size."""
        return self.stage.pictures()

    def act(self, action: Action) -> Action:
        """Move the target by `action`; return the executed action, zeros while stopped or homing.

        An action that is a wrench is exerted until the next one, at most for `timeout_s`.
        """
        return self._limb.act(action)

    def advance(self, dt_s: float) -> None:
        """Advance the simulation by `dt_s`, a multiple of 10 ms."""
        self.stage.advance(dt_s)

    def aim(self, target: Pose, closed: bool) -> None:
        """Set the target pose and the gripper command directly; ignored while stopped."""
        self._limb.aim(target, closed)

    def grip(self, closed: bool) -> None:
        """Close or open the gripper."""
        self._limb.grip(closed)

    def follow(self, setpoint: Pose) -> None:
        """Advance by 10 ms with the controller at a setpoint that the caller has limited already.

        The wrench is filtered, as an arm's own estimate is: fingers that close on an object
        cause 60 N for 10 ms.
        """
        self._limb.follow(setpoint)
        self.stage.tick(_FILTER_S)

    def home(self) -> None:
        """Start moving all joints home, regardless of the box; actions are ignored meanwhile."""
        self._limb.home()

    @property
    def is_home(self) -> bool:
        """Whether the joints are at rest at the home posture, within an arm's tolerance."""
        return self._limb.is_home

    def stop(self, reason: str) -> None:
        """Brake immediately, then hold the measured pose until `recover`."""
        self._limb.stop(reason)

    def recover(self) -> None:
        """Allow motion again, from the current pose of the arm."""
        self._limb.recover()

    def truth(self) -> dict[str, Array]:
        """Return time, pose and twist of the tool, target pose, poses of tracked bodies, opening.

        `<name>_grasped` is 1 while both pads touch the body, `<name>_touched` while any does.
        """
        return self.stage.truth()

    def placement(self) -> Vector64:
        """Return the configuration for `show` of an arm in an equal scene: joints, mocaps, seed.

        May be called from any thread, and costs microseconds.
        """
        return self.stage.placement()

    def show(self, where: Vector64) -> None:
        """Apply a `placement` for pictures; raises `BadInput` if it does not fit this scene."""
        self.stage.show(where)

    @property
    def target(self) -> tuple[Pose, bool]:
        """The target pose of the tool, and whether the gripper is commanded to close."""
        return self._limb.target


sim = SimArm
