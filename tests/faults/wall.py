"""Contact in MuJoCo: the guard moves a simulated arm into a wall."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from serl.guard.guard import GuardState
from serl.motion import Limits, Pose, pose_from
from serl.sim.arm import SimArm
from serl.task import Placement, Scene, TaskConfig

from ..support.guarding import DOWN, Loop
from .registry import REGISTRY, Level

WALL = '<body name="wall" pos="0.45 0.15 0.2"><geom type="box" size="0.15 0.05 0.2"/></body>'
BEHIND = Pose((0.45, 0.19, 0.2), DOWN)
MOST_N = 21.0
"""Force of a 10 mm lead on a spring of 2,000 N/m, plus a margin."""


class WalledArm:
    """Simulated arm with its tool 10 cm from a wall; reports measurements to a `Loop`."""

    def __init__(self, loop: Loop) -> None:
        scene = Scene(bodies=WALL, place=_before_the_wall)
        self._loop, self._arm = loop, SimArm(scene, TaskConfig(motion=loop.config.motion))
        self.pose = self.tick(0.0)

    def follow(self, setpoint: Pose, now_s: float) -> None:
        """Advance 10 ms with the controller at a setpoint."""
        self._arm.follow(setpoint)

    def tick(self, now_s: float) -> Pose:
        """Measure and report to the loop."""
        told = self._arm.measure()
        self.pose = pose_from(told["tcp_pose"])
        self._loop.force = [float(value) for value in told["wrench"]]
        self._loop.joints = [float(value) for value in told["q"]]
        return self.pose


@REGISTRY.fault(
    34,
    "Contact",
    injected="a tool moves into a wall in MuJoCo at 8 cm/s; the same with a protective stop at 18 "
    "N instead of 30 N",
    required="at most 21 N, slow motion from 15 N; after a stop the force is below 2 N within a "
    "second, and only a person ends the stop",
    level=Level.COMPONENT,
)
def wall(folder: Path) -> None:
    loop = _driven_to_the_wall(Limits())
    forces = [_pushed(loop) for _ in range(400)]
    assert 15.0 < max(forces) <= MOST_N
    assert loop.guard.state == "policy"
    loop = _driven_to_the_wall(Limits(stop_force_n=18.0))
    while loop.guard.state == "policy":
        assert _pushed(loop) <= MOST_N
    assert loop.guard.state == "protective stop"
    assert loop.guard.cause.startswith("force 1")
    loop.tick(100)
    assert _pushed(loop) < 2.0
    loop.tick(200)
    assert loop.guard.state == "protective stop"


def _driven_to_the_wall(limits: Limits) -> Loop:
    loop = Loop(motion={"limits": limits})
    loop.fake = WalledArm(loop)  # type: ignore[assignment]
    loop.tick(20)
    loop.guard.arm(loop.now_s)
    loop.mode, loop.target = "policy", BEHIND
    loop.ticks_until(GuardState.POLICY)
    return loop


def _pushed(loop: Loop) -> float:
    """Return the force after one more period, N; check that the setpoint slows from 15 N on."""
    loop.tick()
    assert loop.setpoint is not None
    force = math.hypot(*loop.force[:3])
    if loop.guard.measured.is_touching:
        slow, speed = loop.config.slow_speed_m_s, math.hypot(*loop.setpoint.velocity)
        assert speed <= slow + 1e-9 or loop.setpoint.acceleration[1] < 0.0
    return force


def _before_the_wall(rng: np.random.Generator) -> Placement:
    return Placement(tcp=np.array((0.45, -0.1, 0.2, *DOWN)), bodies={})
