"""Motion of a simulated person's hand: slower than a script, shaky, late to brake, with pauses."""

from __future__ import annotations

import math
from itertools import groupby
from typing import Any

import numpy as np

from serl.errors import BadInput
from serl.policy import Policy
from serl.task import SimulatedTask
from serl.types import Action, Observation

TIME_FACTOR = 3.0
"""Factor of a task's time limit for a person: half the speed of an expert, and pauses."""

_SPEED = (0.4, 0.6)  # share of the expert's, drawn for each episode
_CAUTIOUS_SPEED = 0.25  # of the expert's, near targets; rises to the person's speed far away
_LAG_S = 0.15  # of the hand behind the policy's action: it passes its target before it turns back
# Standard deviation: share of the motion along the same axis, of that along all, and at rest.
_NOISE, _ASIDE, _TREMOR = 0.25, 0.05, 0.002
_NOISE_S = 0.4  # correlation time
_PAUSES_HZ, _PAUSE_S = 0.2, (0.2, 0.8)
_FINE = 0.2  # smaller motions are as fast as the expert's
_NEXT = 0.6  # with less left along its axis, the axis-by-axis style turns to the longest way

Vector64 = np.ndarray[Any, np.dtype[np.float64]]


class HumanMotion:
    """A policy for one episode, executed by a person's hand.

    Speed and style are drawn once: either along all axes at a time, or along the one with the
    longest way until it is nearly done. The noise is an Ornstein-Uhlenbeck process in proportion to
    the motion. Grippers are commanded as by the policy.

    Args:
        policy: policy to be executed, which must be able to continue from any state.
        task: the task, with its axes and its rate.
        seed: seed of speed, style, noise and pauses.
        cautious: whether the hand is slow near targets; one that is seen late would swing.

    Raises:
        BadInput: see `check_hand`.
    """

    def __init__(
        self, policy: Policy, task: SimulatedTask, seed: int, cautious: bool = False
    ) -> None:
        check_hand(task)
        self._near, self._near_speed = (1.0, _CAUTIOUS_SPEED) if cautious else (_FINE, 1.0)
        self._policy, self._period_s = policy, 1.0 / task.config.rate_hz
        words = task.config.action_spec.unit.split()
        moving = [i for i, word in enumerate(words) if not word.endswith("gripper")]
        sides = groupby(moving, lambda index: words[index].rpartition("_")[0])
        self._arms = [list(indices) for _, indices in sides]
        self._rng: np.random.Generator = np.random.default_rng((seed, 1))
        self._speed = self._rng.uniform(*_SPEED)
        self._one_by_one = self._rng.random() < 0.5
        self._axes = [arm[0] for arm in self._arms]  # of each arm, along which it moves
        self._hand: Vector64 = np.zeros(len(words))
        self._noise: Vector64 = np.zeros(len(words))
        self._pause_s = 0.0

    def __call__(self, observation: Observation) -> Action:
        """Return the next action of the hand."""
        action = self._policy(observation)
        kept, lag = self._share_left(_NOISE_S), self._share_left(_LAG_S)
        drawn = self._rng.standard_normal(len(action))
        self._noise = kept * self._noise + math.sqrt(1.0 - kept**2) * drawn
        paused, wish = self._is_pausing(), action.astype(np.float64)
        moved = wish.copy()
        for number, arm in enumerate(self._arms):
            along = self._along(number, wish) if self._one_by_one else wish[arm]
            far = min(1.0, float(np.abs(along).max()) / self._near)
            speed = self._near_speed + far * (self._speed - self._near_speed)
            hand = (not paused) * (lag * self._hand[arm] + (1.0 - lag) * speed * along)
            self._hand[arm], sizes = hand, np.abs(hand)
            loud = _NOISE * sizes + _ASIDE * sizes.max() + _TREMOR * (not paused)
            moved[arm] = hand + loud * self._noise[arm]
        return moved.clip(-1.0, 1.0).astype(np.float32)

    def _along(self, number: int, wish: Vector64) -> Vector64:
        """Return the wished motion of arm `number` along one axis; all of it if it is fine."""
        arm = self._arms[number]
        if abs(wish[self._axes[number]]) < _NEXT:
            self._axes[number] = max(arm, key=lambda axis: abs(float(wish[axis])))
        axis = self._axes[number]
        fine = abs(wish[axis]) < _NEXT
        return np.where(fine | (np.array(arm) == axis), wish[arm], 0.0)

    def _is_pausing(self) -> bool:
        """Return whether the hand rests in this period; draw the next pause."""
        if self._pause_s > 0.0:
            self._pause_s -= self._period_s
        elif self._rng.random() < _PAUSES_HZ * self._period_s:
            self._pause_s = self._rng.uniform(*_PAUSE_S)
        return self._pause_s > 0.0

    def _share_left(self, time_s: float) -> float:
        """Return the share of a decaying value that is left after one period."""
        return math.exp(-self._period_s / time_s)


_WITHOUT_TOOL = ("car", "gymnasium")


def check_hand(task: SimulatedTask) -> None:
    """Raise `BadInput` unless the task's actions are steps of a tool, as a hand makes them."""
    if task.config.motion.action_mode == "wrench" or task.scene.robot in _WITHOUT_TOOL:
        raise BadInput(f"{task.name}: a simulated hand moves tools only: no wrenches, no car")
