"""Tasks of real arms: declared by motion, views and settings, without a simulation.

A task needs no scene, expert or progress for training on an arm. It moves one arm: a run on two
arms refuses it. `RealTask` is a task whose reward is a classifier's, a pose's or a person's;
`read_task` reads it from a YAML file, which `serl task new` writes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, ClassVar, Literal, NoReturn

import numpy as np
import yaml
from pydantic import Field

from serl.camera import image_specs
from serl.errors import BadInput
from serl.geometry import Quaternion, Vector, normalize, rotation_between
from serl.policy import Policy
from serl.robot import Truth
from serl.specs import ArraySpec, ObservationSpec
from serl.system.files import write_atomic
from serl.system.settings_file import checked, merge, read_yaml
from serl.task import Placement, Scene, SimulatedTask, Task, TaskConfig
from serl.types import Array, FrozenModel, Observation, Outcome

_POSITION = ArraySpec(shape=(3,), unit="m, base frame")
_TURNS = {"roll", "pitch", "yaw"}

NAME = r"^[a-z][a-z0-9_]{0,31}$"
"""Pattern of a task's name."""


class RealTaskConfig(TaskConfig):
    """Settings of a task without a simulation.

    Attributes:
        origin_m: position from which a policy observes the tool's, base frame; None for the tool's
            position at the start of the episode, so that a policy learned in one spot works in
            another.
        force: a policy also observes force and torque, from which those at the start of the episode
            are subtracted.
    """

    observe: Literal["state", "pixels"] = "pixels"
    origin_m: Vector | None = None
    force: bool = False
    can_reset: ClassVar[bool] = True  # `RealTask` refuses `auto_reset` without a reset of its own


class RealTask:
    """A task without a simulation; a subclass declares `name`, `defaults` and `training`.

    A policy observes the views, and of the arm: the tool's position and turn from the start,
    its velocity, the gripper, and the lead of its target.

    Attributes:
        name: name of the task.
        defaults: settings of the task.
        training: settings of trainings, such as `reward`, `reset` and `steps`.
        tracked: bodies whose poses an object tracker publishes, as `<name>_pose` in readings.

    Raises:
        BadInput: `auto_reset` is set, and the subclass does not override `reset`.
    """

    name: str
    defaults: ClassVar[RealTaskConfig]
    training: ClassVar[Mapping[str, Any]] = {}
    tracked: ClassVar[tuple[str, ...]] = ()

    def __init__(self, config: RealTaskConfig | None = None) -> None:
        self.config = config or self.defaults
        if self.config.auto_reset and type(self).reset is RealTask.reset:
            raise BadInput(
                f"task_config.auto_reset: {self.name} has no reset of its own: expected false, or "
                "a class that overrides `reset`"
            )
        self._start = np.zeros(3, np.float32)
        self._turn: Quaternion = (0.0, 0.0, 0.0, 1.0)
        self._bias = np.zeros(6, np.float32)

    @cached_property
    def observation_spec(self) -> ObservationSpec:
        """The spec of the arm's state, and of the views."""
        spec, motion = {"tcp_from_start": _POSITION}, self.config.motion
        if _TURNS & set(motion.axes):
            spec["turn_from_start"] = ArraySpec(shape=(3,), unit="rad, base frame")
        spec["tcp_velocity"] = ArraySpec(shape=(3,), unit="m/s, base frame")
        if motion.gripper:
            spec["gripper"] = ArraySpec(shape=(1,), unit="opening, 0 to 1")
        spec["lead"] = _POSITION
        if self.config.force:
            spec["wrench"] = ArraySpec(shape=(6,), unit="N Nm, base frame, from the start")
        return ObservationSpec(state=spec, images=image_specs(self.config.policy_views))

    def begin(self, reading: Observation) -> None:
        """Begin an episode: remember the tool's pose and the wrench."""
        pose, origin = reading.state["tcp_pose"], self.config.origin_m
        self._start = pose[:3].copy() if origin is None else np.array(origin, np.float32)
        self._turn = normalize(pose[3:].tolist())
        self._bias = reading.state["wrench"].copy()

    def observation(self, reading: Observation) -> Observation:
        """Return a policy's observation of a reading."""
        state, tool = reading.state, reading.state["tcp_pose"]
        values: dict[str, Array] = {
            "tcp_from_start": tool[:3] - self._start,
            "turn_from_start": np.array(
                rotation_between(self._turn, normalize(tool[3:].tolist())), np.float32
            ),
            "tcp_velocity": state["tcp_twist"][:3],
            "gripper": state["gripper"],
            "lead": state["target_pose"][:3] - tool[:3],
            "wrench": state["wrench"] - self._bias,
        }
        seen = {name: values[name] for name in self.observation_spec.state}
        return Observation(seen, self.config.policy_images(reading), reading.stamps)

    def outcome(self, reading: Observation, index: int) -> Outcome:
        """Return a success if `is_success`, and truncation at the time limit."""
        return self.config.outcome(self.is_success(reading.state), index)

    def is_success(self, state: Mapping[str, Array]) -> bool:
        """Return False: `reward.kind` decides. A subclass may decide by the arm's readings."""
        return False

    @property
    def decides_success(self) -> bool:
        """Whether a subclass decides on success."""
        own = type(self)
        return (own.is_success, own.outcome) != (RealTask.is_success, RealTask.outcome)

    def reset(self, reading: Observation) -> Policy | None:
        """Return None: the arm returns home by `reset.kind`.

        A subclass may return a policy that restores the scene, and None once it is restored; runs
        use it with `auto_reset` or `reset.kind task`.
        """
        return None


class _TaskFile(FrozenModel):
    """The head of a task's file, besides the fields of `RealTaskConfig`."""

    task: str = Field(pattern=NAME)
    summary: str = ""
    tracked: tuple[str, ...] = ()
    training: dict[str, Any] = Field({})


def is_task_file(path: Path) -> bool:
    """Return whether a YAML file defines a task; raise `BadInput` if it cannot be read."""
    return {"task", "motion"} <= read_yaml(path).keys()


def read_task(path: Path) -> type[RealTask]:
    """Read a task from a YAML file.

    Raises:
        BadInput: the file is absent, damaged or not a task; one line with the name of the key.
    """
    path = path.resolve()
    if not path.is_file():
        raise BadInput(f"{path}: no such file")
    return _read(path, path.stat().st_mtime_ns)


@lru_cache(maxsize=64)
def _read(path: Path, changed_ns: int) -> type[RealTask]:
    """Return the task of a file that was last changed at this time."""
    values = read_yaml(path)
    if not {"task", "motion"} <= values.keys():
        raise BadInput(f"{path}: expected a task, with the keys task (its name) and motion")
    own = {key: value for key, value in values.items() if key in _TaskFile.model_fields}
    rest = {key: value for key, value in values.items() if key not in own}
    try:
        head, config = checked(_TaskFile, own), checked(RealTaskConfig, rest)
    except BadInput as error:
        raise BadInput(f"{path}: {error}") from None
    if config.auto_reset:
        raise BadInput(f"{path}: auto_reset: a task in a file has no reset of its own: false")
    members = {
        "__doc__": head.summary or f"{head.task}, on an arm.",
        "name": head.task,
        "defaults": config,
        "training": head.training,
        "tracked": head.tracked,
    }
    return type(head.task, (RealTask,), members)


def write_task(
    path: Path, name: str, summary: str, config: RealTaskConfig, training: Mapping[str, Any]
) -> None:
    """Write the file of a task, with the settings that differ from their defaults."""
    values = config.model_dump(mode="json", exclude_defaults=True)
    own = {"task": name, "summary": summary, **values, "training": dict(training)}
    checked(_TaskFile, {key: own[key] for key in ("task", "summary", "training")})
    lines = []
    for key, value in own.items():
        if isinstance(value, Mapping) and value:
            lines += [f"{key}:", *(f"  {inner}: {_flow(value[inner])}" for inner in value)]
        else:
            lines.append(f"{key}: {_flow(value)}")
    write_atomic(path, ("\n".join(lines) + "\n").encode())


def _flow(value: Any) -> str:
    """Return a value as YAML in one line."""
    text = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=10_000)
    return text.removesuffix("...\n").strip()


def as_simulated(task: Task) -> SimulatedTask:
    """Return a task with all methods of `SimulatedTask`; they raise if it has no simulation."""
    return task if hasattr(task, "scene") else _ArmOnly(task)  # type: ignore[return-value]


class _ArmOnly:
    """A task without a simulation, where one with a simulation is expected."""

    def __init__(self, task: Task) -> None:
        self._task, self.name, self.config = task, task.name, task.config
        self.observation_spec = task.observation_spec
        self.begin, self.observation = task.begin, task.observation
        self.outcome, self.reset = task.outcome, task.reset
        self.decides_success = getattr(task, "decides_success", True)

    @property
    def scene(self) -> Scene:
        """A scene of one arm, which cannot be simulated."""
        tracked = tuple(getattr(self._task, "tracked", ()))
        return Scene(bodies="", place=self._place, tracked=tracked, simulated=False)

    def is_success(self, truth: Truth) -> bool:
        """Refuse: there is no ground truth."""
        self._refuse("ground truth")

    def progress(self, truth: Truth) -> float:
        """Refuse: there is no measure of progress."""
        self._refuse("progress")

    def expert(self, truth: Callable[[], Truth], seed: int) -> Policy:
        """Refuse: there is no scripted expert."""
        self._refuse("scripted expert")

    def training_defaults(self) -> Mapping[str, Any]:
        """Return the task's settings of trainings; without an expert there are no demonstrations.

        A task without settings in `training` may have the method `training_defaults`.
        """
        own = getattr(self._task, "training_defaults", lambda: getattr(self._task, "training", {}))
        return merge({"demos": 0, "intervention": "none", "required_success_rate": None}, own())

    def _place(self, rng: np.random.Generator) -> Placement:
        self._refuse("start of its scene")

    def _refuse(self, missing: str) -> NoReturn:
        raise BadInput(f"{self.name}: has no simulation, and so no {missing}: it is for a real arm")
