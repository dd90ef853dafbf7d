"""Contract of a task: its observations, its outcomes, and the reset of its scene.

A task defines its box, rate, time limit, action scales and tuned settings, and, for simulation, its
scene, its ground truth and a scripted expert.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Protocol, Self, runtime_checkable

import numpy as np
from pydantic import AfterValidator, Field, model_validator

from serl.camera import View
from serl.compliance import TaskCompliance
from serl.geometry import Vector
from serl.motion import Motion
from serl.perception import PerceptionConfig
from serl.policy import Policy
from serl.robot import Truth
from serl.specs import ArraySpec, ObservationSpec
from serl.types import Episode, FrozenModel, Image, Observation, Outcome

ViewName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,31}$")]
FRONT = 'pos="1.46 -0.72 0.88" xyaxes="0.540 0.842 0 -0.334 0.214 0.918"'
"""Pose of the video camera opposite the arm, as MJCF attributes."""
_RESERVED = {"state", "robot"}  # names in observations and stamps


def _check_order(ends: tuple[float, float]) -> tuple[float, float]:
    if ends[0] > ends[1]:
        raise ValueError(f"expected the lower end first, got {list(ends)}")
    return ends


Length = Annotated[float, Field(ge=0, le=1)]
"""A length on a table, metres."""
Lengths = Annotated[tuple[Length, Length], AfterValidator(_check_order)]
"""A range of lengths, lower end first, metres."""
Turn = Annotated[float, Field(ge=0, le=math.pi)]
Turns = Annotated[tuple[Turn, Turn], AfterValidator(_check_order)]
"""A range of angles, lower end first, radians."""


class TaskConfig(FrozenModel):
    """Settings common to all tasks; a task's own configuration adds its fields.

    Attributes:
        rate_hz: control rate.
        time_limit_s: an episode is truncated after this time.
        motion: meaning and limits of actions (see `serl.motion`).
        observe: a policy observes the state of the scene, or camera views and the arm's own state.
        views: camera views observed by a policy, by name.
        private_views: additional views for a reward model; never observed by a policy.
        randomize: randomization of simulated episodes in looks, physics and sensors: none, the
            variation left open by a good set-up ("light"), or the variation needed for transfer to
            a real arm ("full"); see `sim/randomization_ranges.py`.
        perception: errors of the poses of tracked bodies in observations, in a simulation; rewards,
            resets and experts keep the exact poses. Only for tasks with an attribute `perception`,
            through which they observe.
        auto_reset: the arm restores the scene between episodes by `Task.reset`; a simulation places
            the scene for the first episode only. Refused unless the class of the settings has
            `can_reset`, as that of a task with a reset of its own must (`RealTaskConfig` has it).
        zero_wrench: an arm over ROS 2 subtracts the mean wrench before each episode from the
            wrenches of its readings, as a simulation does at each reset: for sensors that drift. An
            episode must then begin without contact. Guards keep the measured wrench.
        compliance: gains and clips of the controller in episodes, and in resets, and a wrench that
            the tool exerts in episodes. A simulation has those of episodes in resets, too.
        renderer: renderer of simulated cameras. "ray" gives the same images on every machine, but
            no textures, tendons or cloth; "gl" has different lighting and is faster on a GPU and
            for large images; "auto" takes the faster one here, so that policies and reward models
            of one machine may not fit another; "none" disables all images.
    """

    rate_hz: float = Field(10.0, gt=0, le=500)
    time_limit_s: float = Field(10.0, gt=0, le=86_400)
    motion: Motion
    observe: Literal["state", "pixels"] = "state"
    views: dict[ViewName, View] = Field({})
    private_views: dict[ViewName, View] = Field({})
    renderer: Literal["ray", "gl", "auto", "none"] = "ray"
    randomize: Literal["none", "light", "full"] = "none"
    perception: PerceptionConfig = PerceptionConfig()
    auto_reset: bool = False
    zero_wrench: bool = False
    compliance: TaskCompliance = TaskCompliance()
    can_reset: ClassVar[bool] = False
    hard: ClassVar[Mapping[str, Any]] = {}
    """Settings of this task that the preset "hard" adds: its tolerances in a lab."""
    practice: ClassVar[Mapping[str, Any]] = {}
    """Overrides, for this task, of the training settings of the preset "practice"."""

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
        """The camera views observed by a policy, by name."""
        return self.views if self.observe == "pixels" and self.renderer != "none" else {}

    @property
    def all_views(self) -> Mapping[str, View]:
        """The camera views in readings, including private ones, by name."""
        private = self.private_views if self.renderer != "none" else {}
        return {**self.policy_views, **private}

    def policy_images(self, reading: Observation) -> Mapping[str, Image]:
        """Return the images of a reading that a policy observes."""
        return {name: reading.images[name] for name in self.policy_views}

    @property
    def action_spec(self) -> ArraySpec:
        """The spec of the robot's actions, given by `motion`."""
        return self.motion.action_spec

    @property
    def action_meaning(self) -> str:
        """The scale and frame of an action of 1 as text, given by `motion`."""
        return self.motion.meaning

    @property
    def max_steps(self) -> int:
        """The number of steps until the time limit."""
        return round(self.time_limit_s * self.rate_hz)

    def outcome(self, success: bool, index: int, lost: bool = False) -> Outcome:
        """Return the outcome of a step with a sparse reward: 1 and the end at a success, else 0.

        Args:
            success: the task is solved.
            index: index of the step; the episode is truncated at the time limit.
            lost: the task can no longer be solved; the episode ends as a failure.
        """
        over = success or lost
        late = index + 1 >= self.max_steps
        return Outcome(float(success), over, late and not over, success)


@dataclass(frozen=True)
class Placement:
    """A start state of a scene.

    Attributes:
        tcp: base_T_tcp at the start: x y z, quaternion xyzw.  # (7,)
        bodies: base_T_body of each free body: x y z, quaternion xyzw.  # (7,)
        held_m: width of the object held by the closed gripper; None for an open gripper.
        right_tcp: base_T_tcp of the second arm of a pair.
        right_held_m: width of the object held by the second arm's gripper.
    """

    tcp: np.ndarray[Any, np.dtype[np.float64]]
    bodies: Mapping[str, np.ndarray[Any, np.dtype[np.float64]]] = field(default_factory=dict)
    held_m: float | None = None
    right_tcp: np.ndarray[Any, np.dtype[np.float64]] | None = None
    right_held_m: float | None = None


class Detail(NamedTuple):
    """A small place of a scene, in the frame of a body.

    Attributes:
        body: name of the body.
        place_m: the place.
        from_m: position of the camera.
        width_m: width of the part of the scene that is to be seen.
        dark: boxes to be drawn dark, such as the walls of a hole: centre and half the size.
    """

    body: str
    place_m: Vector
    from_m: Vector
    width_m: float
    dark: tuple[tuple[Vector, Vector], ...] = ()


@dataclass(frozen=True)
class Scene:
    """The task-specific part of a MuJoCo model, as data.

    Attributes:
        bodies: MJCF elements placed inside `worldbody`.
        place: draws a start from a random generator.
        tracked: names of bodies whose pose (x y z, quaternion xyzw) readings contain as the state
            `<name>_pose`, as an object tracker on a real arm would provide.
        extra: MJCF elements placed at the top level (tendons, equalities, sensors).
        front: pose of the video camera as MJCF attributes, if not opposite the arm.
        detail: the part of the scene that pictures for people also show in close-up.
        fits: bodies that fit into an opening, and their clearance on each side, m; randomization
            makes them thicker or thinner, but never larger than the opening.
        tool: MJCF elements of a permanently held tool, in the frame of the hand.
        robot: simulation of the scene, by name or as the path of a `.py` file.
        bases: x y z and yaw of the arms' bases, by the prefix of the arms' names. All positions and
            orientations of the scene are in the frame of these poses.
        simulated: whether the scene can be simulated; False for a task of real arms alone (see
            `serl.real_task`).
    """

    bodies: str
    place: Callable[[np.random.Generator], Placement]
    tracked: tuple[str, ...] = ()
    extra: str = ""
    front: str = FRONT
    detail: Detail | None = None
    fits: Mapping[str, float] = field(default_factory=dict)
    tool: str = ""
    robot: str = "arm"
    bases: Mapping[str, tuple[float, float, float, float]] = field(
        default_factory=lambda: {"": (0.0, 0.0, 0.0, 0.0)}
    )
    simulated: bool = True


class TaskView(Protocol):
    """The part of a task used by the control loop: observations and outcomes."""

    @property
    def observation_spec(self) -> ObservationSpec:
        """The spec of a policy's observations."""
        ...

    def begin(self, reading: Observation) -> None:
        """Begin an episode at this reading."""
        ...

    def observation(self, reading: Observation) -> Observation:
        """Return a policy's observation of a reading."""
        ...

    def outcome(self, reading: Observation, index: int) -> Outcome:
        """Return the outcome of the step `index` (0 is the first) from the reading after it."""
        ...


class Task(TaskView, Protocol):
    """A task as used by an actor: name, configuration, observations, outcomes and reset."""

    name: str

    @property
    def config(self) -> TaskConfig:
        """The configuration: box, rate, time limit and further settings of the task."""
        ...

    def reset(self, reading: Observation) -> Policy | None:
        """Return a policy that restores the scene, or None when the scene is ready.

        The policy is called with readings, not with the task's observations. If the scene is not
        ready afterwards, `reset` is called again and may return a different policy.

        Raises:
            NeedsPerson: the scene cannot be restored automatically from its current state.
        """
        ...


class SimulatedTask(Task, Protocol):
    """A task that can be trained in simulation."""

    @property
    def scene(self) -> Scene:
        """The scene that is added to the arm's model."""
        ...

    def is_success(self, truth: Truth) -> bool:
        """Return whether the task is solved at this instant, by ground truth (no reward model)."""
        ...

    def progress(self, truth: Truth) -> float:
        """Return the progress of the task, from 0 to 1; it grows along a good trajectory."""
        ...

    def expert(self, truth: Callable[[], Truth], seed: int) -> Policy:
        """Return a scripted expert that can continue from any state of the scene."""
        ...

    def training_defaults(self) -> Mapping[str, Any]:
        """Return tuned settings, as overrides of the training configuration."""
        ...


@runtime_checkable
class FeatureTunedTask(Protocol):
    """Additional method of a task that can be trained on a pretrained encoder's image features."""

    def feature_defaults(self) -> Mapping[str, Any]:
        """Return tuned settings for a frozen small encoder; they override `training_defaults`."""
        ...


class EnvironmentStep(NamedTuple):
    """The result of one step of a task's environment, as another program recorded it.

    Attributes:
        reward: reward of the environment.
        terminated: the environment ended.
        truncated: the episode was cut.
        success: the task was solved; counts where `info` does not report it.
        info: numbers of the environment's `info` by key; None if the data set has no `info`.
    """

    reward: float
    terminated: bool
    truncated: bool
    success: bool
    info: Mapping[str, Any] | None


@runtime_checkable
class EnvironmentTask(Protocol):
    """Additional method of a task whose environment other programs record too."""

    def outcomes(self, steps: Iterable[EnvironmentStep]) -> Iterator[Outcome]:
        """Yield the outcomes that the task gives the steps of an episode, up to its end.

        Raises:
            BadInput: the reward needs a success that the data set lacks.
        """
        ...


@runtime_checkable
class DemonstrationTask(Protocol):
    """Additional methods of a task that a demonstration defines, as a lap defines a course."""

    @property
    def defined(self) -> Mapping[str, Any]:
        """The current values of the settings defined by a demonstration; they identify it."""
        ...

    def recording_defaults(self) -> Mapping[str, Any]:
        """Return overrides of the task's settings that make recordings hold the defining data."""
        ...

    def defined_by(self, demonstration: Episode) -> Mapping[str, Any]:
        """Return overrides of the task's settings that follow from a recorded success.

        The recording was made with `recording_defaults`. Explicitly given settings are kept.

        Raises:
            BadInput: the recording lacks the needed data or defines nothing; the message explains.
        """
        ...

    def relabel(self, demonstration: Episode) -> Episode:
        """Return a recorded success with the observations and rewards of this task.

        The recording was made with `recording_defaults`.
        """
        ...
