"""Resets and other activities between episodes, as tasks that end by their own conditions."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

from serl.compliance import RESET
from serl.errors import NeedsPerson, SerlError, Silent
from serl.policy import Policy
from serl.reset import SceneCheck, no_check
from serl.robot import AdjustableRobot, RandomizedRobot, SimulatedRobot
from serl.task import Task
from serl.training.curriculum import Curriculum
from serl.training.evaluation import Purpose, start_seed
from serl.types import Observation, Outcome

logger = logging.getLogger(__name__)


class ScriptedTask:
    """A scripted activity as a task: an episode that ends successfully when its condition holds.

    Args:
        activity: name of the activity, for the name of the task.
        task: task whose observations are recorded.
        time_limit_s: time after which the episode is cut.
        is_done: returns whether the condition holds, given the reading after a step.

    Attributes:
        reading: the newest reading of the robot.
    """

    def __init__(
        self, activity: str, task: Task, time_limit_s: float, is_done: Callable[[Observation], bool]
    ) -> None:
        self.name = f"{activity} of {task.name}"
        self.config, self.observation_spec = task.config, task.observation_spec
        self.reading = Observation({})
        self._task, self._is_done = task, is_done
        self._max_steps = round(time_limit_s * task.config.rate_hz)

    def begin(self, reading: Observation) -> None:
        """Start an episode of the wrapped task."""
        self.reading = reading
        self._task.begin(reading)

    def observation(self, reading: Observation) -> Observation:
        """Return the wrapped task's observation."""
        self.reading = reading
        return self._task.observation(reading)

    def outcome(self, reading: Observation, index: int) -> Outcome:
        """Report success when the condition holds."""
        done = self._is_done(reading)
        late = index + 1 >= self._max_steps
        return Outcome(float(done), terminated=done, truncated=late and not done, success=done)

    def reset(self, reading: Observation) -> Policy | None:
        """Return None: a script needs no reset of its own."""
        return None


class SceneReset:
    """The task's own reset between two episodes, and the check of the scene after it.

    Args:
        task: the task, whose `reset` restores the scene.
        check: condition for the next episode.
        robot: the robot, which has other gains in a reset if it is an `AdjustableRobot`.
        gains: names of modes, of which the first that the robot has is set in resets.

    Attributes:
        missing: reason, as text for people, why the last call returned a policy; may be empty.
    """

    def __init__(
        self,
        task: Task,
        check: SceneCheck = no_check,
        robot: Any = None,
        gains: Sequence[str] = (RESET,),
    ) -> None:
        self._task, self._check, self._robot = task, check, robot
        modes = robot.modes if isinstance(robot, AdjustableRobot) else ()
        self._gains = next((mode for mode in gains if mode in modes), None)
        self._before: tuple[str | None] | None = None  # gains to return to
        self.missing = ""

    def begin(self) -> None:
        """Begin the reset that follows an episode."""

    def __call__(self, reading: Observation) -> Policy | None:
        """Return a policy that continues the reset, or None when the scene is ready.

        The policy is called with readings; see `serl.task.Task.reset`.

        Raises:
            NeedsPerson: no script can restore the scene, or the check fails.
        """
        script = self._task.reset(reading)
        if script is None and (trouble := self._check(reading)):
            raise NeedsPerson(trouble)
        return script

    def confirm(self) -> None:
        """Note that a person has restored the scene; it is checked again as far as possible."""

    def prepare(self) -> None:
        """Begin an attempt: switch to the gains of resets, if the robot has them.

        Raises:
            Silent: the gains cannot be set.
        """
        if self._gains is not None:
            before = self._robot.gains
            self._switch(self._gains)
            self._before = self._before or (before,)

    def end(self, restore_gains: bool = True) -> None:
        """End an attempt and, unless `restore_gains` is False, switch back to the gains before it.

        Raises:
            Silent: the gains cannot be set.
        """
        if restore_gains and self._before is not None:
            self._switch(*self._before)
            self._before = None

    def _switch(self, mode: str | None) -> None:
        try:
            self._robot.switch(mode)
        except SerlError as error:
            raise Silent(f"gains: {error}") from error


class ResetTask(ScriptedTask):
    """A reset as a task, which ends when the scene is ready.

    Args:
        task: task whose observations are recorded.
        reset: returns None for a reading of a scene that is ready.
        time_limit_s: time after which the episode is cut.
    """

    def __init__(self, task: Task, reset: SceneReset, time_limit_s: float) -> None:
        super().__init__("reset", task, time_limit_s, lambda reading: reset(reading) is None)

    def outcome(self, reading: Observation, index: int) -> Outcome:
        """Report success when no further reset is needed; terminate when no reset can help."""
        try:
            return super().outcome(reading, index)
        except NeedsPerson:
            return Outcome(terminated=True)


class EpisodeStarts:
    """Starts of episodes in a simulation, determined by seeds.

    Args:
        actor: name of the actor: each has its own starts.
        first: number of the first start.

    Attributes:
        placements: number of episodes to place; later ones start from the scene left by the reset.
        curriculum: starts of episodes, between the task's starts and the goal; None for the task's.
    """

    def __init__(
        self, robot: SimulatedRobot, purpose: Purpose, seed: int, actor: str, first: int = 0
    ) -> None:
        self.placements = math.inf
        self.curriculum: Curriculum | None = None
        self._robot, self._purpose, self._seed = robot, purpose, seed
        self._actor, self._first = actor, first
        self._requests = count(1)

    def place(self, episode: int) -> None:
        """Place arm and objects at the start of an episode."""
        self._place(episode, self._actor)

    def vary(self, episode: int) -> None:
        """Draw the random world of an episode that begins in the scene left by the reset."""
        if isinstance(self._robot, RandomizedRobot):
            self._robot.vary(self._start_seed(episode, self._actor))

    def restore(self, reason: str) -> None:
        """Place the scene on behalf of the operator requested to restore it."""
        number = next(self._requests)
        logger.warning("%s; request %d, the simulation places the scene", reason, number)
        self._place(number, f"{self._actor}/person")

    def _place(self, number: int, name: str) -> None:
        self._robot.reset(self._start_seed(number, name))

    def _start_seed(self, number: int, name: str) -> int:
        return start_seed(self._purpose, self._seed, name, self._first + number)
