"""The contract of a task: what a policy sees, what counts as done, how a scene is restored.

A task holds what is particular to it (box, rate, time limit, action scales, tuned settings) and,
for simulation, its scene, its ground truth and a scripted expert.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal, Protocol, Self, runtime_checkable

import numpy as np
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from serl.camera import View
from serl.motion import Motion
from serl.policy import Policy
from serl.robot import Truth
from serl.specs import ArraySpec, ObservationSpec
from serl.types import Episode, Image, Observation, Outcome

ViewName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,31}$")]
FRONT = 'pos="1.38 -0.62 0.74" xyaxes="0.520463 0.853884 0 -0.321628 0.196040 0.926350"'
_RESERVED = {"state", "robot"}  # names in observations and stamps


def _rising(ends: tuple[float, float]) -> tuple[float, float]:
    if ends[0] > ends[1]:
        raise ValueError(f"expected the lower end first, got {list(ends)}")
    return ends


Length = Annotated[float, Field(ge=0, le=1)]
"""On a table, metres."""
Lengths = Annotated[tuple[Length, Length], AfterValidator(_rising)]
"""From the first to the second one."""
Turn = Annotated[float, Field(ge=0, le=math.pi)]
Turns = Annotated[tuple[Turn, Turn], AfterValidator(_rising)]
"""From the first angle to the second one, radians."""


class TaskConfig(BaseModel):
    """What every task declares; a task's own config adds its fields.

    Attributes:
        rate_hz: control rate.
        time_limit_s: an episode is truncated after this time.
        motion: what an action means and within which limits (see `serl.motion`).
        observe: a policy sees the state of the scene, or its cameras and the arm's own state.
        views: what it sees of cameras, by name.
        private_views: what readings carry besides for a reward model; a policy never sees it.
        randomize: how much the worlds of simulated episodes differ, in looks, physics and sensors:
            not at all, as much as a good set-up leaves open, or as much as makes a policy fit for
            a real arm (`sim/randomization_ranges.py`).
        auto_reset: between episodes the arm restores the scene by itself, as `Task.reset` says; a
            simulation places it for the first one only. Not every task can.
        renderer: of simulated cameras. "ray" draws the same everywhere, but no textures; "gl" has
            other light, and is faster on a GPU and for large pictures; "auto" takes what is faster
            here, so that policies and reward models of one machine may not fit another; with "none"
            there are no images at all.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    rate_hz: float = Field(10.0, gt=0, le=500)
    time_limit_s: float = Field(10.0, gt=0, le=86_400)
    motion: Motion
    observe: Literal["state", "pixels"] = "state"
    views: dict[ViewName, View] = {}
    private_views: dict[ViewName, View] = {}
    renderer: Literal["ray", "gl", "auto", "none"] = "ray"
    randomize: Literal["none", "light", "full"] = "none"
    auto_reset: bool = False
    can_reset: ClassVar[bool] = False

    @model_validator(mode="after")
    def _check_views(self) -> Self:
        if both := self.views.keys() & self.private_views.keys():
            raise ValueError(f"private_views: {sorted(both)} are names of views as well")
        if taken := _RESERVED & (self.views.keys() | self.private_views.keys()):
            raise ValueError(f"views: {sorted(taken)} are names of other things")
        if self.max_steps < 1:
            raise ValueError(f"time_limit_s: no step fits in {self.time_limit_s:g} s")
        if self.auto_reset and not self.can_reset:
            raise ValueError("auto_reset: this task has no reset of its own")
        if self.observe == "pixels" and not self.policy_views:
            raise ValueError("observe pixels: expected a renderer and at least one of views")
        return self

    @property
    def policy_views(self) -> Mapping[str, View]:
        """What a policy sees of cameras."""
        return self.views if self.observe == "pixels" and self.renderer != "none" else {}

    @property
    def all_views(self) -> Mapping[str, View]:
        """What readings carry of cameras."""
        private = self.private_views if self.renderer != "none" else {}
        return {**self.policy_views, **private}

    def policy_images(self, reading: Observation) -> Mapping[str, Image]:
        """Of a reading's images those that a policy sees."""
        return {name: reading.images[name] for name in self.policy_views}

    @property
    def action_spec(self) -> ArraySpec:
        """What the robot takes: as its motion says."""
        return self.motion.action_spec

    @property
    def max_steps(self) -> int:
        """Steps until the time limit."""
        return round(self.time_limit_s * self.rate_hz)

    def outcome(self, success: bool, index: int, lost: bool = False) -> Outcome:
        """Of the step `index` of an episode: reward 1 and the end at a success, 0 until then.

        Args:
            success: the task is solved.
            index: of the step; the episode is truncated at the time limit.
            lost: nothing that follows can solve it.
        """
        over = success or lost
        late = index + 1 >= self.max_steps
        return Outcome(float(success), over, late and not over, success)


@dataclass(frozen=True)
class Placement:
    """One start of a scene.

    Attributes:
        tcp: base_T_tcp at the start: x y z, quaternion xyzw.  # (7,)
        bodies: base_T_body of each free body: x y z, quaternion xyzw.  # (7,)
        held_m: width of what the closed gripper holds; None starts with an open one.
        right_tcp: as `tcp`, of the second arm of a pair.
        right_held_m: as `held_m`, of that arm.
    """

    tcp: np.ndarray[Any, np.dtype[np.float64]]
    bodies: Mapping[str, np.ndarray[Any, np.dtype[np.float64]]] = field(default_factory=dict)
    held_m: float | None = None
    right_tcp: np.ndarray[Any, np.dtype[np.float64]] | None = None
    right_held_m: float | None = None


@dataclass(frozen=True)
class Scene:
    """A task's part of a MuJoCo model, as data.

    Attributes:
        bodies: MJCF elements placed inside `worldbody`.
        place: draws a start from a generator.
        tracked: names of bodies whose pose (x y z, quaternion xyzw) readings carry as the state
            `<name>_pose`, as an object tracker on a real arm would.
        extra: MJCF elements placed at the top level (tendons, equalities, sensors).
        front: where the camera of films stands, as MJCF attributes, if not opposite the arm.
        fits: bodies that fit into something, and the room on each side of them, m; randomised,
            they become thicker or thinner, but never larger than what they fit into.
        tool: MJCF elements fixed to the hand, in its frame: what it holds for good.
        robot: the simulation that it is a scene of, by name or as the path of a `.py` file.
        bases: where arms stand, x y z and yaw, by the prefix of their names. All that is told of
            positions and orientations is in the frame in which these are.
    """

    bodies: str
    place: Callable[[np.random.Generator], Placement]
    tracked: tuple[str, ...] = ()
    extra: str = ""
    front: str = FRONT
    fits: Mapping[str, float] = field(default_factory=dict)
    tool: str = ""
    robot: str = "arm"
    bases: Mapping[str, tuple[float, float, float, float]] = field(
        default_factory=lambda: {"": (0.0, 0.0, 0.0, 0.0)}
    )


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
        """A policy that restores the scene, or None when it is ready.

        It acts on readings, not on what the task's policy sees of them. It is asked for again, and
        may try another way, when it has not been enough.

        Raises:
            NeedsPerson: it cannot be restored from here.
        """
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


@runtime_checkable
class FeatureTuned(Protocol):
    """What a task has besides that can be trained on what a pretrained encoder makes of images."""

    def feature_defaults(self) -> Mapping[str, Any]:
        """Tuned settings where the small encoder stays as it is, put over `training_defaults`."""
        ...


@runtime_checkable
class Demonstrated(Protocol):
    """What a task has besides that a demonstration defines, as a lap does the course."""

    @property
    def defined(self) -> Mapping[str, Any]:
        """The settings that a demonstration defines, as they are: whoever differs saw another."""
        ...

    def recording_defaults(self) -> Mapping[str, Any]:
        """Settings, as overrides of its own, with which recordings hold what defines it."""
        ...

    def defined_by(self, demonstration: Episode) -> Mapping[str, Any]:
        """Overrides of its own settings, of a success that was recorded so; those given stay.

        Raises:
            BadInput: it does not hold what is needed, or defines nothing; the line says why.
        """
        ...

    def retold(self, demonstration: Episode) -> Episode:
        """A success that was recorded so, as this task sees and rewards it."""
        ...
