"""Drives one episode of a collection: to success, to just short of it, or to what looks like it."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import numpy as np

from serl.policy import Random
from serl.robot import SimulatedRobot
from serl.geometry import conjugate, normalized, rotate
from serl.task import SimulatedTask
from serl.types import Action, Observation

_LINGER_STEPS, _PRETENDING_STEPS = 12, 30
_HELD_STEPS = 6  # before it is dropped
_SHAKING = 0.4
_KEEP, _OPEN, _CLOSE = 0.0, 1.0, -1.0  # last entry of an action, of a task with a gripper

Position = np.ndarray[Any, np.dtype[np.float32]]


class Kind(StrEnum):
    """What happens in an episode.

    Success: the expert succeeds and goes on, shaken. Short: it gives up somewhere on its way, and
    trembles there. Nearly: so late that nothing much is missing. Drop: it lets go after a success.
    Pretence: the tool goes to where it was at a success, with nothing else of it done. Chance:
    random actions.
    """

    SUCCESS = "success"
    SHORT = "short"
    NEARLY = "nearly"
    DROP = "drop"
    PRETENCE = "pretence"
    CHANCE = "chance"


_GIVES_UP = {Kind.SHORT: (0.2, 0.9), Kind.NEARLY: (0.75, 1.0)}  # of the task's progress


class Driver:
    """A policy for one episode, that notes the ground truth before each step.

    Args:
        robot: what is driven.
        task: says what a success is.
        seed: of the episode.
        kind: what shall happen.
        place: where the tool was at a success of another episode, m, base frame; a pretence without
            one is left to chance.

    Attributes:
        successes: whether each step began in a success.
        place: where the tool was at the last success, m, base frame.
    """

    def __init__(
        self,
        robot: SimulatedRobot,
        task: SimulatedTask,
        seed: int,
        kind: Kind,
        place: Position | None = None,
    ) -> None:
        self.successes: list[bool] = []
        self.place = place
        self._robot, self._task, self._motion = robot, task, task.config.motion
        self._kind = Kind.CHANCE if kind is Kind.PRETENCE and place is None else kind
        self._expert = task.expert(robot.truth, seed)
        self._chance = Random(robot.action_spec, seed)
        rng = np.random.default_rng(seed)
        self._enough = float(rng.uniform(*_GIVES_UP[kind])) if kind in _GIVES_UP else np.inf
        self._given_up, self._gripper = False, _KEEP
        self._still = np.zeros(self._motion.action_spec.shape, np.float32)
        self._left = _PRETENDING_STEPS if kind is Kind.PRETENCE else _LINGER_STEPS

    def __call__(self, observation: Observation) -> Action:
        """The next action; of the observation it needs where the tool is."""
        truth = self._robot.truth()
        success = self._task.is_success(truth)
        self.successes.append(success)
        if self._kind is Kind.CHANCE:
            return self._chance(observation)
        place = observation.state["tcp_pose"]
        if self._kind is Kind.PRETENCE:
            self._left -= 1
            return self._shaken(self._towards(place), _CLOSE)
        self._given_up |= self._task.progress(truth) > self._enough
        if self._given_up:
            self._left -= 1
            return self._shaken(self._still, self._gripper)
        action = self._expert(self._task.observation(self._robot.observe()))
        if not success:
            return action
        self.place, self._left = place[:3].copy(), self._left - 1
        if self._kind is Kind.DROP and self._left <= _LINGER_STEPS - _HELD_STEPS:
            self._given_up, self._gripper, self._left = True, _OPEN, _LINGER_STEPS
        return self._shaken(action, float(action[-1]))

    def is_over(self) -> bool:
        """It has lingered for long enough."""
        return self._left <= 0

    def _towards(self, pose: Position) -> Action:
        """Straight to where the tool was at a success."""
        assert self.place is not None  # else it is left to chance
        shift = ((self.place - pose[:3]) / self._motion.translation_m).tolist()
        if self._motion.frame == "tool":
            shift = rotate(conjugate(normalized(pose[3:].tolist())), shift)
        along = dict(zip("xyz", shift, strict=True))
        entries = [along.get(axis, 0.0) for axis in self._motion.axes]
        return np.array(entries + [0.0] * self._motion.gripper, np.float32)

    def _shaken(self, action: Action, gripper: float) -> Action:
        """The action with a tremble of the arm, by chance; and this for the gripper."""
        shaken = action + _SHAKING * self._chance(Observation({}))
        if self._motion.gripper:
            shaken[-1] = gripper
        return shaken.clip(-1.0, 1.0).astype(np.float32)
