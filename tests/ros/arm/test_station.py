"""A real arm between two episodes: a fake Franka behind its guard, over real DDS."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from serl.ros.arm.guard_client import GuardClient
from serl.ros.arm.station import Station
from serl.teleop.stop import StopLatch

from ..support.bay import Bay
from ..support.cell import ROBOT, eventually

pytestmark = pytest.mark.ros


def test_an_arm_that_a_fault_stopped_waits_for_a_person_and_then_moves(tmp_path: Path) -> None:
    with Bay(tmp_path, "franka") as bay:
        bay.arm.guard = GuardClient(bay.node, ROBOT, bay.arm.remote)
        hold, ones = StopLatch(tmp_path / "stopped"), np.ones(4, np.float32)

        def person() -> bool:
            hold.resume()
            return False

        station = Station(bay.arm, hold, person)
        bay.take()
        bay.recover()
        bay.misbehave("silent")
        pose = next(iter(bay.arm.feeds))
        eventually(lambda: not pose.is_fresh)
        assert not bay.arm.act(ones).any(), "it acts on what it cannot see"
        bay.arm.stop("no pose")  # as the control loop does
        bay.misbehave("")
        bay.take()
        eventually(lambda: station.has_arm)
        assert not station.standby(), "nobody held it"
        assert bay.arm.stop_reason == "no pose"
        hold.pause("no pose")
        assert station.standby()
        assert bay.arm.stop_reason is None
        y_m = bay.place()[1]
        bay.drive(0.0, 1.0, 0.0, 0.0, until=lambda: bay.place()[1] > y_m + 0.01)
