"""Random actions for a long time: what breaks a simulation is counted."""

from __future__ import annotations

from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from serl.errors import SerlError
from serl.policy import Random
from serl.task import SimulatedTask
from serl.types import Observation

_DEEP_M = 0.008  # an object in a wall is deeper; a hand that presses one onto the table is not
_LONG_S = 1.0
_FAR_M = {"car": 4.0}
_ARM_FAR_M = 2.0
_BELOW_M = -0.01


class Walk(BaseModel):
    """What came of random steps, an episode of them after the other.

    Attributes:
        steps: that were made.
        warnings: of MuJoCo: the simulation became unstable.
        not_finite: readings with a number that is none.
        lost: objects that left the world, fell through the table, or stayed in a wall.
        deepest_mm: how deep things were in each other at most.
        recorded_in: the commit of the code; empty if nobody noted it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    steps: int = Field(0, ge=0)
    warnings: int = Field(0, ge=0)
    not_finite: int = Field(0, ge=0)
    lost: int = Field(0, ge=0)
    deepest_mm: float = Field(0.0, ge=0)
    recorded_in: str = ""

    @property
    def faults(self) -> int:
        """Of any kind; after each one the scene was placed anew."""
        return self.warnings + self.not_finite + self.lost


def walk(task: SimulatedTask, robot: Any, steps: int, seed: int = 0) -> Walk:
    """Make random steps and look at every reading.

    Args:
        task: tells the rate and the time limit.
        robot: its simulation in MuJoCo, whose `data` tell contacts.
        steps: to be made.
        seed: of the actions; starts are those of the numbers of steps.
    """
    choose, rate_hz = Random(robot.action_spec, seed), task.config.rate_hz
    far_m = _FAR_M.get(task.scene.robot, _ARM_FAR_M)
    counts = {"warnings": 0, "not_finite": 0, "lost": 0}
    held, action, deep_steps, deepest_m, fault = 0, choose(robot.observe()), 0, 0.0, ""
    for index in range(steps):
        if fault or index % task.config.max_steps == 0:
            robot.reset(index)
            deep_steps = 0
        if held == 0:  # the same for a while: who changes his mind at every step gets nowhere
            held, action = 1 + index % 7, choose(robot.observe())
        held -= 1
        robot.act(action)
        robot.advance(1.0 / rate_hz)
        depth_m = -float(robot.data.contact.dist.min(initial=0.0))
        deepest_m = max(deepest_m, depth_m)
        deep_steps = deep_steps + 1 if depth_m > _DEEP_M else 0
        fault = _fault(robot, far_m) or ("lost" if deep_steps >= _LONG_S * rate_hz else "")
        if fault:
            counts[fault] += 1
    return Walk(steps=steps, **counts, deepest_mm=round(deepest_m * 1e3, 1))


def _fault(robot: Any, far_m: float) -> str:
    """What is wrong now; nothing, as it should be."""
    try:
        reading: Observation = robot.observe()
    except SerlError:  # MuJoCo has warned
        return "warnings"
    if not all(np.isfinite(value).all() for value in reading.state.values()):
        return "not_finite"
    places = [value[:3] for key, value in reading.state.items() if key.endswith("_pose")]
    away = any(np.abs(place).max() >= far_m or place[2] <= _BELOW_M for place in places)
    return "lost" if away else ""
