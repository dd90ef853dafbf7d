"""Reach, for goals that are near."""

from __future__ import annotations

from pydantic import Field

from serl.tasks.reach import Reach, ReachConfig


class NearConfig(ReachConfig):
    """Numbers of the task."""

    reach_m: float = Field(0.03, gt=0, le=1)


class Near(Reach):
    """Reach, for goals that are near."""

    name = "near"

    def __init__(self, config: ReachConfig | None = None) -> None:
        super().__init__(config or NearConfig())


task = Near
