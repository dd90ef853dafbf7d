"""Insert a flat connector, held in any of ten grasps, into a tilted socket with a latch."""

from __future__ import annotations

import math

from pydantic import Field

from serl.tasks.parts.insertion_6d import Insertion6D, Insertion6DConfig
from serl.tasks.parts.peg_and_hole import CONNECTOR


class ConnectorInsertion6DConfig(Insertion6DConfig):
    """Settings of the task: less clearance than the peg's, and starts nearer to the socket."""

    time_limit_s: float = Field(12.0, gt=0, le=86_400)
    clearance_m: float = Field(0.00025, gt=0, le=0.005)
    start_m: float = Field(0.02, ge=0, le=1)
    start_yaw_rad: float = Field(0.05, ge=0, le=math.pi)
    depth_m: float = Field(0.0165, gt=0, le=1)
    lateral_m: float = Field(0.002, gt=0, le=1)
    grasp_m: float = Field(0.002, ge=0, le=0.005)


class ConnectorInsertion6D(Insertion6D):
    """Push the connector of `connector_insertion` into a socket that is tilted about x and about y.

    Each tilt is up to 15 degrees. The connector is held in one of ten grasps, up to 2 mm and 10
    degrees off. Actions are in the tool frame, with rotations about all axes. A latch resists with
    12 N, and gives way at the required depth.
    """

    name = "connector_insertion_6d"
    fit = CONNECTOR

    def __init__(self, config: ConnectorInsertion6DConfig | None = None) -> None:
        super().__init__(config or ConnectorInsertion6DConfig())


task = ConnectorInsertion6D
