"""Two simulated arms in one world, which can hand objects to each other."""

from __future__ import annotations

from serl.bimanual import LEFT, RIGHT, PairConfig
from serl.errors import BadInput
from serl.sim.arm import ArmWorld
from serl.task import Scene


class SimPair(ArmWorld):
    """Two Frankas in MuJoCo, whose names begin with `left_` and `right_`, in one frame."""

    def __init__(self, scene: Scene, config: PairConfig) -> None:
        if tuple(scene.bases) != (LEFT, RIGHT):
            raise BadInput(f"a pair: expected bases of {LEFT} and {RIGHT}, got {[*scene.bases]}")
        super().__init__(scene, config)


sim = SimPair
