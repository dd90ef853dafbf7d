"""What a simulated person sees of a robot: the last that there was, should it fall silent."""

from __future__ import annotations

from serl.errors import Silent
from serl.robot import SimulatedRobot, Truth
from serl.types import Observation


class Onlooker:
    """Readings and truth of a robot for somebody who may never fail.

    Args:
        robot: is looked at; another one notices when it is silent.
    """

    def __init__(self, robot: SimulatedRobot) -> None:
        self._robot = robot
        self._seen: Observation | None = None
        self._known: Truth | None = None

    def observe(self) -> Observation:
        """The newest reading, or the last one; raises `Silent` before the first."""
        try:
            self._seen = self._robot.observe()
        except Silent:
            if self._seen is None:
                raise
        return self._seen

    def truth(self) -> Truth:
        """The newest truth, or the last one; raises `Silent` before the first."""
        try:
            self._known = self._robot.truth()
        except Silent:
            if self._known is None:
                raise
        return self._known
