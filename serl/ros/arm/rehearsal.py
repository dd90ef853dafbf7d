"""The rehearsal arm: a simulation with the faults of a real arm, between it and its driver."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
from pydantic import Field, model_validator

from serl.arm_pair import UNMOVED_BASE, Mount
from serl.geometry import (
    Quaternion,
    Vector,
    add,
    conjugate,
    from_rotation_vector,
    multiply,
    rotate,
    subtract,
)
from serl.motion import Pose
from serl.robot import ServedRobot
from serl.setpoint import PROFILE_PERIOD_S
from serl.types import FrozenModel, Image

_SLIPPERY_S = 1.5


class RehearsalConfig(FrozenModel):
    """Settings `rehearsal.*` of `serl sim --rehearsal`.

    Attributes:
        image_latency_s: delay of each picture after its stamp.
        camera_hz: frame rate of the cameras.
        drift_m: largest drift of the arm's base along x and y each; in the frame of the base the
            objects move.
        drift_rad: largest turn of the base about the vertical.
        drift_s: time from one extreme of the drift to the other.
        slips: share of the grasps that lose their hold.
        slip_low_s: shortest time from the closing of the gripper until it loses its hold.
        slip_high_s: longest time.
        seed: seed of the arm's looks and physics, of its drift and of its slips.
    """

    image_latency_s: float = Field(0.06, ge=0, le=1)
    camera_hz: float = Field(15.0, gt=0, le=100)
    drift_m: float = Field(0.002, ge=0, le=0.05)
    drift_rad: float = Field(0.003, ge=0, le=0.1)
    drift_s: float = Field(600.0, gt=0, le=86_400)
    slips: float = Field(0.05, ge=0, le=1)
    slip_low_s: float = Field(0.5, ge=0, le=60)
    slip_high_s: float = Field(3.0, ge=0, le=60)
    seed: int = Field(2, ge=0, lt=2**32)

    @model_validator(mode="after")
    def _check(self) -> RehearsalConfig:
        if self.slip_low_s > self.slip_high_s:
            raise ValueError(f"slip_low_s: {self.slip_low_s:g}: expected at most slip_high_s")
        return self


LOOKS = {"task_config": {"randomize": "full", "renderer": "auto"}}
"""Settings of a rehearsal's simulation: randomised appearance, physics and sensors."""


class RehearsalArm:
    """A simulated arm whose base drifts and whose gripper sometimes slips.

    It implements the part of `serl.robot.ServedRobot` that a driver in real time uses. All poses,
    twists and wrenches of the arm are in the frame of its drifting base; those of tracked bodies
    are in the frame in which the base began, as a tracker that was calibrated once gives them.

    Args:
        config: settings of the faults.
        mount: place of the base in the frame of the simulation, before it drifts.

    Attributes:
        slips: number of grasps that lost their hold so far.
        urdf: returns the URDF of the arm in the frame of its base; None if it has none.
        fovy_rad: vertical fields of view of the cameras, as far as they are known.
    """

    def __init__(
        self, arm: ServedRobot, config: RehearsalConfig, mount: Mount = UNMOVED_BASE
    ) -> None:
        self._arm, self._config, self._mount = arm, config, mount
        self.urdf, self.fovy_rad = getattr(arm, "urdf", None), getattr(arm, "fovy_rad", {})
        self._rng = np.random.default_rng((config.seed, 1))
        self._phases = self._rng.uniform(0.0, 2.0 * math.pi, 3)
        self._time_s, self.slips = 0.0, 0
        self._slip_s = self._hold_s = math.inf  # times of the next slip, and of its end

    @property
    def target(self) -> tuple[Pose, bool]:
        """The target in the frame of the drifting base, and whether the gripper is to be closed."""
        target, closed = self._arm.target
        return self._measured(target), closed

    def measure(self) -> dict[str, list[float]]:
        """Return the state of a reading by name, see `serl.robot`."""
        numbers = dict(self._arm.measure())
        _, turn = self._base
        back = conjugate(turn)
        for name in ("tcp_pose", "target_pose"):
            x, y, z, *q = numbers[name]
            pose = self._measured(Pose((x, y, z), (q[0], q[1], q[2], q[3])))
            numbers[name] = [*pose.position, *pose.quaternion]
        for name in ("tcp_twist", "wrench"):
            a, b, c, d, e, f = numbers[name]
            numbers[name] = [*rotate(back, (a, b, c)), *rotate(back, (d, e, f))]
        return numbers

    def pictures(self) -> Mapping[tuple[str, tuple[int, int]], Image]:
        """Return the current camera images."""
        return self._arm.pictures()

    def restore(self, seed: int) -> None:
        """Place the free bodies of the scene at the start drawn from `seed`; leave the arms."""
        cast(Any, self._arm).restore(seed)

    def grip(self, closed: bool) -> None:
        """Close or open the gripper; a share of the grasps will slip."""
        self._arm.grip(closed)
        self._end_slip()
        if closed and self._rng.random() < self._config.slips:
            delay_s = self._rng.uniform(self._config.slip_low_s, self._config.slip_high_s)
            self._slip_s = self._time_s + delay_s

    def exert(self, wrench: Sequence[float]) -> None:
        """Exert a wrench with the tool, in its own frame."""
        self._arm.exert(wrench)

    def follow(self, setpoint: Pose) -> None:
        """Advance by 10 ms with the controller at a setpoint in the frame of the drifting base."""
        place, turn = self._base
        position = add(place, rotate(turn, setpoint.position))
        self._arm.follow(Pose(position, multiply(turn, setpoint.quaternion)))
        self._pass_tick()

    def follow_joints(self, joints: Sequence[float]) -> None:
        """Advance by 10 ms with the controller at joint angles."""
        self._arm.follow_joints(joints)
        self._pass_tick()

    def _pass_tick(self) -> None:
        self._time_s += PROFILE_PERIOD_S
        if self._time_s >= self._slip_s:
            self.slips += 1
            self._slip_s, self._hold_s = math.inf, self._time_s + _SLIPPERY_S
            self._arm.slip(True)
        elif self._time_s >= self._hold_s:
            self._end_slip()

    def _end_slip(self) -> None:
        self._slip_s = self._hold_s = math.inf
        self._arm.slip(False)

    @property
    def _base(self) -> tuple[Vector, Quaternion]:
        """Position and orientation of the base in the frame of the simulation."""
        config, phase = self._config, math.pi * self._time_s / self._config.drift_s
        x, y, turn = (
            0.5 * (math.sin(phase + begin) - math.sin(begin)) for begin in self._phases.tolist()
        )
        yaw = from_rotation_vector((0.0, 0.0, config.drift_rad * turn))
        drift = Pose((config.drift_m * x, config.drift_m * y, 0.0), yaw)
        return self._mount.common_pose(drift)

    def _measured(self, pose: Pose) -> Pose:
        place, turn = self._base
        back = conjugate(turn)
        position = rotate(back, subtract(pose.position, place))
        return Pose(position, multiply(back, pose.quaternion))
