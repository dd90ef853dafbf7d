"""Reach task with goals near the start."""

from __future__ import annotations

from pydantic import Field

from serl.tasks.reach import Reach, ReachConfig


class NearConfig(ReachConfig):
    """Settings of the task."""

    reach_m: float = Field(0.03, gt=0, le=1)


class Near(Reach):
    """Reach task with goals near the start."""

    name = "near"

    def __init__(self, config: ReachConfig | None = None) -> None:
        super().__init__(config or NearConfig())


task = Near
