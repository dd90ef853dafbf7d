"""The contract of a task: what a policy sees, what counts as done, how a scene is restored.

A task holds what is particular to it (box, rate, time limit, action scales, tuned settings) and,
for simulation, its scene, its ground truth and a scripted expert.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from serl.policy import Policy
from serl.robot import Truth
from serl.safety import Motion
from serl.specs import ObservationSpec
from serl.types import Observation, Outcome


class TaskConfig(BaseModel):
    """What every task declares; a task's own config adds its fields.

    Attributes:
        rate_hz: control rate.
        time_limit_s: an episode is truncated after this time.
        motion: what an action means and within which limits (see `serl.safety`).
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    rate_hz: float = Field(10.0, gt=0)
    time_limit_s: float = Field(10.0, gt=0)
    motion: Motion

    @property
    def max_steps(self) -> int:
        """Steps until the time limit."""
        return round(self.time_limit_s * self.rate_hz)


@dataclass(frozen=True)
class Placement:
    """One start of a scene.

    Attributes:
        tcp: base_T_tcp at the start: x y z, quaternion xyzw.  # (7,)
        bodies: base_T_body of each free body: x y z, quaternion xyzw.  # (7,)
        held_m: width of what the closed gripper holds; None starts with an open one.
    """

    tcp: np.ndarray[Any, np.dtype[np.float64]]
    bodies: Mapping[str, np.ndarray[Any, np.dtype[np.float64]]] = field(default_factory=dict)
    held_m: float | None = None


@dataclass(frozen=True)
class Scene:
    """A task's part of a MuJoCo model, as data.

    Attributes:
        bodies: MJCF elements placed inside `worldbody`.
        place: draws a start from a generator.
        tracked: names of bodies whose pose (x y z, quaternion xyzw) readings carry as the state
            `<name>_pose`, as an object tracker on a real arm would.
        extra: MJCF elements placed at the top level (tendons, equalities, sensors).
    """

    bodies: str
    place: Callable[[np.random.Generator], Placement]
    tracked: tuple[str, ...] = ()
    extra: str = ""


class TaskView(Protocol):
    """What the control loop needs of a task: what is seen, and what counts as done."""

    @property
    def observation_spec(self) -> ObservationSpec:
        """What a policy sees."""
        ...

    def begin(self, reading: Observation) -> None:
        """An episode starts at this reading."""
        ...

    def observation(self, reading: Observation) -> Observation:
        """What a policy sees of a reading."""
        ...

    def outcome(self, reading: Observation, index: int) -> Outcome:
        """Judge the reading after the step `index` (0 is the first step of the episode)."""
        ...


class Task(TaskView, Protocol):
    """What an actor needs to know of a task."""

    name: str

    @property
    def config(self) -> TaskConfig:
        """Box, rate, time limit and whatever else the task declares."""
        ...

    def reset(self, reading: Observation) -> Policy | None:
        """A policy that restores the scene, or None when it is ready."""
        ...


class SimulatedTask(Task, Protocol):
    """A task that can be trained in simulation."""

    @property
    def scene(self) -> Scene:
        """What is added to the arm's model."""
        ...

    def is_success(self, truth: Truth) -> bool:
        """Ground truth, independent of any reward model: the task is solved at this instant."""
        ...

    def progress(self, truth: Truth) -> float:
        """How far along the task is, from 0 to 1; grows along a good trajectory."""
        ...

    def expert(self, truth: Callable[[], Truth], seed: int) -> Policy:
        """A scripted expert that can go on from any state of the scene."""
        ...

    def training_defaults(self) -> Mapping[str, Any]:
        """Tuned settings, as overrides of the training configuration."""
        ...
