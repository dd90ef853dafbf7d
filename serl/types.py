"""The values that everything passes on: observations, actions, steps, episodes, batches.

Units everywhere: metres, radians, newtons, newton metres, seconds. Quaternions are xyzw.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]
Image = NDArray[np.uint8]
Features = NDArray[np.float16]

Action = Array
"""float32 in [-1, 1], shape (A,); its meaning is given by the task's `Motion`."""


class ActionSource(StrEnum):
    """Who chose the action of a step."""

    POLICY = "policy"
    HUMAN = "human"
    SCRIPT = "script"


@dataclass(frozen=True, slots=True)
class Observation:
    """One stamped reading: named state arrays and images, and when each was measured.

    Attributes:
        state: float32 arrays by name, in the order that the spec declares.
        images: uint8 RGB arrays of shape (H, W, 3) by camera name.
        stamps: monotonic time in seconds per source of data ("robot", or a camera's name).
    """

    state: Mapping[str, Array]
    images: Mapping[str, Image] = field(default_factory=dict)
    stamps: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a task says of the reading after an action.

    Attributes:
        reward: reward of the step.
        terminated: the task ended (success or failure): no bootstrap.
        truncated: the episode was cut (time limit, fault): bootstrap from the final observation.
        success: the task is solved.
        provenance: who gave the reward: "truth", "classifier", "human".
    """

    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    success: bool = False
    provenance: str = "truth"


@dataclass(frozen=True, slots=True, order=True)
class Key:
    """The identity of a step; an `End` carries the index after its last step."""

    run: str
    actor: str
    epoch: int
    episode: int
    index: int


@dataclass(frozen=True, slots=True)
class Step:
    """One completed step of the control loop.

    Attributes:
        key: identity.
        observation: what was seen before acting.
        requested: what the policy asked for (also while a human drives), shape (A,).
        action: what was executed after takeover and limits, shape (A,); this is learned from.
        reward: reward with its provenance.
        terminated: the task ended with this step.
        truncated: the episode was cut after this step.
        source: who chose the action.
        policy_version: version of the weights that computed `requested`; 0 for none.
        monotonic_s: monotonic time at which the action was issued.
        wall_s: wall-clock time (seconds since 1970) at which the action was issued.
    """

    key: Key
    observation: Observation
    requested: Action
    action: Action
    reward: float
    reward_provenance: str
    terminated: bool
    truncated: bool
    source: ActionSource
    policy_version: int
    monotonic_s: float
    wall_s: float


@dataclass(frozen=True, slots=True)
class End:
    """Closes an episode: the true successor of its last step, and why it ended.

    Attributes:
        key: identity; `index` is the number of steps of the episode.
        observation: the final observation; after a fault nothing was seen any more, and it is that
            of the last step once more (see `is_fault` of `serl.intervention`).
        success: the task was solved.
        reason: "success", "failure", "time limit", "interrupted", one of `ENDINGS` of
            `serl.intervention`, or a fault in words.
    """

    key: Key
    observation: Observation
    success: bool
    reason: str
    monotonic_s: float
    wall_s: float


Record = Step | End
"""An actor's stream: the steps of an episode, its `End`, the steps of the next one, ..."""


def limited(record: Record, images: Iterable[str]) -> Record:
    """The same without images of other names."""
    kept = {name: record.observation.images[name] for name in images}
    return replace(record, observation=replace(record.observation, images=kept))


@dataclass(frozen=True, slots=True)
class Lost:
    """Stands for a record that was logged and that nobody can read any more.

    Attributes:
        key: its identity.
        last: no further record of its episode follows.
    """

    key: Key
    last: bool


Arrival = Record | Lost
"""What a log that was damaged gives."""


def place_after(record: Arrival) -> tuple[int, int]:
    """Episode and index of the record that follows, in the order of an actor's start."""
    key = record.key
    ends = record.last if isinstance(record, Lost) else isinstance(record, End)
    return (key.episode + 1, 0) if ends else (key.episode, key.index + 1)


def is_online(record: Arrival) -> bool:
    """Steps of the policy and of a human enter replay and the update budget."""
    return isinstance(record, Step) and record.source is not ActionSource.SCRIPT


@dataclass(frozen=True, slots=True)
class Episode:
    """Steps and the final observation. `end` is None when the episode was cut by a crash."""

    steps: tuple[Step, ...]
    end: End | None

    @property
    def success(self) -> bool:
        """The episode ended with the task solved."""
        return self.end is not None and self.end.success

    def count(self, source: ActionSource) -> int:
        """Number of steps that `source` chose."""
        return sum(step.source is source for step in self.steps)


@dataclass(frozen=True, slots=True)
class Batch:
    """Transitions for one gradient step; all arrays share the first axis B.

    Attributes:
        state: observation state vectors before the action.  # (B, D)
        images: frames before the action by camera, or their features.  # (B, H, W, 3)
        action: the actions to learn from.  # (B, A)
        reward: sum of discounted rewards over the n steps.  # (B,)
        discount: gamma^n, or 0 where the task terminated.  # (B,)
        next_state: observation state vectors n steps later.  # (B, D)
        next_images: the same n steps later.  # (B, H, W, 3)
        prior: the transition is a demonstration or a human's.  # (B,) bool
    """

    state: Array
    action: Array
    reward: Array
    discount: Array
    next_state: Array
    prior: NDArray[np.bool_]
    images: Mapping[str, Image | Features] = field(default_factory=dict)
    next_images: Mapping[str, Image | Features] = field(default_factory=dict)
