"""Where the episodes of an actor begin: a simulation that is placed anew, each time otherwise."""

from __future__ import annotations

import logging
from collections.abc import Callable
from itertools import count

from serl.guard.camera_watch import CameraWatch
from serl.training.evaluation import Purpose, start_seed
from serl.robot import SimulatedRobot

logger = logging.getLogger(__name__)


class SceneSetter:
    """Places arm and objects before an episode, as the seed says.

    Args:
        robot: the simulation.
        watch: of its cameras, whose pictures are new ones then.
        seed: of the run.
        actor: its name: each has starts of its own.
        first: number of the first start.
        wait: called before; returns once the arm may be placed.
    """

    def __init__(
        self,
        robot: SimulatedRobot,
        watch: CameraWatch,
        seed: int,
        actor: str,
        first: int,
        wait: Callable[[], object],
    ) -> None:
        self._robot, self._watch, self._wait = robot, watch, wait
        self._seed, self._actor, self._first = seed, actor, first
        self._requests = count(1)

    def place(self, episode: int) -> None:
        """Before an episode of the actor."""
        self._place(episode, self._actor)

    def help(self, reason: str) -> None:
        """A person was asked to restore the scene, and the simulation stands in for them."""
        number = next(self._requests)
        logger.warning("%s; request %d, the simulation places the scene", reason, number)
        self._place(number, f"{self._actor}/person")

    def _place(self, number: int, where: str) -> None:
        self._watch.begin()
        self._wait()
        self._robot.reset(start_seed(Purpose.TRAINING, self._seed, where, self._first + number))
