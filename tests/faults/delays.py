"""Faults of an actor's timing: late actions and the delays recorded in the log."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from serl.clock import WallClock
from serl.loop import EpisodeKey, RecordCallback, run
from serl.ros.nodes.actor import TOO_LATE, Delays, delay_s
from serl.testing import FakeRobot, FakeTask
from serl.types import Action, Observation, Record, Step

from .registry import REGISTRY, Level

_RATE_HZ = 10.0


class SlowRobot(FakeRobot):
    """Fake robot whose `act` takes the given delays, one per call."""

    def __init__(self, delays_s: list[float]) -> None:
        self._delays_s = delays_s
        super().__init__()

    def now_s(self) -> float:
        return self.observe().stamps["robot"]

    def act(self, action: Action) -> Action:
        self.advance(self._delays_s.pop(0) if self._delays_s else 1e-9)
        return super().act(action)


def _steps(policy_s: list[float], act_s: list[float]) -> tuple[list[Step], Delays]:
    """Run an episode with these policy and action delays; return its steps and delay counts."""
    robot, delays, records = SlowRobot(list(act_s)), Delays(1.0 / _RATE_HZ), list[Record]()
    robot.place(0.2, 0.0)
    left_s = list(policy_s)

    def policy(observation: Observation) -> Action:
        if left_s:
            robot.advance(left_s.pop(0))
        return np.zeros(2, np.float32)

    clock = WallClock(_RATE_HZ, now=robot.now_s, sleep=robot.advance)
    key = EpisodeKey("run", "actor", 1, 0)
    run(robot, FakeTask(), policy, clock, key, [RecordCallback(records.append), delays])
    return [record for record in records if isinstance(record, Step)], delays


@REGISTRY.fault(
    47,
    "Actions are late",
    injected="with a control period of 100 ms, a policy takes 50, 100, 140, 160 or 200 ms, or a "
    "varying time, for an action; or its actions are delayed by these times",
    required="the log has the delay of each action; the actor's statistics count the delays of "
    "over 1.5 periods, and no others",
    level=Level.COMPONENT,
)
def late_actions(folder: Path) -> None:
    for late_s in (0.05, 0.1, 0.14, 0.16, 0.2):
        too_late = late_s > TOO_LATE / _RATE_HZ
        steps, delays = _steps([late_s] * 5, [])
        assert [delay_s(step) for step in steps[:6]] == pytest.approx([late_s] * 5 + [0.0])
        assert delays.late == 5 * too_late
        steps, delays = _steps([], [late_s] * 5)
        apart_s = [b.monotonic_s - a.monotonic_s for a, b in pairwise(steps[:6])]
        assert apart_s == pytest.approx([max(late_s, 0.1)] * 5, abs=1e-3)
        assert delays.late == 5 * too_late
        assert delays.worst_s == pytest.approx(max(late_s, 0.1), abs=1e-3)
    jitter_s = [0.01, 0.2, 0.01, 0.12, 0.16, 0.01]
    steps, delays = _steps(jitter_s, [])
    assert [delay_s(step) for step in steps[:6]] == pytest.approx(jitter_s)
    assert delays.late == 3  # of 200 and 160 ms, and that of 120 ms: 210 ms after the one before
