"""Rewards for tasks without ground truth, and a task wrapper that uses them."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Protocol, Self

import numpy as np
from pydantic import Field, model_validator

from serl.camera import View, image_specs
from serl.errors import BadInput, SerlError
from serl.geometry import Vector, normalize, rotation_between
from serl.plugins import PluginName
from serl.policy import Policy
from serl.specs import ObservationSpec
from serl.system.settings_file import HomePath
from serl.task import Scene, SimulatedTask
from serl.types import Array, FrozenModel, Observation, Outcome

Held = Annotated[int, Field(ge=1, le=1000)]


class ToolPlace(FrozenModel):
    """The box that the tool must be in for a classifier to be queried.

    Attributes:
        tool_low_m: lowest corner, base frame; None for unbounded.
        tool_high_m: highest corner, base frame; None for unbounded.
    """

    tool_low_m: Vector | None = None
    tool_high_m: Vector | None = None

    def holds(self, other: ToolPlace) -> bool:
        """Return whether this box contains all of another one."""
        low, high = (
            np.array([math.copysign(math.inf, sign)] * 3 if corner is None else corner)
            for corner, sign in ((other.tool_low_m, -1), (other.tool_high_m, 1))
        )
        return bool(may_be_there(np.array([low, high]), self.tool_low_m, self.tool_high_m).all())

    def __str__(self) -> str:
        sides = ("above", self.tool_low_m), ("below", self.tool_high_m)
        limits = [f"{side} x, y, z of {list(at)} m" for side, at in sides if at is not None]
        return " and ".join(limits) or "anywhere"


class ProgressConfig(FrozenModel):
    """Settings of the reward "progress": a sparse reward, shaped by the progress of the scene.

    Progress is a number from 0 to 1; see `serl.shaping`.

    Attributes:
        success: kind of the sparse reward, which alone decides on success.
        model: time-to-go model, written by `serl reward progress`; None: `reward.topic` has the
            progress.
        sha256: hash of that file when the run was created; None to skip the check.
        weight: potential of full progress; a success has the reward 1.
    """

    success: Literal["task", "human", "pose", "classifier"] = "task"
    model: HomePath | None = None
    sha256: str | None = None
    weight: float = Field(1.0, gt=0, le=1000)


class RewardConfig(FrozenModel):
    """Settings of the reward and of the detection of success.

    A kind of reward with further settings subclasses this model as its `Config`.

    Attributes:
        kind: "task", the task's own outcome; "classifier" of images; "pose" of the tool; "human",
            the operator's success and failure keys only; "vice", a reward that the learner learns
            during training (`serl.agents.vice`), with episodes that last until the time limit;
            "topic", the number that a ROS node publishes; "progress", a sparse reward shaped by the
            progress of a scene; the name of a reward from an installed package; or the path of a
            .py file.
        model: file of the classifier, written by `serl reward train`.
        sha256: hash of that file when the run was created; None to skip the check.
        transfer: accept a model trained for another task with the same observations.
        threshold: minimum probability of a classifier's detection, from 0 to 1; None for the
            model's own value. For the kind "topic" the least number of a success; None for 0.5.
        hold: k and n; a classifier's success needs a detection in k of the last n steps.
        tool_low_m: lowest corner of the box that the tool must be in for a classifier's detection,
            base frame; None for unbounded.
        tool_high_m: highest corner of that box; None for unbounded.
        pose: base_T_tcp at success for the kind "pose": x y z, quaternion xyzw.
        tolerance_m: largest distance from `pose` along x, y and z, base frame.
        tolerance_rad: largest angle from `pose`.
        topic: topic of the kind "topic", or of the progress, from 0 to 1, of the kind "progress";
            relative to the namespace of the run, or absolute.
        message: type of the topic. A PointStamped has the number as x. Its age counts from its
            stamp; that of a message without a stamp counts from its arrival.
        max_age_s: age of the newest message above which a step is a fault: its episode is void.
    """

    kind: PluginName = "task"
    model: HomePath | None = None
    sha256: str | None = None
    transfer: bool = False
    threshold: float | None = None
    hold: tuple[Held, Held] = (4, 5)
    tool_low_m: Vector | None = None
    tool_high_m: Vector | None = None
    pose: tuple[float, float, float, float, float, float, float] | None = None
    tolerance_m: Vector = (0.01, 0.01, 0.01)
    tolerance_rad: float = Field(0.1, gt=0, le=math.pi)
    topic: str | None = Field(None, pattern=r"^/?[A-Za-z_]\w*(/[A-Za-z_]\w*)*$", max_length=200)
    message: Literal["Float32", "Float64", "Bool", "PointStamped"] = "Float32"
    max_age_s: float = Field(0.3, gt=0, le=60)
    progress: ProgressConfig = ProgressConfig()

    @model_validator(mode="after")
    def _check(self) -> Self:
        k, n = self.hold
        if not 1 <= k <= n:
            raise ValueError(f"hold {self.hold}: expected k of n with 1 <= k <= n")
        if self.kind == "topic" and self.topic is None:
            raise ValueError("topic: expected the name of a ROS topic, such as /cell/done")
        if self.kind == "progress" and (self.topic is None) == (self.progress.model is None):
            raise ValueError("progress: expected either topic, or progress.model, not both")
        if self.kind != "topic" and self.threshold is not None and not 0 < self.threshold < 1:
            raise ValueError(f"threshold {self.threshold:g}: expected a number between 0 and 1")
        if self.success_kind == "classifier":
            self._check_classifier()
        if self.success_kind == "pose":
            if self.pose is None:
                raise ValueError("pose: expected x y z and a quaternion xyzw")
            try:
                normalize(self.pose[3:])
            except BadInput as error:
                raise ValueError(f"pose: {error}") from None
        return self

    def _check_classifier(self) -> None:
        if self.model is None:
            raise ValueError("model: a classifier needs the file that `serl reward train` wrote")
        corners = "xyz", self.tool_low_m or (), self.tool_high_m or ()
        for axis, low_m, high_m in zip(*corners, strict=False):
            if low_m > high_m:
                text = f"tool_high_m: {axis} {high_m:g} m is below tool_low_m, {low_m:g} m"
                raise ValueError(f"{text}: nothing would be a success")

    @property
    def success_kind(self) -> str:
        """The kind of the reward that decides on success."""
        return self.progress.success if self.kind == "progress" else self.kind

    @property
    def place(self) -> ToolPlace:
        """The box that the tool must be in for a classifier to be queried."""
        return ToolPlace(tool_low_m=self.tool_low_m, tool_high_m=self.tool_high_m)


def may_be_there(
    tools_m: Array, low_m: Vector | None, high_m: Vector | None
) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Return whether tool positions are in a box; NaN coordinates count as inside.

    Args:
        tools_m: positions in the base frame.  # (..., 3)
        low_m: lowest corner; None for unbounded.
        high_m: highest corner; None for unbounded.
    """
    away = np.zeros(tools_m.shape[:-1], bool)
    if low_m is not None:
        away |= (tools_m < np.array(low_m)).any(-1)
    if high_m is not None:
        away |= (tools_m > np.array(high_m)).any(-1)
    return ~away


class Judgement(NamedTuple):
    """The reward of one reading, and whether it is a success."""

    reward: float = 0.0
    success: bool = False


class Reward(Protocol):
    """A reward function, called with the readings of an episode in order."""

    provenance: str

    def begin(self, reading: Observation) -> None:
        """Begin an episode at this reading."""
        ...

    def __call__(self, reading: Observation) -> Judgement:
        """Return the reward and success of the reading after a step."""
        ...


class RewardKind(Protocol):
    """Factory that a module exports as `reward`; in a class, `create` is a class method.

    Attributes:
        Config: model of the settings `reward.*`; if absent, `RewardConfig` is used.
    """

    Config: ClassVar[type[RewardConfig]]

    def create(self, config: RewardConfig, task: SimulatedTask) -> Reward:
        """Return a new reward for episodes of `task`.

        Raises:
            BadInput: the reward does not support this task.
        """
        ...


class NoReward:
    """A constant zero reward, for rewards given by the operator's events or later by the learner.

    Args:
        provenance: source of the actual reward.
    """

    def __init__(self, provenance: str) -> None:
        self.provenance = provenance

    def begin(self, reading: Observation) -> None:
        """Do nothing: there is no state."""

    def __call__(self, reading: Observation) -> Judgement:
        """Return reward 0 and no success."""
        return Judgement()


class PoseReward:
    """A reward of 1 and success when the tool is at a given pose.

    Args:
        config: `pose`, `tolerance_m` and `tolerance_rad` are used.
    """

    provenance = "pose"

    def __init__(self, config: RewardConfig) -> None:
        assert config.pose is not None  # the configuration was checked
        self._position = np.array(config.pose[:3])
        self._quaternion = normalize(config.pose[3:])
        self._config = config

    def begin(self, reading: Observation) -> None:
        """Do nothing: there is no state."""

    def __call__(self, reading: Observation) -> Judgement:
        """Return reward 1 and success if the pose is within the tolerances."""
        pose = reading.state["tcp_pose"]
        near = np.abs(pose[:3] - self._position) <= self._config.tolerance_m
        turn = rotation_between(self._quaternion, normalize(pose[3:].tolist()))
        success = bool(near.all() and np.linalg.norm(turn) <= self._config.tolerance_rad)
        return Judgement(float(success), success)


class StageReward:
    """A reward from an image classifier: repeated detections while the tool is in the given box.

    Non-finite probabilities raise `SerlError`: the robot holds.

    A classifier of more than two classes detects stages: each counts once, in order, and the last
    one is the success. A stage must last for the k steps of `hold` in which it must be detected.

    Args:
        probabilities: returns the class probabilities of a reading's images; class 0 is "nothing".
        stages: number of classes without class 0.
        config: `hold`, `tool_low_m` and `tool_high_m` are used.
        threshold: minimum probability of a detection.
    """

    provenance = "classifier"

    def __init__(
        self,
        probabilities: Callable[[Observation], np.ndarray[Any, Any]],
        stages: int,
        config: RewardConfig,
        threshold: float,
    ) -> None:
        self._probabilities, self._stages = probabilities, stages
        self._config, self._threshold = config, threshold
        self._detections: deque[int] = deque(maxlen=config.hold[1])
        self._stage = 0

    def begin(self, reading: Observation) -> None:
        """Forget all detections of the last episode."""
        self._detections.clear()
        self._stage = 0

    def __call__(self, reading: Observation) -> Judgement:
        """Return reward 1 / stages if this reading completes a stage, and success at the last."""
        self._detections.append(self._class(reading))
        if self._detections.count(self._stage + 1) < self._config.hold[0]:
            return Judgement()
        self._stage += 1
        self._detections.clear()
        return Judgement(1.0 / self._stages, self._stage == self._stages)

    def _class(self, reading: Observation) -> int:
        if not self._tool_is_there(reading):
            return 0
        probabilities = self._probabilities(reading)
        if not np.isfinite(probabilities).all():
            raise SerlError("reward model: not finite")
        best = int(probabilities.argmax())
        return best if probabilities[best] >= self._threshold else 0

    def _tool_is_there(self, reading: Observation) -> bool:
        low, high = self._config.tool_low_m, self._config.tool_high_m
        if low is None and high is None:
            return True
        return bool(may_be_there(reading.state["tcp_pose"][:3], low, high))


class RewardedTask:
    """A simulated task whose success is decided by a reward; all else comes from the wrapped task.

    Failures of the task end the episode; successes of the task do not, only those of the reward.

    Args:
        task: the wrapped task.
        reward: source of reward and success.
        witnesses: additional images of observations, for the log; no policy uses them.
        apart: the task lacks the state that its outcome and its reset need, as on a real arm: only
            its time limit is used, and a person resets the scene.

    Attributes:
        reward: source of reward and success.
        solved: the task's own success at the newest reading, for audits only.
    """

    def __init__(
        self,
        task: SimulatedTask,
        reward: Reward,
        witnesses: Mapping[str, View] | None = None,
        apart: bool = False,
    ) -> None:
        self._task, self.reward, self._witnesses = task, reward, witnesses or {}
        self._apart = apart
        self.name, self.solved, self.config = task.name, False, task.config
        self.is_success, self.progress, self.expert = task.is_success, task.progress, task.expert
        self.training_defaults = task.training_defaults

    @property
    def observation_spec(self) -> ObservationSpec:
        """The observation spec of the wrapped task, extended by the witness images."""
        spec = self._task.observation_spec
        images = {**spec.images, **image_specs(self._witnesses)}
        return spec.model_copy(update={"images": images})

    @property
    def scene(self) -> Scene:
        """The scene of the wrapped task."""
        return self._task.scene

    def begin(self, reading: Observation) -> None:
        """Begin an episode at this reading."""
        self.solved = False
        self._task.begin(reading)
        self.reward.begin(reading)

    def observation(self, reading: Observation) -> Observation:
        """Return the observation of the wrapped task, extended by the witness images."""
        seen = self._task.observation(reading)
        images = {name: reading.images[name] for name in self._witnesses}
        return replace(seen, images={**seen.images, **images})

    def outcome(self, reading: Observation, index: int) -> Outcome:
        """Return reward and success by `reward`, failure and time limit by the task."""
        outcome = (
            self.config.outcome(False, index) if self._apart else self._task.outcome(reading, index)
        )
        self.solved, rated = outcome.success, self.reward(reading)
        failed = outcome.terminated and not outcome.success
        success = rated.success and not failed
        late = index + 1 >= self.config.max_steps or outcome.truncated
        return replace(
            outcome,
            reward=0.0 if failed else rated.reward,
            terminated=failed or success,
            truncated=late and not (failed or success),
            success=success,
            provenance=self.reward.provenance,
        )

    def reset(self, reading: Observation) -> Policy | None:
        """Return the reset policy of the wrapped task; None if `apart`."""
        return None if self._apart else self._task.reset(reading)
