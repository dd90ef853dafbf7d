"""The gripper commands that the guard accepts from an actor."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from serl.guard.checks import Heard, Refused, check_opening
from serl.guard.config import GuardConfig
from serl.guard.inputs import MessageAge


class GripperCommand:
    """The commanded opening of a gripper, which has a minimum interval between changes.

    Attributes:
        opening: 1 open, 0 closed; None before the first command.
    """

    def __init__(self, config: GuardConfig, counts: Counter[str]) -> None:
        self.opening: float | None = None
        self._motion, self._config = config.motion, config
        self._source = MessageAge("gripper", math.inf, counts)
        self._switched_s = -math.inf

    def hear(self, values: Sequence[float], heard: Heard, moves: bool) -> None:
        """Accept a command, or count the reason of its refusal.

        Args:
            values: one number, from 0 (close) to 1 (open).
            heard: arrival of the command.
            moves: whether an actor drives the arm, so that the gripper may move.
        """
        with self._source.hearing(heard.now_s):
            opening = check_opening(values, heard, self._config)
            if not self._motion.gripper:
                raise Refused("none", "gripper: the task moves none")
            if not moves:
                raise Refused("holding", "gripper: the arm holds")
            if opening != self.opening:
                if heard.now_s - self._switched_s < self._motion.gripper_interval_s:
                    raise Refused("too soon", "gripper: switches too often")
                self.opening, self._switched_s = opening, heard.now_s
