"""Resets and other activities between episodes, as tasks that end by their own conditions."""

from __future__ import annotations

import logging
from collections.abc import Callable
from itertools import count

from serl.errors import NeedsPerson
from serl.guard.camera_monitor import CameraMonitor
from serl.policy import Policy
from serl.robot import SimulatedRobot
from serl.task import Task
from serl.training.evaluation import Purpose, start_seed
from serl.types import Observation, Outcome


class ResetTask:
    """A reset as a task: the same loop, which ends when the scene is ready.

    Attributes:
        reading: the newest reading, on which the reset acts.
    """

    def __init__(self, task: Task, time_limit_s: float) -> None:
        self._task = task
        self.name = f"reset of {task.name}"
        self.config = task.config
        self._max_steps = round(time_limit_s * task.config.rate_hz)
        self.observation_spec = task.observation_spec
        self.reading = Observation({})

    def begin(self, reading: Observation) -> None:
        """Start an episode of the wrapped task."""
        self.reading = reading
        self._task.begin(reading)

    def observation(self, reading: Observation) -> Observation:
        """Return the wrapped task's observation."""
        self.reading = reading
        return self._task.observation(reading)

    def outcome(self, reading: Observation, index: int) -> Outcome:
        """Report success when no further reset is needed; terminate when no reset can help."""
        try:
            ready = self._task.reset(reading) is None
        except NeedsPerson:
            return Outcome(terminated=True)
        late = index + 1 >= self._max_steps
        return Outcome(float(ready), terminated=ready, truncated=late and not ready, success=ready)

    def reset(self, reading: Observation) -> Policy | None:
        """Return None: a reset needs no reset of its own."""
        return None


class Asking(ResetTask):
    """A request for an operator, as a task: one step of holding still that logs the request."""

    def __init__(self, task: Task, request: NeedsPerson) -> None:
        super().__init__(task, 0.0)
        self.name, self._request = f"request of {task.name}", request

    def outcome(self, reading: Observation, index: int) -> Outcome:
        """End the episode at once.

        Raises:
            NeedsPerson: the request.
        """
        raise self._request


class Approach(ResetTask):
    """A scripted motion to a goal condition, as a task that ends when the condition holds."""

    def __init__(self, task: Task, time_limit_s: float, reached: Callable[[], bool]) -> None:
        super().__init__(task, time_limit_s)
        self.name, self._reached = f"approach of {task.name}", reached

    def outcome(self, reading: Observation, index: int) -> Outcome:
        """Report success when the goal condition holds."""
        near = self._reached()
        late = index + 1 >= self._max_steps
        return Outcome(float(near), terminated=near, truncated=late and not near, success=near)


logger = logging.getLogger(__name__)


class SceneSetter:
    """Places arm and objects before an episode, determined by the seed.

    Args:
        robot: the simulation.
        watch: monitor of its cameras, which expects new images after a placement.
        seed: seed of the run.
        actor: name of the actor: each has its own starts.
        first: number of the first start.
        wait: called before a placement; returns once the arm may be placed.
    """

    def __init__(
        self,
        robot: SimulatedRobot,
        watch: CameraMonitor,
        seed: int,
        actor: str,
        first: int,
        wait: Callable[[], object],
    ) -> None:
        self._robot, self._watch, self._wait = robot, watch, wait
        self._seed, self._actor, self._first = seed, actor, first
        self._requests = count(1)

    def place(self, episode: int) -> None:
        """Place the scene for an episode of the actor."""
        self._place(episode, self._actor)

    def help(self, reason: str) -> None:
        """Place the scene on behalf of the operator asked to restore it."""
        number = next(self._requests)
        logger.warning("%s; request %d, the simulation places the scene", reason, number)
        self._place(number, f"{self._actor}/person")

    def _place(self, number: int, where: str) -> None:
        self._watch.begin()
        self._wait()
        self._robot.reset(start_seed(Purpose.TRAINING, self._seed, where, self._first + number))
