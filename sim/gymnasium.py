"""An environment of Gymnasium as a simulated robot together with its scene."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import numpy as np

from serl.errors import BadInput, SerlError, SpecMismatch, described
from serl.motion import check_action
from serl.sim.environment import (
    SUCCESS_KEYS,
    EnvironmentSpec,
    action_scale,
    arrays_of,
    describe,
    failures_of,
    make_environment,
    number_of,
    parts_of,
)
from serl.specs import ArraySpec, ObservationSpec
from serl.task import Scene
from serl.types import Action, Array, Image, Observation

_GOALS = ("achieved_goal", "desired_goal")

_SEEDS = 2**32  # environments such as robosuite's pass the seed to `numpy.random.seed`

OUTCOME = ("reward", "success", "terminated", "truncated", "return", "progress")
"""Entries of the state `outcome` of a reading."""


class SimGymnasium:
    """An environment of Gymnasium; implements `serl.robot.SimulatedRobot`.

    An action in [-1, 1] is scaled to the bounds of the environment's action space; `advance` makes
    one step of the environment, whatever its own time step is. A reading carries the arrays and
    images of an observation under the names of its keys, and `outcome` (see `OUTCOME`). Its stamp
    "robot" is the number of steps divided by the control rate.

    The environment stands still while the robot is stopped and after it has ended by itself. Its
    registered time limit is removed; the task has a limit of its own.

    Args:
        scene: names this simulation.
        config: settings of the task: a `GymnasiumConfig`.

    Attributes:
        observation_spec: names, shapes and units of a reading.
        stop_reason: reason of the first stop; None while motion is allowed.
    """

    def __init__(self, scene: Scene, config: Any) -> None:
        self._config = config
        self._env = make_environment(config.id, config.make)
        self._parts = parts_of(self._env.observation_space, config.id)
        self._low, self._half = action_scale(self._env.action_space, config.id)
        self.action_spec: ArraySpec = config.action_spec
        described = self.describe(config.id, config.make)
        outcome = ArraySpec(shape=(len(OUTCOME),), unit=" ".join(OUTCOME))
        self.observation_spec = ObservationSpec(
            state={**described.state, "outcome": outcome},
            images={name: described.images[name] for name in config.all_views},
        )
        self.stop_reason: str | None = None
        self.reset(0)

    @staticmethod
    def describe(name: str, arguments: Mapping[str, Any]) -> EnvironmentSpec:
        """Return the properties of an environment; see `serl.sim.environment.describe`."""
        return describe(name, arguments)

    @staticmethod
    def success(config: Any, info: Mapping[str, Any], total: float) -> bool | None:
        """Return whether a step was a success; None if `info` does not report it.

        Args:
            config: settings of the task: a `GymnasiumConfig`.
            info: `info` of the step.
            total: sum of the rewards of the episode so far.

        Raises:
            BadInput: the success in `info` is neither a truth value nor a number.
        """
        if config.success_return is not None:
            return bool(total >= config.success_return)
        keys = (config.success_key,) if config.success_key else SUCCESS_KEYS
        with failures_of(config.id, BadInput):
            found = [number_of(f"info[{key!r}]", info[key]) for key in keys if key in info]
        return any(abs(number) > 0.0 for number in found) if found else None  # NaN is none

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Close the environment."""
        self._env.close()

    def observe(self) -> Observation:
        """Return the current reading; raise `SpecMismatch` if a number of it is not finite."""
        state, images = self._read()
        stamps = dict.fromkeys(("robot", *images), self._steps / self._config.rate_hz)
        reading = Observation(state=state, images=images, stamps=stamps)
        with failures_of(self._config.id, SpecMismatch):
            self.observation_spec.validate_observation(reading)
        return reading

    def act(self, action: Action) -> Action:
        """Apply `action` in the next step; return the executed action, zeros while stopped."""
        check_action(action, self.action_spec)
        if self.stop_reason is not None:
            return np.zeros_like(action)
        self._action = action.copy()
        return action.copy()

    def stop(self, reason: str) -> None:
        """Stand still until `recover`."""
        self.stop_reason = self.stop_reason or reason

    def recover(self) -> None:
        """Allow motion again."""
        self.stop_reason = None

    def advance(self, dt_s: float) -> None:
        """Make one step of the environment; `dt_s` is the control period.

        Raises:
            BadInput: another time, or the environment returned values that cannot be used.
            SerlError: the environment failed.
        """
        if not abs(dt_s * self._config.rate_hz - 1.0) < 1e-6:
            raise BadInput(f"dt_s {dt_s}: expected the control period {1 / self._config.rate_hz:g}")
        self._steps += 1
        if self.stop_reason is None and not self._is_over:
            self._step(self._action)

    def reset(self, seed: int) -> Observation:
        """Reset the environment; equal seeds give equal starts."""
        self.stop_reason, self._seed = None, seed
        self._steps, self._actions = 0, list[Action]()
        self._action = np.zeros(self.action_spec.shape, np.float32)
        with failures_of(self._config.id):
            returned = self._env.reset(seed=seed % _SEEDS)
        with failures_of(self._config.id, BadInput):
            seen, info = returned
            self._return = 0.0
            self._take(seen, 0.0, False, False, info)
        self._start = self._distance
        return self.observe()

    def truth(self) -> dict[str, Array]:
        """Return the state of a reading, and each entry of `outcome` under its own name."""
        state, _ = self._read()
        outcome = state.pop("outcome")
        return {**state, **{name: outcome[i : i + 1] for i, name in enumerate(OUTCOME)}}

    def placement(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Return the seed and the actions since the reset, for `show` of another such robot."""
        actions = np.concatenate([np.zeros(0), *self._actions])
        return np.concatenate([[float(self._seed)], actions])

    def show(self, where: np.ndarray[Any, np.dtype[np.float64]]) -> None:
        """Repeat the episode of a `placement` up to its last action."""
        size = self.action_spec.shape[0]
        if where.size < 1 or (where.size - 1) % size or not np.isfinite(where).all():
            raise BadInput(f"placement: expected a seed and actions of {size} numbers")
        actions = where[1:].astype(np.float32).reshape(-1, size)
        done = len(self._actions)
        if where[0] != self._seed or not np.array_equal(actions[:done], self._actions):
            self.reset(int(where[0]))
        for action in actions[len(self._actions) :]:
            self._step(action)

    def people_renderer(self) -> EnvironmentRenderer:
        """Return the renderer of the environment itself."""
        return EnvironmentRenderer(self._env, self._config.id)

    def _step(self, action: Action) -> None:
        self._actions.append(action)
        space = self._env.action_space
        scaled = self._low + (action.astype(np.float64) + 1.0) * self._half
        with failures_of(self._config.id):
            returned = self._env.step(scaled.reshape(space.shape).astype(space.dtype))
        with failures_of(self._config.id, BadInput):
            seen, reward, terminated, truncated, info = returned
            self._take(seen, reward, terminated, truncated, info)

    def _take(
        self, seen: Any, reward: Any, terminated: Any, truncated: Any, info: Mapping[str, Any]
    ) -> None:
        """Keep what the environment returned; raise if it cannot be used."""
        self._arrays = arrays_of(self._parts, seen)
        self._distance = _distance(seen)
        self._reward = number_of("reward", reward)
        self._terminated = bool(number_of("terminated", terminated))
        self._truncated = bool(number_of("truncated", truncated))
        self._is_over = self._terminated or self._truncated
        self._return += self._reward
        self._success = bool(self.success(self._config, info, self._return))

    def _read(self) -> tuple[dict[str, Array], dict[str, Image]]:
        """Return state and images of the last observation, as new arrays."""
        kept = dict(self._arrays)  # new arrays after each step, which nothing changes
        images = {name: kept.pop(name) for name in self.observation_spec.images}
        state = {name: kept[name] for name in self.observation_spec.state if name in kept}
        if not state:
            state["last_action"] = self._action.copy()
        ended = self._success, self._terminated, self._truncated
        outcome = self._reward, *map(float, ended), self._return, self._progress()
        return {**state, "outcome": np.array(outcome, np.float32)}, images

    def _progress(self) -> float:
        """Return 1 at a success; else the share of the distance to the goal that is gone."""
        if self._success or not self._start:
            return float(self._success)
        return min(1.0, max(0.0, 1.0 - self._distance / self._start))


def _distance(seen: Any) -> float:
    """Return the distance between achieved and desired goal; 0 without goals."""
    if not isinstance(seen, Mapping) or not all(key in seen for key in _GOALS):
        return 0.0
    achieved, desired = (np.asarray(seen[key], np.float64) for key in _GOALS)
    return float(np.linalg.norm(achieved - desired))


class EnvironmentRenderer:
    """Renderer of an environment for people, by the environment's own `render`."""

    def __init__(self, env: Any, name: str) -> None:
        self._env, self._name = env, name

    def frame(self, camera: str, width: int, height: int) -> Image:
        """Return the environment's picture, whole, on black.  # (H, W, 3) uint8.

        Raises:
            SerlError: the environment cannot draw on this machine.
        """
        import cv2  # takes half a second

        try:
            picture = np.asarray(self._env.render())
        except Exception as error:  # each environment fails in its own way
            raise SerlError(f"{self._name}: cannot be drawn: {described(error)}") from error
        if picture.ndim != 3 or picture.shape[2] != 3:
            raise SerlError(f"{self._name}: has no picture: expected the render mode rgb_array")
        high, wide = picture.shape[:2]
        scale = min(width / wide, height / high)
        size = max(1, round(wide * scale)), max(1, round(high * scale))
        resized = cv2.resize(picture.astype(np.uint8), size, interpolation=cv2.INTER_AREA)
        canvas: Image = np.zeros((height, width, 3), np.uint8)
        top, left = (height - size[1]) // 2, (width - size[0]) // 2
        canvas[top : top + size[1], left : left + size[0]] = resized
        return canvas

    def close(self) -> None:
        """Do nothing: the environment is closed with its robot."""


sim = SimGymnasium
