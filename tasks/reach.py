"""Bring the tool to a point in space."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from pydantic import Field

from serl.motion import Limits, Motion
from serl.policy import Policy
from serl.robot import Truth
from serl.task import Placement, Scene, TaskConfig
from serl.tasks.parts.arm_task import POSITION, TOOL_SPEC, ArmTask, Specs, State, tool_state
from serl.tasks.parts.steering import DOWN, steer
from serl.types import Action, Array, Observation

_BODIES = """
<body name="goal" mocap="true">
  <geom type="sphere" size="0.012" contype="0" conaffinity="0" rgba="0.13 0.62 0.47 1"/>
</body>
"""


class ReachConfig(TaskConfig):
    """Settings of the reach task.

    Attributes:
        reach_m: largest distance of the goal from the start, along each axis.
        tolerance_m: distance to the goal below which the tool is at the goal.
        hold_steps: number of consecutive steps for which the tool must be at the goal.
    """

    time_limit_s: float = Field(5.0, gt=0, le=86_400)
    motion: Motion = Motion(
        axes=("x", "y", "z"),
        translation_m=0.02,
        box_low_m=(0.25, -0.30, 0.04),
        box_high_m=(0.70, 0.30, 0.45),
        limits=Limits(speed_m_s=0.25, lead_m=0.020),
    )
    reach_m: float = Field(0.15, gt=0, le=1)
    tolerance_m: float = Field(0.01, gt=0, le=1)
    hold_steps: int = Field(2, ge=1, le=1000)


class Reach(ArmTask):
    """Hold the tool within a centimetre of the goal for two steps."""

    name = "reach"
    config: ReachConfig

    def __init__(self, config: ReachConfig | None = None) -> None:
        made = config or ReachConfig()
        super().__init__(made, made.hold_steps)

    def _specs(self) -> tuple[Specs, Specs]:
        speed = TOOL_SPEC["tcp_velocity"]
        arm = {"tcp_from_start": POSITION, "tcp_velocity": speed, "lead": POSITION}
        return arm, {"goal_from_tcp": POSITION}

    @property
    def scene(self) -> Scene:
        """A table and a marker at the goal."""
        return Scene(bodies=_BODIES, place=self._place, tracked=("goal",))

    def _arm_state(self, state: State) -> dict[str, Array]:
        tool = tool_state(state)
        del tool["gripper"]
        return {"tcp_from_start": state["tcp_pose"][:3] - self._start[:3], **tool}

    def _scene_state(self, state: State) -> dict[str, Array]:
        return {"goal_from_tcp": state["goal_pose"][:3] - state["tcp_pose"][:3]}

    def is_success(self, truth: Truth) -> bool:
        """Return whether the tool is at the goal."""
        return _distance(truth) < self.config.tolerance_m

    def progress(self, truth: Truth) -> float:
        """Return progress: 1 at the goal, 0 at a distance of twice `reach_m`, linear between."""
        return max(0.0, 1.0 - _distance(truth) / (2.0 * self.config.reach_m))

    def expert(self, truth: Callable[[], Truth], seed: int) -> Policy:
        """Return a script that moves straight to the goal, with a little noise from the seed."""
        rng, motion = np.random.default_rng(seed), self.config.motion

        def act(observation: Observation) -> Action:
            now = truth()
            shift_m = now["goal_pose"][:3] - now["target_pose"][:3]
            return steer(motion, shift_m, noise=rng.normal(0.0, 0.05, len(motion.axes)))

        return act

    def training_defaults(self) -> Mapping[str, Any]:
        """Return tuned settings."""
        return {}

    def _place(self, rng: np.random.Generator) -> Placement:
        start = rng.uniform((0.42, -0.05, 0.20), (0.52, 0.05, 0.28))
        goal = start + rng.uniform(-self.config.reach_m, self.config.reach_m, 3)
        return Placement(
            tcp=np.array((*start, *DOWN)),
            bodies={"goal": np.array((*goal, 0.0, 0.0, 0.0, 1.0))},
        )


def _distance(values: Truth) -> float:
    """Return the distance from tool to goal, m, in a reading's state or the truth."""
    return float(np.linalg.norm(values["goal_pose"][:3] - values["tcp_pose"][:3]))


task = Reach
