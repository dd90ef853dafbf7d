"""What an actor logs of an arm that its guard holds, over real DDS."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from serl.clock import WallClock
from serl.intervention import HandsOff
from serl.loop import EpisodeKey, run
from serl.ros.arm.guard_client import GuardClient
from serl.types import Action, Record, Step

from .support.bay import Bay, Watching
from .support.cell import ROBOT, eventually

pytestmark = pytest.mark.ros


class TenSteps(HandsOff):
    """A person who drives to the side, and lets go."""

    def __init__(self, side: float) -> None:
        self.action, self.left = np.array([0.0, side, 0.0, 0.0], np.float32), 10

    def __call__(self) -> Action | None:
        self.left -= 1
        return self.action if self.left >= 0 else None


def test_what_the_guard_does_not_let_happen_is_not_logged_as_executed(
    tmp_path: Path,
) -> None:
    with Bay(tmp_path, "franka") as crisp:
        arm = crisp.arm
        arm.guard = GuardClient(crisp.node, ROBOT, arm.remote)
        steps: list[Step] = []

        def sink(record: Record) -> None:
            if isinstance(record, Step):
                steps.append(record)

        def is_whole() -> bool:
            """A busy machine is late at times, and the episode is over."""
            steps.clear()
            crisp.take()
            crisp.recover()
            if not arm.remote.wait(lambda: crisp.cell.state == "hold: command is stale", 5.0):
                return False
            side = -1.0 if arm.observe_when_fresh(30.0).state["tcp_pose"][1] > 0.0 else 1.0
            back = np.array([0.0, -side, 0.0, 0.0], np.float32)
            clock, key = WallClock(10.0, arm.beat), EpisodeKey("run", "actor", 0, 1)
            ends, person = (lambda: len(steps) > 20), TenSteps(side)
            run(arm, Watching(), lambda o: back, clock, key, sink, teleop=person, interrupted=ends)
            return len(steps) > 20

        eventually(is_whole, 60.0, lambda: f"{crisp.cell.state}; {len(steps)} steps")
    moved = [float(step.action[1]) for step in steps]
    assert abs(moved[0]) == 1.0, "a guard that waits for the first target moves the arm to it"
    assert moved[10:13] == [0.0] * 3, "it rests for half a second after a person"
    assert moved[0] * min(moved[15:], key=lambda value: moved[0] * value) < 0, "then it goes on"
