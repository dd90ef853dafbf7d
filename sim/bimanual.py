"""Two simulated arms in one world: what one of them holds, the other can take."""

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

    A reading carries what `serl.sim.arm.SimArm` tells of an arm for each of them, its names with
    the prefix `left_` or `right_`, and `<name>_pose` of each tracked body; all of it in one frame.
    Its stamp "robot" is simulated time. Images are those of the task's `all_views`.

    Attributes:
        stage: the world that both are in.
        model: of arms and scene.
        data: its state.
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
        """Let go of the cameras."""
        self.stage.close()

    def observe(self) -> Observation:
        """The reading now.

        Raises:
            SerlError: the simulation became unstable; only a reset helps.
        """
        return self.stage.observe()

    def reset(self, seed: int) -> Observation:
        """Place arms and scene as the scene draws them from `seed`, at rest."""
        self.stop_reason = None
        self.stage.reset(seed)
        return self.observe()

    def advance(self, dt_s: float) -> None:
        """Let `dt_s`, a multiple of 10 ms, pass for both."""
        self._stopped()
        self.stage.advance(dt_s)

    def truth(self) -> dict[str, Array]:
        """As of `SimArm`, of both; `left_<name>_grasped` is 1 while both left pads touch it."""
        return self.stage.truth()

    def pictures(self) -> dict[tuple[str, tuple[int, int]], Image]:
        """What the cameras of the task's views see now, by camera and size."""
        return self.stage.pictures()

    def placement(self) -> Vector64:
        """As of `SimArm`."""
        return self.stage.placement()

    def show(self, where: Vector64) -> None:
        """As of `SimArm`."""
        self.stage.show(where)


sim = SimPair
