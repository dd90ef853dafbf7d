"""Tasks made of environments of Gymnasium: `gymnasium:ID` for any id of `gymnasium.make`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import Field

from serl import plugins
from serl.camera import View, image_specs
from serl.errors import BadInput
from serl.motion import Motion
from serl.policy import Policy
from serl.robot import Truth
from serl.specs import ArraySpec, ObservationSpec
from serl.task import EnvironmentStep, Placement, Scene, TaskConfig
from serl.tasks.parts.training_defaults import from_state
from serl.types import Action, Observation, Outcome

_PACKAGES = {"gym_hil": "gym_hil:gym_hil/"}
"""Beginning of the full id of environments, by a prefix that stands for a package."""

_UNUSED = Motion(axes=(), translation_m=1.0, box_low_m=(-1, -1, -1), box_high_m=(1, 1, 1))


class GymnasiumConfig(TaskConfig):
    """Settings of a task that is an environment of Gymnasium.

    Those that are not given are the environment's own.

    Attributes:
        motion: not used: actions are scaled to the bounds of the environment's action space.
        id: id of the environment, part of the task's name.
        make: further arguments of `gymnasium.make`.
        actions: names of the entries of an action.
        reward: "sparse" is 1 for a success and 0 otherwise, for environments that report success;
            "environment" is the environment's own reward. A success ends the episode in both.
        success_key: key of the success in `info`; None for the usual ones.
        success_return: sum of rewards from which on the episode is a success, for environments
            that report none; positive, as the sum begins at 0.
        expert: `.py` file with a scripted expert: `expert(rng)` returns a function from the
            environment's observation to its action.
    """

    motion: Motion = _UNUSED
    id: str
    make: dict[str, Any] = Field(default_factory=dict)
    actions: tuple[str, ...] = ()
    reward: Literal["sparse", "environment"] = "environment"
    success_key: str | None = None
    success_return: float | None = Field(None, gt=0, allow_inf_nan=False)
    expert: plugins.PluginName | None = None

    @property
    def action_spec(self) -> ArraySpec:
        """The spec of the robot's actions, in the scale of the environment's bounds."""
        unit = " ".join(self.actions)
        return ArraySpec(shape=(len(self.actions),), low=-1.0, high=1.0, unit=unit)

    @property
    def action_meaning(self) -> str:
        """The scale of an action of 1 as text."""
        return "upper bound of the environment's action space"


class GymnasiumTask:
    """An environment of Gymnasium: its observations, its success, its reward and its time limit."""

    def __init__(self, name: str, config: GymnasiumConfig) -> None:
        self.name = name
        self.config = _completed(config)
        self._described = _describe(self.config)
        given, needed = len(self.config.actions), len(self._described.action_low)
        if given != needed:
            raise BadInput(f"task_config.actions: expected {needed} names, got {given}")
        own = _views(self._described)
        if self.config.private_views or not self.config.views.items() <= own.items():
            has = (f"{name} ({view.width} x {view.height})" for name, view in own.items())
            raise BadInput(
                "task_config.views: the environment's images are used as they are, uncropped: "
                + (", ".join(has) or "none")
            )
        if self.config.randomize != "none":
            raise BadInput("task_config.randomize: expected none: the world is the environment's")

    @cached_property
    def observation_spec(self) -> ObservationSpec:
        """The arrays of the environment's observations, and with cameras its images.

        Raises:
            BadInput: with these settings, the success that it reports cannot be used.
        """
        plugins.load("sim", "gymnasium").success(self.config, self._described.info, 0.0)
        return ObservationSpec(
            state=dict(self._described.state), images=image_specs(self.config.policy_views)
        )

    @property
    def scene(self) -> Scene:
        """The environment, which places its own scene."""
        return Scene(bodies="", place=_place, robot="gymnasium")

    @property
    def has_expert(self) -> bool:
        """Whether there is a scripted expert."""
        return self.config.expert is not None

    def begin(self, reading: Observation) -> None:
        """Do nothing: the environment has the state."""

    def observation(self, reading: Observation) -> Observation:
        """Return the environment's observation, without its outcome."""
        state = {name: reading.state[name] for name in self._described.state}
        return Observation(state, self.config.policy_images(reading), reading.stamps)

    def outcome(self, reading: Observation, index: int) -> Outcome:
        """Return the environment's outcome; a success ends the episode."""
        reward, success, terminated, truncated = reading.state["outcome"][:4].tolist()
        if self.config.reward == "sparse":
            reward = success
        over = bool(success or terminated)
        late = bool(truncated) or index + 1 >= self.config.max_steps
        return Outcome(reward, over, late and not over, bool(success))

    def outcomes(self, steps: Iterable[EnvironmentStep]) -> Iterator[Outcome]:
        """Yield the outcomes of recorded steps, equal to those of a training, up to the end.

        Raises:
            BadInput: the sparse reward needs a success that `info` does not report.
        """
        simulation, total = plugins.load("sim", "gymnasium"), 0.0
        provenance = f"{self.config.reward} reward of {self.name}"
        for index, step in enumerate(steps):
            total += step.reward
            reported = simulation.success(self.config, step.info or {}, total)
            success = step.success if reported is None else reported
            row = np.array((step.reward, success, step.terminated, step.truncated), np.float32)
            outcome = self.outcome(Observation({"outcome": row}, {}, {}), index)
            if outcome.truncated and reported is None and step.info is not None:
                self._check_unreported()
            yield replace(outcome, provenance=provenance)
            if outcome.terminated or outcome.truncated:
                return

    def _check_unreported(self) -> None:
        """Raise `BadInput` if a success that was not recorded could have given a reward."""
        if self.config.reward == "sparse":
            key = self.config.success_key or "is_success or success"
            raise BadInput(
                f"infos: expected {key} for the sparse reward of {self.name}: record the infos, or "
                "give --task_config.reward environment"
            )

    def reset(self, reading: Observation) -> Policy | None:
        """Return None: the environment resets its own scene."""
        return None

    def is_success(self, truth: Truth) -> bool:
        """Return whether the environment reports a success at this instant."""
        return bool(truth["success"][0])

    def progress(self, truth: Truth) -> float:
        """Return the share of the distance to the goal that is gone; without goals the success."""
        return float(truth["progress"][0])

    def expert(self, truth: Callable[[], Truth], seed: int) -> Policy:
        """Return the expert of `task_config.expert`.

        Raises:
            BadInput: there is none, or its file cannot be used.
        """
        if self.config.expert is None:
            raise BadInput(
                f"{self.name}: has no scripted expert: expected --task_config.expert FILE.py, or "
                "recordings as --demos FOLDER, or --demos 0 --intervention none"
            )
        return _Expert(Path(self.config.expert), self._described, truth, seed)

    def training_defaults(self) -> Mapping[str, Any]:
        """Return settings for learning from demonstrations where there is an expert."""
        sparse = self.config.reward == "sparse"
        steps = self.config.max_steps
        agent = {} if sparse else {"return_bounds": None, "layer_norm": True}
        tuned = from_state(15_000, None, discount=0.99 if steps > 60 else 0.97, **agent)
        if not self.has_expert:
            tuned |= {"demos": 0, "intervention": "none"}
        return tuned


class _Expert:
    """A scripted expert that acts on the environment's own observations and actions."""

    def __init__(self, path: Path, described: Any, truth: Callable[[], Truth], seed: int) -> None:
        make = getattr(plugins.load_file(path), "expert", None)
        if make is None:
            raise BadInput(f"{path}: expected a function expert(rng)")
        self._path, self._described, self._truth = path, described, truth
        self._act = make(np.random.default_rng(seed))

    def __call__(self, observation: Observation) -> Action:
        """Return the expert's action in the current state of the environment."""
        truth = self._truth()
        seen = {**{name: truth[name] for name in self._described.state}, **observation.images}
        *_, last = seen.values()  # an image follows the last action, which stands for a state
        try:
            action = self._act(last if self._described.is_single else seen)
        except Exception as error:  # the code of a user
            line = " ".join(f"{type(error).__name__}: {error}".split())
            raise BadInput(f"{self._path}: expert: {line}") from error
        unit: Action = self._described.to_unit(action)
        return unit


def named(prefix: str, rest: str) -> Callable[..., GymnasiumTask]:
    """Return the factory of the task `prefix:rest`, called without or with its settings."""
    name = f"{prefix}:{rest}"
    identity = rest if "/" in rest else _PACKAGES.get(prefix, "") + rest

    def make(config: GymnasiumConfig | None = None) -> GymnasiumTask:
        if config is not None and config.id != identity:
            raise BadInput(f"task_config.id: {config.id}: the task is {name}")
        if config is None:
            bare = GymnasiumConfig(id=identity)
            config = bare.model_copy(update=_own(bare))
        return GymnasiumTask(name, config)

    make.__doc__ = f"The environment {identity} of Gymnasium."
    return make


def _describe(config: GymnasiumConfig) -> Any:
    if taken := {"max_episode_steps", "disable_env_checker"} & config.make.keys():
        raise BadInput(f"task_config.make: {sorted(taken)}: the time limit is time_limit_s")
    return plugins.load("sim", "gymnasium").describe(config.id, config.make)


def _own(config: GymnasiumConfig) -> dict[str, Any]:
    """Return the settings that an environment has of its own."""
    described = _describe(config)
    views = _views(described)
    steps, rate_hz = described.max_steps, described.rate_hz
    return {
        "rate_hz": rate_hz,
        "time_limit_s": (steps or round(10.0 * rate_hz)) / rate_hz,
        "actions": tuple(f"a{index}" for index in range(len(described.action_low))),
        "reward": "sparse" if described.reports_success else "environment",
        "views": views,
        "observe": "pixels" if views else "state",
    }


def _views(described: Any) -> dict[str, View]:
    """Return the images of an environment as views."""
    return {
        name: View(camera=name, width=spec.shape[1], height=spec.shape[0])
        for name, spec in described.images.items()
    }


def _completed(config: GymnasiumConfig) -> GymnasiumConfig:
    """Return the settings with the environment's own as `make` changes them."""
    if not config.make:
        return config
    bare, own = (_own(each) for each in (config.model_copy(update={"make": {}}), config))
    update = {name: own[name] for name in own if getattr(config, name) == bare[name]}
    return config.model_copy(update=update)


def _place(rng: np.random.Generator) -> Placement:
    """Return no placement: the environment places itself by its seed."""
    return Placement(tcp=np.array((0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0)))
