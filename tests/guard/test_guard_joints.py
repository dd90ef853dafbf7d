"""Test the guard's reaction to fast joints while the tool moves slowly, near singular poses."""

from __future__ import annotations

import pytest

from serl.errors import BadInput
from serl.guard.monitors import JointMonitor

from ..support.guarding import TICK_S, Loop, config


def test_guard_refuses_to_arm_while_joint_turns_fast() -> None:
    loop = Loop()
    loop.tick(20)
    for _ in range(5):
        loop.joints[3] += 1.7 * TICK_S
        loop.tick()
    with pytest.raises(BadInput, match="not now: joint 4 turns faster"):
        loop.guard.arm(loop.now_s)


@pytest.mark.parametrize("period_s", [0.001, 0.004, 0.008, 0.01, 0.05, 0.1])
def test_joint_monitor_measures_speed_from_stamps_at_any_rate(period_s: float) -> None:
    for rad_s, runs in ((1.4, False), (1.6, True), (-1.6, True), (3.0, True)):
        joints = JointMonitor(config())
        for step in range(round(0.3 / period_s)):
            stamp_s = 1.7e9 + step * period_s
            joints.receive([0.0, rad_s * step * period_s, *[0.0] * 5], stamp_s, step * 0.01)
        assert bool(joints.running) == runs, rad_s
        assert joints.slow


def test_joint_monitor_ignores_noise_clock_jumps_and_position_jumps() -> None:
    joints, angle = JointMonitor(config()), 0.0
    stamps_s = [*(0.01 * n for n in range(50)), *(3600 + 0.01 * n for n in range(50))]
    stamps_s += [0.01 * n for n in range(50)]
    for count, stamp_s in enumerate(stamps_s):
        angle = 1.0 if count > 70 else 0.0
        noise = 0.005 * (-1) ** (count // 2)
        joints.receive([angle + noise] * 7, stamp_s, 0.01 * count)
        assert not joints.running
