"""Where an arm is to go: what the actions of an episode have made of its start."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from serl.safety import Box, Motion, Pose, check_action, next_gripper, next_target
from serl.types import Action
from serl.vectors import is_between

_ORIGIN = Pose((0.0, 0.0, 0.0), (0.0, 0.0, 0.0, 1.0))


class Aim:
    """The target of one arm, simulated or real, moved by actions within the limits of `Motion`.

    Args:
        motion: what an action means.
        keep_out: boxes that the target does not enter, for no guard would let the tool in.

    Attributes:
        target: of the tool, in the base frame.
        closed: the gripper is to be closed.
        gripped: an action of the episode has asked the gripper to close or to open; else `closed`
            is but how it was found, maybe half open with a load.
    """

    def __init__(self, motion: Motion, keep_out: Sequence[Box] = ()) -> None:
        self._motion, self._spec = motion, motion.action_spec
        self._keep_out = keep_out
        self.begin(_ORIGIN, False)

    def begin(self, start: Pose, closed: bool) -> None:
        """An episode starts here: turns of the tool are limited about `start`."""
        self._start = self.target = start
        self.closed, self._switched_s = closed, -math.inf
        self.gripped = False

    def check(self, action: Action) -> None:
        """Raise `BadInput` unless the action has the right shape and is finite and in [-1, 1]."""
        check_action(action, self._spec)

    def move(self, action: Action, measured: Pose, now_s: float) -> Action:
        """Move the target by an action that was checked; returns what was executed of it.

        Args:
            action: one entry an axis, and one for the gripper.
            measured: where the tool is.
            now_s: time by any clock that stands still with the arm.
        """
        motion, values = self._motion, action.tolist()
        target, executed = next_target(self.target, values, measured, self._start, motion)
        if any(is_between(target.position, box.low_m, box.high_m) for box in self._keep_out):
            executed = (0.0,) * len(motion.axes)
        else:
            self.target = target
        if motion.gripper:
            since_s = now_s - self._switched_s
            closed, done = next_gripper(self.closed, values[-1], since_s, motion)
            if closed != self.closed:
                self.closed, self._switched_s = closed, now_s
            self.gripped |= abs(done) > 0.5
            executed = (*executed, done)
        return np.array(executed, np.float32)
