"""Two simulated arms in one world, which can hand objects to each other."""

from __future__ import annotations

from collections.abc import Mapping

from serl.bimanual import LEFT, RIGHT, PairConfig
from serl.errors import BadInput
from serl.sim.arm import ArmWorld, ServedArm
from serl.sim.physics.urdf import arm_urdf
from serl.sim.scene import build_model
from serl.task import Scene
from serl.types import Image

Pictures = Mapping[tuple[str, tuple[int, int]], Image]


class SimPair(ArmWorld):
    """Two Frankas in MuJoCo, whose names begin with `left_` and `right_`, in one frame."""

    def __init__(self, scene: Scene, config: PairConfig) -> None:
        if tuple(scene.bases) != (LEFT, RIGHT):
            raise BadInput(f"a pair: expected bases of {LEFT} and {RIGHT}, got {[*scene.bases]}")
        super().__init__(scene, config)
        self._drawn: tuple[float, Pictures] | None = None  # time and pictures of an instant

    def sides(self) -> tuple[PairSide, PairSide]:
        """Return each arm for a driver of its own, the left one first."""
        return PairSide(self, 0), PairSide(self, 1)

    def side_urdf(self, number: int) -> str:
        """Return the URDF of the left (0) or right arm (1), in the frame of its own base."""
        prefix = self.arms[number].prefix
        return arm_urdf(build_model(self._scene), prefix, self._scene.bases[prefix])

    def pictures_of(self, number: int) -> Pictures:
        """Return the current pictures of the right arm's cameras (1), or of all others (0)."""
        now_s = float(self.data.time)
        if self._drawn is None or self._drawn[0] != now_s:
            self._drawn = now_s, self.pictures()
        return {
            name: picture
            for name, picture in self._drawn[1].items()
            if name[0].startswith(RIGHT) == bool(number)
        }


class PairSide(ServedArm):
    """One arm of a pair, as `serl.robot.ServedRobot` as far as a driver in real time needs it.

    Poses are in the frame of both. Time passes when the right arm follows a setpoint.

    Args:
        world: both arms.
        number: 0 for the left arm, 1 for the right one.

    Attributes:
        fovy_rad: vertical fields of view of the cameras of both arms.
    """

    def __init__(self, world: SimPair, number: int) -> None:
        self._world, self._number = world, number
        self._arm = world.arms[number]
        self._other = world.arms[1 - number].prefix
        self.impedance = self._arm.impedance
        self.fovy_rad = world.fovy_rad

    def measure(self) -> dict[str, list[float]]:
        """Return the state of the arm and of the tracked bodies, without the arm's prefix."""
        return {
            name.removeprefix(self._arm.prefix): values
            for name, values in self._world.measure().items()
            if not name.startswith(self._other)
        }

    def pictures(self) -> Pictures:
        """Return the current pictures of the arm's cameras."""
        return self._world.pictures_of(self._number)

    def urdf(self) -> str:
        """Return the URDF of the arm, in the frame of its own base, not randomised."""
        return self._world.side_urdf(self._number)

    def restore(self, seed: int) -> None:
        """Place the free bodies of the scene, and leave the arms."""
        self._world.restore(seed)

    def pass_tick(self) -> None:
        """Advance both arms by 10 ms if this is the right one, which is set last."""
        if self._number == 1:
            self._world.pass_tick()


sim = SimPair
