"""Gymnasium environments of simulated tasks, for use with third-party code.

Importing this module registers the tasks: `gymnasium.make("serl/PickCube-v0")` works after it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from serl import plugins
from serl.errors import BadInput
from serl.intervention import Teleop, arbitrate
from serl.runs.assembly import make_human
from serl.runs.config import resolve
from serl.runs.task_setup import make_task
from serl.specs import ObservationSpec
from serl.task import SimulatedTask
from serl.teleop.scripted import CachedView
from serl.types import Action, ActionSource, Array, Image, Observation

_LARGEST = 1e6  # of any state in SI units; Gymnasium warns of unbounded spaces

FlatObservation = Array | dict[str, Array | Image]


class TaskEnv(gymnasium.Env[FlatObservation, Action]):
    """A task with its simulated arm; observations are the flat state vector of the task.

    With `observe="pixels"` an observation is a dict: the state vector as "state", and the image
    of each view, uint8 (H, W, 3), by its name.

    The task's time limit truncates. `info["is_success"]` is the ground truth at this instant,
    `info["success"]` the outcome reported by the task, `info["executed_action"]` the action after
    its limits. While a simulated person drives, `info["intervene_action"]` is that action.

    Args:
        task: name of a task, path of its file, or a task.
        render_mode: "rgb_array" or None.
        image_size: width and height of rendered images, pixels.
        observe: "state" or "pixels"; that of a given task is its own.
        task_config: overrides of the configuration of a task that is given by its name.
        intervention: simulated person who takes over: "scripted", "novice", a plug-in, or "none".
        planned_steps: steps over which the person's help falls to its final share.

    Raises:
        BadInput: no such task or person, or a wrong setting.
    """

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012

    def __init__(
        self,
        task: str | SimulatedTask,
        render_mode: str | None = None,
        image_size: int = 256,
        observe: str = "state",
        task_config: Mapping[str, Any] | None = None,
        intervention: str = "none",
        planned_steps: int = 15_000,
    ) -> None:
        layer: dict[str, Any] = {"intervention": intervention, "steps": planned_steps}
        if isinstance(task, str):
            given = {"task": task, "observe": observe, "task_config": dict(task_config or {})}
            task = make_task(resolve(layer, given))
        elif task_config:
            raise BadInput("task_config: expected the name of a task to configure, got a task")
        self.task: SimulatedTask = task
        self.robot = plugins.make_simulation(self.task)
        self._help = layer
        self._human = self._make_human(0)
        self.render_mode = render_mode
        self._renderer: Any = None
        self._image_size = image_size
        self._dt_s = 1.0 / self.task.config.rate_hz
        self.metadata = {**self.metadata, "render_fps": self.task.config.rate_hz}
        self._index = 0
        self.observation_space = _space(self.task.observation_spec)
        self.action_space = spaces.Box(-1.0, 1.0, self.robot.action_spec.shape, np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[FlatObservation, dict[str, Any]]:
        """Start a new episode; the same seed gives the same sequence of starts and takeovers.

        With a seed, the schedule of the simulated person's help begins again.
        """
        super().reset(seed=seed)
        if seed is not None:
            self._human = self._make_human(seed)
        reading = self.robot.reset(int(self.np_random.integers(2**31)))
        self.task.begin(reading)
        if self._human is not None:
            self._human.begin()
        self._index = 0
        return self._flat_observation(reading), self._info(success=False)

    def step(self, action: Action) -> tuple[FlatObservation, float, bool, bool, dict[str, Any]]:
        """Act for one control period; raises `BadInput` for a wrong or non-finite action."""
        chosen, source = arbitrate(
            np.asarray(action, np.float32),
            ActionSource.POLICY,
            self._human() if self._human is not None else None,
        )
        executed = self.robot.act(chosen)
        self.robot.advance(self._dt_s)
        reading = self.robot.observe()
        outcome = self.task.outcome(reading, self._index).shaped()
        self._index += 1
        info = {**self._info(outcome.success), "executed_action": executed}
        if source is ActionSource.HUMAN:
            info["intervene_action"] = executed
        seen = self._flat_observation(reading)
        return seen, outcome.reward, outcome.terminated, outcome.truncated, info

    def render(self) -> Any:
        """Return the front camera's image, (H, W, 3) uint8, in the mode "rgb_array", else None."""
        if self.render_mode is None:
            return None
        if self._renderer is None:
            self._renderer = plugins.make_renderer(self.robot, supersampling=2)
        return self._renderer.frame("front", self._image_size, self._image_size)

    def close(self) -> None:
        """Release the simulation's cameras and the renderer."""
        if self._renderer is not None:
            self._renderer.close()
        self.robot.__exit__(None, None, None)

    def _make_human(self, seed: int) -> Teleop | None:
        config = resolve({**self._help, "seed": seed % 2**32})
        return make_human(config, self.task, CachedView(self.robot), "gymnasium")

    def _flat_observation(self, reading: Observation) -> FlatObservation:
        observation = self.task.observation(reading)
        flat = self.task.observation_spec.flatten(observation)
        return {"state": flat, **observation.images} if observation.images else flat

    def _info(self, success: bool) -> dict[str, Any]:
        return {"is_success": self.task.is_success(self.robot.truth()), "success": success}


def _space(spec: ObservationSpec) -> spaces.Space[Any]:
    state = spaces.Box(-_LARGEST, _LARGEST, (spec.state_size,), np.float32)
    if not spec.images:
        return state
    images = {n: spaces.Box(0, 255, image.shape, np.uint8) for n, image in spec.images.items()}
    return spaces.Dict({"state": state, **images})


for _name in plugins.names("task"):
    gymnasium.register(
        id=f"serl/{_name.title().replace('_', '')}-v0",
        entry_point="serl.gymnasium_env:TaskEnv",
        kwargs={"task": _name},
    )
