"""Leader arms: the robot's tool follows the motion of the leader's tool, step by step."""

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
"""Moving the arm takes over; motion below a tenth of a step is rest. No gripper commands."""

Pose = tuple[Vector, tuple[float, float, float, float]]


class LeaderArm:
    """A `Device` that receives leader poses; motion beyond one step carries over to the next.

    After a silence the next pose is a new reference, so that an arm that was moved or exchanged
    meanwhile causes no jump.

    Args:
        translation_m: translation that is an action of 1.
        rotation_rad: rotation that is an action of 1.
        name: name shown to operators.
        now_s: monotonic clock in seconds.
        silence_s: time without a pose after which the next one is a new reference.
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
        self._commanded: Pose | None = None
        self._received_s = float("-inf")

    @property
    def silence_s(self) -> float:
        """Seconds since the last pose; infinite before the first."""
        return self._now_s() - self._received_s

    def receive(self, position: Vector, quaternion: tuple[float, float, float, float]) -> None:
        """Receive a pose in a frame oriented like the robot's base; invalid poses are ignored."""
        numbers = (*position, *quaternion)
        if not all(map(math.isfinite, numbers)) or abs(math.hypot(*quaternion) - 1.0) > 0.01:
            return
        with self._lock:
            now_s = self._now_s()
            self._newest = (position, normalized(quaternion))
            if self._commanded is None or now_s - self._received_s > self._silence_s:
                self._commanded = self._newest
            self._received_s = now_s

    def read(self) -> DeviceReport | None:
        """Return the motion not yet commanded, in steps, and count it as commanded."""
        with self._lock:
            if self._newest is None or self._commanded is None:
                return None
            (position, turned), (reached, reached_turned) = self._newest, self._commanded
            way = tuple(
                _share(now - before, self._translation_m)
                for now, before in zip(position, reached, strict=True)
            )
            turn = to_rotation_vector(multiply(turned, conjugate(reached_turned)))
            largest = max(1.0, *(abs(angle) / self._rotation_rad for angle in turn))
            turns = tuple(angle / self._rotation_rad / largest for angle in turn)
            done = tuple(
                before + share * self._translation_m
                for before, share in zip(reached, way, strict=True)
            )
            self._commanded = ((done[0], done[1], done[2]), self._turned(reached_turned, turns))
            return DeviceReport(
                dict(zip(_AXES, (*way, *turns), strict=True)), frozenset(), (), self._received_s
            )

    def close(self) -> None:
        """Do nothing: there is no resource to release."""

    def _turned(
        self, before: tuple[float, float, float, float], turns: tuple[float, ...]
    ) -> tuple[float, float, float, float]:
        roll, pitch, yaw = (share * self._rotation_rad for share in turns)
        return normalized(multiply(from_rotation_vector((roll, pitch, yaw)), before))


def _share(distance: float, full: float) -> float:
    return min(1.0, max(-1.0, distance / full))
