"""What judges success where there is no ground truth, and a task that believes it."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, NamedTuple, Protocol, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from serl.camera import View, image_specs
from serl.errors import BadInput, SerlError
from serl.geometry import Vector, between, normalized
from serl.plugins import PluginName
from serl.policy import Policy
from serl.robot import Truth
from serl.specs import ObservationSpec
from serl.task import Scene, SimulatedTask, TaskConfig
from serl.types import Array, Observation, Outcome

Held = Annotated[int, Field(ge=1, le=1000)]


class ToolPlace(BaseModel):
    """Where the tool must be for a classifier to be asked.

    Attributes:
        tool_low_m: lowest corner, base frame ...
        tool_high_m: ... and the highest; None for anywhere.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    tool_low_m: Vector | None = None
    tool_high_m: Vector | None = None

    def holds(self, other: ToolPlace) -> bool:
        """Whether all of another place is in this one."""
        low, high = (
            np.array([math.copysign(math.inf, sign)] * 3 if corner is None else corner)
            for corner, sign in ((other.tool_low_m, -1), (other.tool_high_m, 1))
        )
        return bool(may_be_there(np.array([low, high]), self.tool_low_m, self.tool_high_m).all())

    def __str__(self) -> str:
        sides = ("above", self.tool_low_m), ("below", self.tool_high_m)
        told = [f"{side} x, y, z of {list(at)} m" for side, at in sides if at is not None]
        return " and ".join(told) or "anywhere"


class RewardConfig(BaseModel):
    """What judges success.

    A kind of reward with settings of its own subclasses this, and names the subclass `Config`.

    Attributes:
        kind: the task's own outcome, a classifier of images, the pose of the tool, a person
            alone, who presses keys for success and failure, or "vice": the learner, which learns
            the reward as it trains (`serl.agents.vice`); its episodes last until the time limit;
            the name of one that an installed package brings; or the path of a .py file.
        model: of a classifier: the file that `serl reward train` wrote ...
        sha256: ... and what it held when the run was made; None for anything.
        transfer: of a classifier: it may have been trained for another task, whose cameras are the
            same.
        threshold: of a classifier: the probability from which it is believed; None for its own.
        hold: of a classifier: k and n; believed when it says so in k of the last n steps.
        tool_low_m: of a classifier: lowest corner of where the tool must be, base frame ...
        tool_high_m: ... and the highest; None for anywhere.
        pose: of the tool: base_T_tcp of success: x y z, quaternion xyzw.
        tolerance_m: of the tool: how near along x, y and z, base frame ...
        tolerance_rad: ... and by which angle at most.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    kind: PluginName = "task"
    model: Path | None = None
    sha256: str | None = None
    transfer: bool = False
    threshold: float | None = Field(None, gt=0, lt=1)
    hold: tuple[Held, Held] = (4, 5)
    tool_low_m: Vector | None = None
    tool_high_m: Vector | None = None
    pose: tuple[float, float, float, float, float, float, float] | None = None
    tolerance_m: Vector = (0.01, 0.01, 0.01)
    tolerance_rad: float = Field(0.1, gt=0, le=math.pi)

    @model_validator(mode="after")
    def _check(self) -> Self:
        k, n = self.hold
        if not 1 <= k <= n:
            raise ValueError(f"hold {self.hold}: expected k of n with 1 <= k <= n")
        if self.kind == "classifier" and self.model is None:
            raise ValueError("model: a classifier needs the file that `serl reward train` wrote")
        if self.kind == "pose":
            if self.pose is None:
                raise ValueError("pose: expected x y z and a quaternion xyzw")
            try:
                normalized(self.pose[3:])
            except BadInput as error:
                raise ValueError(f"pose: {error}") from None
        return self

    @property
    def place(self) -> ToolPlace:
        """Of a classifier: where the tool must be."""
        return ToolPlace(tool_low_m=self.tool_low_m, tool_high_m=self.tool_high_m)


def may_be_there(
    tools_m: Array, low_m: Vector | None, high_m: Vector | None
) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Whether tools are between two corners; who is not known to be elsewhere may be there.

    Args:
        tools_m: positions in the base frame.  # (..., 3)
        low_m: the lowest corner; None for anything.
        high_m: the highest one.
    """
    away = np.zeros(tools_m.shape[:-1], bool)
    if low_m is not None:
        away |= (tools_m < np.array(low_m)).any(-1)
    if high_m is not None:
        away |= (tools_m > np.array(high_m)).any(-1)
    return ~away


class Judgement(NamedTuple):
    """What is said of one reading."""

    reward: float = 0.0
    success: bool = False


class Reward(Protocol):
    """Judges readings, one after the other."""

    provenance: str

    def begin(self, reading: Observation) -> None:
        """An episode starts at this reading."""
        ...

    def __call__(self, reading: Observation) -> Judgement:
        """Judge the reading after a step."""
        ...


class RewardKind(Protocol):
    """What a module names as its `reward`.

    Attributes:
        Config: its settings, `reward.*`; without it they are those of `RewardConfig`.
    """

    Config: ClassVar[type[RewardConfig]]

    def create(self, config: RewardConfig, task: SimulatedTask) -> Reward:
        """A new one, which judges episodes of `task`; a class has this as a class method.

        Raises:
            BadInput: it cannot judge this task.
        """
        ...


class NoReward:
    """Says nothing: a person does, of whom the control loop hears, or the learner, later.

    Args:
        provenance: who does.
    """

    def __init__(self, provenance: str) -> None:
        self.provenance = provenance

    def begin(self, reading: Observation) -> None:
        """Nothing to keep."""

    def __call__(self, reading: Observation) -> Judgement:
        """Never anything."""
        return Judgement()


class PoseReward:
    """Success is where the tool is, and how it is turned.

    Args:
        config: says where.
    """

    provenance = "pose"

    def __init__(self, config: RewardConfig) -> None:
        assert config.pose is not None  # the configuration was checked
        self._position = np.array(config.pose[:3])
        self._quaternion = normalized(config.pose[3:])
        self._config = config

    def begin(self, reading: Observation) -> None:
        """Nothing to keep."""

    def __call__(self, reading: Observation) -> Judgement:
        """1 and success within the tolerances."""
        pose = reading.state["tcp_pose"]
        near = np.abs(pose[:3] - self._position) <= self._config.tolerance_m
        turn = between(self._quaternion, normalized(pose[3:].tolist()))
        success = bool(near.all() and np.linalg.norm(turn) <= self._config.tolerance_rad)
        return Judgement(float(success), success)


class StageReward:
    """Success is what a classifier of images sees, several times, with the tool where it must be.

    Probabilities that are not finite raise `SerlError`: the robot holds.

    A classifier of more than two classes tells stages: each counts once, in their order, and the
    last one is the success. A stage must last for the k steps in which it is to be seen.

    Args:
        probabilities: of a reading's images: how probable each class is; the first is "nothing".
        stages: how many classes there are besides the first.
        config: how often, how sure, and where.
        threshold: the probability from which the classifier is believed.
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
        self._seen: deque[int] = deque(maxlen=config.hold[1])
        self._stage = 0

    def begin(self, reading: Observation) -> None:
        """Nothing has been seen yet."""
        self._seen.clear()
        self._stage = 0

    def __call__(self, reading: Observation) -> Judgement:
        """The share of the stages that this reading completes."""
        self._seen.append(self._class(reading))
        if self._seen.count(self._stage + 1) < self._config.hold[0]:
            return Judgement()
        self._stage += 1
        self._seen.clear()
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
    """A simulated task whose success is what a reward says; all else is the task's own.

    Where the task ends an episode as a failure, it does; where it would end it as a success, it
    goes on until the reward says so.

    Args:
        task: what is judged.
        reward: judges it.
        witnesses: images that observations carry besides, for the log; no policy looks at them.
        apart: nothing tells the task what it needs to judge and to reset, as on a real arm: it is
            not asked, its time limit holds, and a person resets.

    Attributes:
        solved: the task's own word on the newest reading, for audits alone.
    """

    def __init__(
        self,
        task: SimulatedTask,
        reward: Reward,
        witnesses: Mapping[str, View] | None = None,
        apart: bool = False,
    ) -> None:
        self._task, self._reward, self._witnesses = task, reward, witnesses or {}
        self._apart = apart
        self.name, self.solved = task.name, False

    @property
    def config(self) -> TaskConfig:
        """As the task."""
        return self._task.config

    @property
    def observation_spec(self) -> ObservationSpec:
        """As the task, and the witnesses."""
        spec = self._task.observation_spec
        images = {**spec.images, **image_specs(self._witnesses)}
        return spec.model_copy(update={"images": images})

    @property
    def scene(self) -> Scene:
        """As the task."""
        return self._task.scene

    def begin(self, reading: Observation) -> None:
        """An episode starts at this reading."""
        self.solved = False
        self._task.begin(reading)
        self._reward.begin(reading)

    def observation(self, reading: Observation) -> Observation:
        """As the task, and the witnesses."""
        seen = self._task.observation(reading)
        images = {name: reading.images[name] for name in self._witnesses}
        return replace(seen, images={**seen.images, **images})

    def outcome(self, reading: Observation, index: int) -> Outcome:
        """The reward's success, the task's failures and its time limit."""
        outcome = self._own(reading, index)
        self.solved, judged = outcome.success, self._reward(reading)
        failed = outcome.terminated and not outcome.success
        success = judged.success and not failed
        late = index + 1 >= self.config.max_steps or outcome.truncated
        return replace(
            outcome,
            reward=0.0 if failed else judged.reward,
            terminated=failed or success,
            truncated=late and not (failed or success),
            success=success,
            provenance=self._reward.provenance,
        )

    def reset(self, reading: Observation) -> Policy | None:
        """As the task; None apart from it."""
        return None if self._apart else self._task.reset(reading)

    def is_success(self, truth: Truth) -> bool:
        """As the task: the truth does not depend on who judges."""
        return self._task.is_success(truth)

    def progress(self, truth: Truth) -> float:
        """As the task."""
        return self._task.progress(truth)

    def expert(self, truth: Callable[[], Truth], seed: int) -> Policy:
        """As the task."""
        return self._task.expert(truth, seed)

    def training_defaults(self) -> Mapping[str, Any]:
        """As the task."""
        return self._task.training_defaults()

    def _own(self, reading: Observation, index: int) -> Outcome:
        return (
            self.config.outcome(False, index) if self._apart else self._task.outcome(reading, index)
        )
