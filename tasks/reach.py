"""Bring the tool to a point in space."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import numpy as np
from pydantic import Field

from serl.motion import Limits, Motion
from serl.policy import Policy
from serl.robot import Truth
from serl.specs import ArraySpec, ObservationSpec
from serl.task import Placement, Scene, TaskConfig
from serl.types import Action, Observation, Outcome

_DOWN = (1.0, 0.0, 0.0, 0.0)

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


class Reach:
    """Hold the tool within a centimetre of the goal for two steps."""

    name = "reach"

    def __init__(self, config: ReachConfig | None = None) -> None:
        self.config = config or ReachConfig()
        self._start = np.zeros(3, np.float32)
        self._held = 0

    @cached_property
    def observation_spec(self) -> ObservationSpec:
        """Twelve numbers of the tool and the goal."""
        position = ArraySpec(shape=(3,), unit="m, base frame")
        return ObservationSpec(
            state={
                "tcp_from_start": position,
                "tcp_velocity": ArraySpec(shape=(3,), unit="m/s, base frame"),
                "lead": position,
                "goal_from_tcp": position,
            }
        )

    @property
    def scene(self) -> Scene:
        """A table and a marker at the goal."""
        return Scene(bodies=_BODIES, place=self._place, tracked=("goal",))

    def begin(self, reading: Observation) -> None:
        """Begin an episode: remember the start pose of the tool."""
        self._start = reading.state["tcp_pose"][:3].copy()
        self._held = 0

    def observation(self, reading: Observation) -> Observation:
        """Return the observation of the policy for a reading."""
        tcp = reading.state["tcp_pose"][:3]
        state = {
            "tcp_from_start": tcp - self._start,
            "tcp_velocity": reading.state["tcp_twist"][:3],
            "lead": reading.state["target_pose"][:3] - tcp,
            "goal_from_tcp": reading.state["goal_pose"][:3] - tcp,
        }
        return Observation(state=state, stamps=reading.stamps)

    def outcome(self, reading: Observation, index: int) -> Outcome:
        """Return reward 1 and the end once the tool has stayed at the goal."""
        self._held = self._held + 1 if self.is_success(reading.state) else 0
        return self.config.outcome(self._held >= self.config.hold_steps, index)

    def reset(self, reading: Observation) -> Policy | None:
        """Return None: there is nothing to restore."""
        return None

    def is_success(self, truth: Truth) -> bool:
        """Return whether the tool is at the goal."""
        return _distance(truth) < self.config.tolerance_m

    def progress(self, truth: Truth) -> float:
        """Return progress: 1 at the goal, 0 at a distance of twice `reach_m`, linear between."""
        return max(0.0, 1.0 - _distance(truth) / (2.0 * self.config.reach_m))

    def expert(self, truth: Callable[[], Truth], seed: int) -> Policy:
        """Return a script that moves straight to the goal, with a little noise from the seed."""
        rng = np.random.default_rng(seed)
        scale = self.config.motion.translation_m

        def act(observation: Observation) -> Action:
            now = truth()
            step = (now["goal_pose"][:3] - now["target_pose"][:3]) / scale
            step = step / max(1.0, float(np.abs(step).max())) + rng.normal(0.0, 0.05, 3)
            return step.clip(-1.0, 1.0).astype(np.float32)

        return act

    def training_defaults(self) -> Mapping[str, Any]:
        """Return tuned settings."""
        return {}

    def _place(self, rng: np.random.Generator) -> Placement:
        start = rng.uniform((0.42, -0.05, 0.20), (0.52, 0.05, 0.28))
        goal = start + rng.uniform(-self.config.reach_m, self.config.reach_m, 3)
        return Placement(
            tcp=np.array((*start, *_DOWN)),
            bodies={"goal": np.array((*goal, 0.0, 0.0, 0.0, 1.0))},
        )


def _distance(values: Truth) -> float:
    """Return the distance from tool to goal, m, in a reading's state or the truth."""
    return float(np.linalg.norm(values["goal_pose"][:3] - values["tcp_pose"][:3]))


task = Reach
