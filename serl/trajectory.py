"""Trajectories of an arm's joints: a path in pieces that end at rest, and a motion along them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

PIECE_S, BRAKE_S = 0.15, 0.2
"""Durations of the two parts of a piece: along the path, and braking to rest."""


class JointPoint(NamedTuple):
    """A point of a trajectory: its time after the trajectory arrives, positions and velocities."""

    time_s: float
    positions_rad: tuple[float, ...]
    velocities_rad_s: tuple[float, ...]


Trajectory = tuple[JointPoint, ...]


class JointPath:
    """A straight path of all joints, from rest to rest, with a bounded speed of the fastest joint.

    Args:
        start: joint positions (rad) at its beginning.
        goal: joint positions at its end.
        speed_rad_s: top speed.
    """

    def __init__(self, start: Sequence[float], goal: Sequence[float], speed_rad_s: float) -> None:
        self._start = tuple(start)
        self._way = [end - begin for begin, end in zip(start, goal, strict=True)]
        self.duration_s = max(PIECE_S, 1.5 * max(map(abs, self._way)) / speed_rad_s)

    def at(self, time_s: float) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Return positions and velocities at a time after the beginning."""
        share = min(1.0, max(0.0, time_s / self.duration_s))
        part = share * share * (3.0 - 2.0 * share)
        rate = 6.0 * share * (1.0 - share) / self.duration_s
        pairs = zip(self._start, self._way, strict=True)
        return tuple(a + part * way for a, way in pairs), tuple(rate * way for way in self._way)

    def piece(self, time_s: float) -> Trajectory:
        """Return the trajectory to send at this time."""
        positions, velocities = self.at(time_s + PIECE_S)
        through = JointPoint(PIECE_S, positions, velocities)
        return through, _rest(positions, velocities, PIECE_S + BRAKE_S)

    def brake(self, time_s: float) -> Trajectory:
        """Return the trajectory that ends the move at this time."""
        return (_rest(*self.at(time_s), BRAKE_S),)


def _rest(positions: Sequence[float], velocities: Sequence[float], time_s: float) -> JointPoint:
    """Return the point of rest, at `time_s`, after constant deceleration for `BRAKE_S`."""
    ends = zip(positions, velocities, strict=True)
    return JointPoint(
        time_s, tuple(q + 0.5 * BRAKE_S * v for q, v in ends), (0.0,) * len(positions)
    )


class TrajectoryFollower:
    """Motion of a driver's joints along the newest trajectory; it stands at its end.

    Between two points each joint follows the cubic that has their positions and velocities.
    """

    def __init__(self) -> None:
        self._points: Trajectory = ()
        self._began_s = -math.inf

    @property
    def is_active(self) -> bool:
        """Whether a trajectory was received that was not ended."""
        return bool(self._points)

    def begin(self, trajectory: Trajectory, measured: Sequence[float], now_s: float) -> None:
        """Follow a trajectory from the present motion on, or from rest at the measured joints."""
        start = JointPoint(0.0, tuple(measured), (0.0,) * len(measured))
        if self.is_active:
            positions, velocities = self.at(now_s)
            start = JointPoint(0.0, positions, velocities)
        self._points, self._began_s = (start, *trajectory), now_s

    def end(self) -> None:
        """Follow the trajectory no more."""
        self._points = ()

    def at(self, now_s: float) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Return positions and velocities of the joints; only while active."""
        time_s = now_s - self._began_s
        before = self._points[0]
        for point in self._points[1:]:
            if time_s < point.time_s:
                return _between(before, point, time_s)
            before = point
        return before.positions_rad, (0.0,) * len(before.positions_rad)


def _between(
    a: JointPoint, b: JointPoint, time_s: float
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return positions and velocities between two points."""
    span_s = b.time_s - a.time_s
    u = (time_s - a.time_s) / span_s
    positions, velocities = [], []
    pairs = zip(
        a.positions_rad, b.positions_rad, a.velocities_rad_s, b.velocities_rad_s, strict=True
    )
    for p, q, v, w in pairs:
        v, w, way = span_s * v, span_s * w, q - p
        square, cube = 3.0 * way - 2.0 * v - w, v + w - 2.0 * way
        positions.append(p + u * (v + u * (square + u * cube)))
        velocities.append((v + u * (2.0 * square + 3.0 * u * cube)) / span_s)
    return tuple(positions), tuple(velocities)
