"""A leader arm: what its tool moves, the robot's is to move as well, step by step."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable

from serl.geometry import (
    Vector,
    conjugate,
    from_rotation_vector,
    multiply,
    normalized,
    to_rotation_vector,
)
from serl.teleop.device import DeviceReport
from serl.teleop.mapping import MappingConfig

_AXES = ("x", "y", "z", "roll", "pitch", "yaw")

MAPPING = MappingConfig(
    axes={name: (name, 1.0) for name in _AXES},
    dead_zone=0.0,
    threshold=0.1,
)
"""To move it is to take over; below a tenth of a step it is at rest. It commands no gripper."""

Pose = tuple[Vector, tuple[float, float, float, float]]


class LeaderArm:
    """A `Device` that is told poses; what the robot was not asked for yet is asked for next.

    A pose after a silence is a new beginning, so that an arm that was moved meanwhile, or is
    another one, makes no jump.

    Args:
        translation_m: of an action of 1.
        rotation_rad: of an action of 1.
        name: shown to people.
        now_s: monotonic seconds.
        silence_s: from when on it is one.
    """

    def __init__(
        self,
        translation_m: float,
        rotation_rad: float,
        name: str = "the leader arm",
        now_s: Callable[[], float] = time.monotonic,
        silence_s: float = 0.5,
    ) -> None:
        self.name = name
        self._translation_m, self._rotation_rad = translation_m, rotation_rad
        self._now_s, self._silence_s = now_s, silence_s
        self._lock = threading.Lock()  # poses arrive in another thread
        self._newest: Pose | None = None
        self._asked: Pose | None = None
        self._heard_s = float("-inf")

    @property
    def silence_s(self) -> float:
        """Seconds since the last pose; infinite before the first."""
        return self._now_s() - self._heard_s

    def hear(self, position: Vector, quaternion: tuple[float, float, float, float]) -> None:
        """Take a pose in a frame that looks as the robot's base does; one that is none is not."""
        numbers = (*position, *quaternion)
        if not all(map(math.isfinite, numbers)) or abs(math.hypot(*quaternion) - 1.0) > 0.01:
            return
        with self._lock:
            now_s = self._now_s()
            self._newest = (position, normalized(quaternion))
            if self._asked is None or now_s - self._heard_s > self._silence_s:
                self._asked = self._newest
            self._heard_s = now_s

    def read(self) -> DeviceReport | None:
        """What is left to be moved, in steps; whoever reads it has moved that far."""
        with self._lock:
            if self._newest is None or self._asked is None:
                return None
            (position, turned), (asked, asked_turned) = self._newest, self._asked
            way = tuple(
                _share(now - before, self._translation_m)
                for now, before in zip(position, asked, strict=True)
            )
            turn = to_rotation_vector(multiply(turned, conjugate(asked_turned)))
            largest = max(1.0, *(abs(angle) / self._rotation_rad for angle in turn))
            turns = tuple(angle / self._rotation_rad / largest for angle in turn)
            done = tuple(
                before + share * self._translation_m
                for before, share in zip(asked, way, strict=True)
            )
            self._asked = ((done[0], done[1], done[2]), self._turned(asked_turned, turns))
            return DeviceReport(
                dict(zip(_AXES, (*way, *turns), strict=True)), frozenset(), (), self._heard_s
            )

    def close(self) -> None:
        """Nothing to let go of."""

    def _turned(
        self, before: tuple[float, float, float, float], turns: tuple[float, ...]
    ) -> tuple[float, float, float, float]:
        roll, pitch, yaw = (share * self._rotation_rad for share in turns)
        return normalized(multiply(from_rotation_vector((roll, pitch, yaw)), before))


def _share(distance: float, full: float) -> float:
    return min(1.0, max(-1.0, distance / full))
