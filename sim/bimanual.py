"""Two simulated arms in one world, which can hand objects to each other."""

from __future__ import annotations

from types import TracebackType
from typing import Any

import numpy as np

from serl.bimanual import LEFT, RIGHT, Pair, PairConfig
from serl.errors import BadInput
from serl.sim.world import World
from serl.specs import ObservationSpec
from serl.task import Scene
from serl.types import Array, Image, Observation

Vector64 = np.ndarray[Any, np.dtype[np.float64]]


class SimPair(Pair):
    """Two Frankas in MuJoCo with a task's scene; implements `serl.robot.SimulatedRobot`.

    A reading carries the values of a `serl.sim.arm.SimArm` for each arm, their names prefixed with
    `left_` or `right_`, and `<name>_pose` of each tracked body; all of it in one frame. Its stamp
    "robot" is simulated time. Images are those of the task's `all_views`.

    Attributes:
        stage: the world that contains both arms.
        model: MuJoCo model of the arms and the scene.
        data: state of the model.
    """

    def __init__(self, scene: Scene, config: PairConfig) -> None:
        if tuple(scene.bases) != (LEFT, RIGHT):
            raise BadInput(f"a pair: expected bases of {LEFT} and {RIGHT}, got {[*scene.bases]}")
        self.stage = World(scene, config, (config.motion, config.right_motion))
        self.model, self.data = self.stage.model, self.stage.data
        left, right = self.stage.limbs
        super().__init__(left, right)
        self.reset(0)

    @property
    def observation_spec(self) -> ObservationSpec:
        """Names, shapes and units of a reading."""
        return self.stage.observation_spec

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the renderer of the cameras."""
        self.stage.close()

    def observe(self) -> Observation:
        """Return the current reading.

        Raises:
            SerlError: the simulation became unstable; only a reset helps.
        """
        return self.stage.observe()

    def reset(self, seed: int) -> Observation:
        """Place the arms and the bodies as the scene samples them from `seed`, at rest."""
        self.stop_reason = None
        self.stage.reset(seed)
        return self.observe()

    def advance(self, dt_s: float) -> None:
        """Advance the simulation of both arms by `dt_s`, a multiple of 10 ms."""
        self._stopped()
        self.stage.advance(dt_s)

    def truth(self) -> dict[str, Array]:
        """Return the values of `SimArm.truth` for both arms, prefixed.

        `left_<name>_grasped` is 1 while both pads of the left arm touch the body.
        """
        return self.stage.truth()

    def pictures(self) -> dict[tuple[str, tuple[int, int]], Image]:
        """Return the current pictures of the cameras of the task's views, by camera and size."""
        return self.stage.pictures()

    def placement(self) -> Vector64:
        """Return the configuration of the scene; see `SimArm.placement`."""
        return self.stage.placement()

    def show(self, where: Vector64) -> None:
        """Apply a `placement` for pictures; see `SimArm.show`."""
        self.stage.show(where)


sim = SimPair
