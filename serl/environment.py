"""Any simulated task as a Gymnasium environment, for outside code.

Importing `serl` registers the tasks: `gymnasium.make("serl/PickCube-v0")` works after it.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from serl import plugins
from serl.task import SimulatedTask
from serl.types import Action, Array, Observation


class TaskEnv(gymnasium.Env[Array, Action]):
    """A task with its simulated arm; observations are the flat state vector of the task.

    The time limit is the task's own: it truncates. `info["is_success"]` is the ground truth at
    this instant, `info["success"]` what the task concluded.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012

    def __init__(
        self, task: str | SimulatedTask, render_mode: str | None = None, image_size: int = 256
    ) -> None:
        self.task: SimulatedTask = plugins.load("task", task)() if isinstance(task, str) else task
        self.robot = plugins.make_simulation(self.task)
        self.render_mode = render_mode
        self._renderer: Any = None
        self._image_size = image_size
        self._dt_s = 1.0 / self.task.config.rate_hz
        self._index = 0
        size = (self.task.observation_spec.state_size,)
        self.observation_space = spaces.Box(-np.inf, np.inf, size, np.float32)
        self.action_space = spaces.Box(-1.0, 1.0, self.robot.action_spec.shape, np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Array, dict[str, Any]]:
        """Draw a new start; the same seed gives the same sequence of starts."""
        super().reset(seed=seed)
        reading = self.robot.reset(int(self.np_random.integers(2**31)))
        self.task.begin(reading)
        self._index = 0
        return self._flat(reading), self._info(success=False)

    def step(self, action: Action) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        """Act for one control period; raises `BadInput` for a wrong or non-finite action."""
        executed = self.robot.act(np.asarray(action, np.float32))
        self.robot.advance(self._dt_s)
        reading = self.robot.observe()
        outcome = self.task.outcome(reading, self._index)
        self._index += 1
        info = {**self._info(outcome.success), "executed_action": executed}
        flat = self._flat(reading)
        return flat, outcome.reward, outcome.terminated, outcome.truncated, info

    def render(self) -> Any:
        """The front camera's image, (H, W, 3) uint8, in the mode "rgb_array"."""
        if self.render_mode is None:
            return None
        if self._renderer is None:
            self._renderer = plugins.make_renderer(self.robot, supersampling=2)
        return self._renderer.frame("front", self._image_size, self._image_size)

    def _flat(self, reading: Observation) -> Array:
        return self.task.observation_spec.flatten(self.task.observation(reading))

    def _info(self, success: bool) -> dict[str, Any]:
        return {"is_success": self.task.is_success(self.robot.truth()), "success": success}


def register() -> None:
    """Make every task known to `gymnasium.make`, as `serl/PickCube-v0` for `pick_cube`."""
    for name in plugins.names("task"):
        gymnasium.register(
            id=f"serl/{name.title().replace('_', '')}-v0",
            entry_point="serl.environment:TaskEnv",
            kwargs={"task": name},
        )
