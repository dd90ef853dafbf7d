"""The central data types: observations, actions, steps, episodes and batches.

Units everywhere: metres, radians, newtons, newton metres, seconds. Quaternions are xyzw.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from serl.errors import NEEDS_PERSON, STUCK

Array = NDArray[np.float32]
Image = NDArray[np.uint8]
Features = NDArray[np.float16]


Action = Array
"""float32 in [-1, 1], shape (A,); its meaning is given by the task's `Motion`."""


class FrozenModel(BaseModel):
    """Immutable fields that pydantic checks; unknown fields and infinite numbers are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, defer_build=True)


class ActionSource(StrEnum):
    """The source of a step's action."""

    POLICY = "policy"
    HUMAN = "human"
    SCRIPT = "script"


@dataclass(frozen=True, slots=True)
class Observation:
    """A stamped reading: named state arrays and images, and their times of measurement.

    Attributes:
        state: float32 arrays by name, in the order that the spec declares.
        images: uint8 RGB arrays of shape (H, W, 3) by camera name.
        stamps: monotonic time in seconds by data source ("robot", or a camera's name).
    """

    state: Mapping[str, Array]
    images: Mapping[str, Image] = field(default_factory=dict)
    stamps: Mapping[str, float] = field(default_factory=dict)


UNJUDGED = "none"
"""Provenance of a reward that is unknown, as after a fault."""
SHAPED = " + progress of "
"""Text between the provenance of a reward and that of the potentials that shape it."""
_FEEDBACK = {1: " + feedback of +1", -1: " + feedback of -1"}


def feedback_of(provenance: str) -> int:
    """Return a person's evaluation of the recent steps that a step records: 1, -1, 0 for none."""
    return next((value for value, text in _FEEDBACK.items() if text in provenance), 0)


class Shaping(NamedTuple):
    """Potentials that shape the reward of a step; see `serl.shaping`.

    Attributes:
        before: potential of the observation before the step.
        after: discounted potential of the observation after it; None for an unknown one.
        provenance: source of the potentials.
    """

    before: float
    after: float | None
    provenance: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """The task's result of one step: reward, end of the episode, success.

    Attributes:
        reward: reward of the step.
        terminated: the task ended (success or failure): no bootstrap.
        truncated: the episode was cut (time limit, fault): bootstrap from the final observation.
        success: the task is solved.
        provenance: source of the reward: "truth", "classifier", "human"; "none" after a fault; with
            a person's evaluation of the recent steps, see `feedback_of`.
        shaping: potentials that are not yet in the reward; None without shaping.
    """

    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    success: bool = False
    provenance: str = "truth"
    shaping: Shaping | None = None

    def evaluated(self, value: int) -> Outcome:
        """Return the outcome with a person's evaluation of the recent steps, 1 or -1."""
        return replace(self, provenance=self.provenance + _FEEDBACK[value])

    def shaped(self) -> Outcome:
        """Return the outcome with its shaping in reward and provenance.

        After a termination there is nothing to earn, so the potential there counts as 0. After a
        truncation learning bootstraps, so the potential there stays; if it is unknown, the reward
        is unknown as well.
        """
        if self.shaping is None:
            return self
        before, after, source = self.shaping
        if self.terminated:
            after = 0.0
        elif after is None:
            return replace(self, reward=0.0, provenance=UNJUDGED, shaping=None)
        earned = self.reward + after - before
        return replace(
            self, reward=earned, provenance=f"{self.provenance}{SHAPED}{source}", shaping=None
        )


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
        observation: observation before the action.
        requested: action chosen by the policy (also during human intervention), shape (A,).
        action: action executed after takeover and limits, shape (A,); used for learning.
        reward: reward of the step, from the source `reward_provenance`.
        terminated: the task ended with this step.
        truncated: the episode was cut after this step.
        source: source of the action.
        policy_version: version of the weights that computed `requested`; 0 without weights.
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


class EndReason(StrEnum):
    """The reason why an episode ended."""

    SUCCESS = "success"
    FAILURE = "failure"
    TIME_LIMIT = "time limit"
    INTERRUPTED = "interrupted"
    """The process was asked to end."""
    DISCARDED = "discarded"
    """The operator excluded the episode from training."""
    STOPPED = "stopped"
    """The operator stopped the robot."""
    DEVICE_LOST = "device lost"
    """The device timed out while the operator controlled the arm."""
    RESET = "operator"
    """The operator asked for a new episode."""
    STUCK = "stuck"
    """A fault: the arm did not follow its setpoint."""
    NEEDS_PERSON = "needs person"
    """A fault: only a person can restore the scene."""
    FAULT = "fault"
    """Any other fault."""

    @property
    def is_fault(self) -> bool:
        """Whether a fault ended the episode, so that there is no final observation."""
        return self in (EndReason.STUCK, EndReason.NEEDS_PERSON, EndReason.FAULT)


_WITHOUT_FAULT = {reason.value: reason for reason in EndReason if not reason.is_fault}


def parse_reason(text: str) -> tuple[EndReason, str]:
    """Return the reason that a recorded text stands for, and the description of a fault."""
    if text in _WITHOUT_FAULT:
        return _WITHOUT_FAULT[text], ""
    if text.startswith(NEEDS_PERSON):
        return EndReason.NEEDS_PERSON, text
    return (EndReason.STUCK if STUCK in text else EndReason.FAULT), text


def reason_text(reason: EndReason, fault: str) -> str:
    """Return the text that is recorded and shown for a reason; for a fault, its description."""
    return fault if reason.is_fault else reason.value


@dataclass(frozen=True, slots=True)
class End:
    """The last record of an episode: its final observation and the reason of its end.

    Attributes:
        key: identity; `index` is the number of steps of the episode.
        observation: the final observation; after a fault there is none, and the observation of the
            last step is repeated.
        success: the task was solved.
        reason: reason of the end.
        fault: description of the fault, if one ended the episode.
    """

    key: Key
    observation: Observation
    success: bool
    reason: EndReason
    monotonic_s: float
    wall_s: float
    fault: str = ""

    @property
    def text(self) -> str:
        """The reason as it is recorded and shown."""
        return reason_text(self.reason, self.fault)


Record = Step | End
"""An element of an actor's stream: steps of an episode, then its `End`, then the next episode."""


def with_images(record: Record, images: Iterable[str]) -> Record:
    """Return the record with only the named images."""
    kept = {name: record.observation.images[name] for name in images}
    return replace(record, observation=replace(record.observation, images=kept))


@dataclass(frozen=True, slots=True)
class LostRecord:
    """A placeholder for a logged record that is no longer readable.

    Attributes:
        key: identity of the lost record.
        last: no further record of its episode follows.
    """

    key: Key
    last: bool


Arrival = Record | LostRecord
"""A record, or its placeholder if it was read from a damaged log."""


def place_after(record: Arrival) -> tuple[int, int]:
    """Return episode and index of the next record within the same start of the actor."""
    key = record.key
    ends = record.last if isinstance(record, LostRecord) else isinstance(record, End)
    return (key.episode + 1, 0) if ends else (key.episode, key.index + 1)


def is_online(record: Arrival) -> bool:
    """Return whether a record is an online step, which enters replay and the update budget.

    Online steps are those of the policy and of a human, not those of scripts.
    """
    return isinstance(record, Step) and record.source is not ActionSource.SCRIPT


@dataclass(frozen=True, slots=True)
class Episode:
    """The steps of an episode and its `End`, which is None if a crash cut the episode."""

    steps: tuple[Step, ...]
    end: End | None

    @property
    def success(self) -> bool:
        """Whether the episode ended with the task solved."""
        return self.end is not None and self.end.success

    def count(self, source: ActionSource) -> int:
        """Return the number of steps whose action came from `source`."""
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
        next_images: frames n steps later, or their features.  # (B, H, W, 3)
        prior: the transition is from a demonstration or a human.  # (B,) bool
        feedback: total weight of a person's evaluations of the transition, and their weighted sum;
            None unless a reward is learned from them.  # (B, 2)
    """

    state: Array
    action: Array
    reward: Array
    discount: Array
    next_state: Array
    prior: NDArray[np.bool_]
    images: Mapping[str, Image | Features] = field(default_factory=dict)
    next_images: Mapping[str, Image | Features] = field(default_factory=dict)
    feedback: Array | None = None
