"""What an actor does between episodes, as tasks: the same loop with other ends."""

from __future__ import annotations

import logging
from collections.abc import Callable
from itertools import count

from serl.errors import NeedsPerson
from serl.guard.camera_monitor import CameraWatch
from serl.policy import Policy
from serl.robot import SimulatedRobot
from serl.task import Task
from serl.training.evaluation import Purpose, start_seed
from serl.types import Observation, Outcome


class ResetTask:
    """A reset, as a task: the same loop with another end. It is over when the scene is ready.

    Attributes:
        reading: the newest one; what a reset acts on.
    """

    def __init__(self, task: Task, time_limit_s: float) -> None:
        self._task = task
        self.name = f"reset of {task.name}"
        self.config = task.config
        self._max_steps = round(time_limit_s * task.config.rate_hz)
        self.observation_spec = task.observation_spec
        self.reading = Observation({})

    def begin(self, reading: Observation) -> None:
        """As the task."""
        self.reading = reading
        self._task.begin(reading)

    def observation(self, reading: Observation) -> Observation:
        """As the task."""
        self.reading = reading
        return self._task.observation(reading)

    def outcome(self, reading: Observation, index: int) -> Outcome:
        """Success when the task needs no further reset; the end when it says that none helps."""
        try:
            ready = self._task.reset(reading) is None
        except NeedsPerson:
            return Outcome(terminated=True)
        late = index + 1 >= self._max_steps
        return Outcome(float(ready), terminated=ready, truncated=late and not ready, success=ready)

    def reset(self, reading: Observation) -> Policy | None:
        """A reset needs none."""
        return None


class Asking(ResetTask):
    """A request for a person, as a task: one step of holding still, and the log has its words."""

    def __init__(self, task: Task, request: NeedsPerson) -> None:
        super().__init__(task, 0.0)
        self.name, self._request = f"request of {task.name}", request

    def outcome(self, reading: Observation, index: int) -> Outcome:
        """Over at once.

        Raises:
            NeedsPerson: the request.
        """
        raise self._request


class Approach(ResetTask):
    """The way to where a script was asked to go, as a task: over when it is reached."""

    def __init__(self, task: Task, time_limit_s: float, reached: Callable[[], bool]) -> None:
        super().__init__(task, time_limit_s)
        self.name, self._reached = f"approach of {task.name}", reached

    def outcome(self, reading: Observation, index: int) -> Outcome:
        """Success when it is reached."""
        near = self._reached()
        late = index + 1 >= self._max_steps
        return Outcome(float(near), terminated=near, truncated=late and not near, success=near)


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
