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
    0 to 1), `q`, `dq`, `target_pose` (what was commanded last) and `<name>_pose` of each tracked
    body. The wrench is what the surroundings exert on the tool, the mean over the last `advance`
    (or over its last 100 ms) less its value after the reset. Its stamp "robot" is simulated time.
    Images are those of the task's `all_views`, each stamped by its name.

    A node that stands for a driver uses it as a `serl.robot.ServedRobot`.

    Attributes:
        stage: the world that it is in.
        model: of the arm and its scene.
        data: its state.
        impedance: gains and clips of its controller.
    """

    def __init__(self, scene: Scene, config: TaskConfig) -> None:
        self.stage = World(scene, config, (config.motion,))
        self.model, self.data = self.stage.model, self.stage.data
        (self._limb,) = self.stage.limbs
        self.impedance = self._limb.impedance
        self.reset(0)

    @property
    def stop_reason(self) -> str | None:
        """Why the arm was stopped first; None while motion is allowed."""
        return self._limb.stop_reason

    @property
    def observation_spec(self) -> ObservationSpec:
        """Names, shapes and units of a reading."""
        return self.stage.observation_spec

    @property
    def action_spec(self) -> ArraySpec:
        """As the task's motion says."""
        return self._limb.action_spec

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Let go of the cameras."""
        self.stage.close()

    def reset(self, seed: int) -> Observation:
        """Place arm and scene as the scene draws it from `seed`, at rest.

        The gripper is open unless the scene lets it hold something.
        """
        self.stage.reset(seed)
        return self.observe()

    def observe(self) -> Observation:
        """The reading now.

        Raises:
            SerlError: the simulation became unstable; only a reset helps.
        """
        return self.stage.observe()

    def measure(self) -> dict[str, list[float]]:
        """The state of a reading by name, in full precision; raises as `observe`."""
        return self.stage.measure()

    def pictures(self) -> dict[tuple[str, tuple[int, int]], Image]:
        """What the cameras of the task's views see now, by camera and size."""
        return self.stage.pictures()

    def act(self, action: Action) -> Action:
        """Move the target by `action`; returns what was executed: zeros while stopped or homing.

        Where an action is a wrench, it is exerted until the next one, at most for `timeout_s`.
        """
        return self._limb.act(action)

    def advance(self, dt_s: float) -> None:
        """Let `dt_s`, a multiple of 10 ms, pass."""
        self.stage.advance(dt_s)

    def aim(self, target: Pose, closed: bool) -> None:
        """Go to a target, as `act` does with the one that it makes; ignored while stopped."""
        self._limb.aim(target, closed)

    def grip(self, closed: bool) -> None:
        """Close or open the gripper."""
        self._limb.grip(closed)

    def follow(self, setpoint: Pose) -> None:
        """Let 10 ms pass with the controller at a setpoint that somebody else has limited.

        The wrench is filtered then, as an arm's own estimate is: fingers that close on something
        are felt as 60 N for 10 ms.
        """
        self._limb.follow(setpoint)
        self.stage.tick(_FILTER_S)

    def home(self) -> None:
        """Begin to move all joints to the home posture, whatever the box; actions wait for it."""
        self._limb.home()

    @property
    def is_home(self) -> bool:
        """The joints are as near to the home posture as those of an arm get, and at rest."""
        return self._limb.is_home

    def stop(self, reason: str) -> None:
        """Brake at once, then hold the measured pose until `recover`."""
        self._limb.stop(reason)

    def recover(self) -> None:
        """Allow motion again, from where the arm is."""
        self._limb.recover()

    def truth(self) -> dict[str, Array]:
        """Pose and twist of the tool, poses of its target and the tracked bodies, time, opening.

        `<name>_grasped` is 1 while both pads touch the body, `<name>_touched` while any does.
        """
        return self.stage.truth()

    def placement(self) -> Vector64:
        """Where everything is, to be shown by another arm in an equal scene: joints, mocaps, seed.

        May be called from any thread, and costs microseconds.
        """
        return self.stage.placement()

    def show(self, where: Vector64) -> None:
        """Put everything where another arm had it, for pictures; raises `BadInput` if none fits."""
        self.stage.show(where)

    @property
    def target(self) -> tuple[Pose, bool]:
        """Where the arm is to go, and whether its gripper is to be closed."""
        return self._limb.target


sim = SimArm
