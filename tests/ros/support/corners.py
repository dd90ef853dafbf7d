"""A task of three stages: the tool visits three corners, each from the previous one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from serl.policy import Policy
from serl.robot import Truth
from serl.tasks.reach import Reach, ReachConfig
from serl.types import Observation, Outcome

CORNERS_M = {"near": (0.44, 0.0, 0.24), "far": (0.52, 0.05, 0.24), "high": (0.47, -0.05, 0.30)}
GRAPH: Mapping[str, Mapping[str, Any]] = {
    "near": {"then": "far", "tries": 1},
    "far": {"then": "high", "tries": 2},
    "high": {"then": "near", "tries": 3},
}
"""Stages with their successors and tries; failures of one stage never block another."""


class CornersConfig(ReachConfig):
    """Settings with the goal corner, which some random actions reach."""

    tolerance_m: float = 0.03
    corner: Literal["near", "far", "high"] = "near"


class Corners(Reach):
    """A task that holds the tool at a corner for two steps."""

    def __init__(self, config: CornersConfig | None = None) -> None:
        own = config or CornersConfig()
        super().__init__(own)
        self.name = f"corner_{own.corner}"
        self._corner = np.array((*CORNERS_M[own.corner], 0.0, 0.0, 0.0, 1.0), np.float32)

    def observation(self, reading: Observation) -> Observation:
        return super().observation(self._with_goal(reading))

    def outcome(self, reading: Observation, index: int) -> Outcome:
        return super().outcome(self._with_goal(reading), index)

    def is_success(self, truth: Truth) -> bool:
        return super().is_success(self._aimed(truth))

    def progress(self, truth: Truth) -> float:
        return super().progress(self._aimed(truth))

    def expert(self, truth: Callable[[], Truth], seed: int) -> Policy:
        return super().expert(lambda: self._aimed(truth()), seed)

    def training_defaults(self) -> Mapping[str, Any]:
        return {
            "stages": {
                name: {**stage, "config": {"task_config": {"corner": name}}}
                for name, stage in GRAPH.items()
            }
        }

    def _with_goal(self, reading: Observation) -> Observation:
        return replace(reading, state=self._aimed(reading.state))

    def _aimed(self, values: Truth) -> dict[str, np.ndarray[Any, Any]]:
        return {**values, "goal_pose": self._corner}


task = Corners
