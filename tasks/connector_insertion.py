"""Insert a flat connector, such as a memory module, until its latch gives way."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from pydantic import Field

from serl.motion import Motion
from serl.tasks.parts.insertion import Insertion, InsertionConfig, motion_above
from serl.tasks.parts.peg_and_hole import CONNECTOR


class ConnectorInsertionConfig(InsertionConfig):
    """Settings of connector insertion: less clearance, and starts nearer to the socket."""

    motion: Motion = motion_above(0.025)
    time_limit_s: float = Field(12.0, gt=0, le=86_400)
    clearance_m: float = Field(0.00025, gt=0, le=0.005)
    start_m: float = Field(0.02, ge=0, le=1)
    start_yaw_rad: float = Field(0.05, ge=0, le=math.pi)
    depth_m: float = Field(0.0165, gt=0, le=1)
    lateral_m: float = Field(0.002, gt=0, le=1)


class ConnectorInsertion(Insertion):
    """Push a flat connector into its socket until a latch gives way.

    The connector is 30 x 6 mm, with a quarter of a millimetre of room on each side and slopes that
    lead into the socket. In the last 3 mm a latch resists with 12 N; it gives way at the
    required depth.
    """

    name = "connector_insertion"
    fit = CONNECTOR

    def __init__(self, config: ConnectorInsertionConfig | None = None) -> None:
        super().__init__(config or ConnectorInsertionConfig())

    def training_defaults(self) -> Mapping[str, Any]:
        """Return settings with more steps; after 6,000, only 38 of 50 trials succeeded.

        The reason is the smaller clearance.
        """
        return {**super().training_defaults(), "steps": 12_000}


task = ConnectorInsertion
