"""A closed course through checkpoints, defined by one recorded lap."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from serl.errors import BadInput

Points = np.ndarray[Any, np.dtype[np.float64]]
Checkpoint = tuple[float, float]


def checkpoints_of(positions_m: Points, spacing_m: float = 0.5) -> tuple[Checkpoint, ...]:
    """Return points at equal distances along the first lap of a drive.

    Args:
        positions_m: positions of the car, in order.  # (N, 2)
        spacing_m: approximate distance between the points.

    Raises:
        BadInput: the drive does not return to its start.
    """
    driven = np.concatenate(
        [[0.0], np.cumsum(np.linalg.norm(np.diff(positions_m, axis=0), axis=1))]
    )
    away = np.linalg.norm(positions_m - positions_m[0], axis=1)
    left = np.flatnonzero(away > 4.0 * spacing_m)
    back = np.flatnonzero(away[left[0] :] < 2.0 * spacing_m) if left.size else left
    if not back.size:
        raise BadInput("the demonstration is no lap: it does not come back to where it began")
    first = int(left[0] + back[0])
    closing = int(first + np.argmin(away[first : first + 20]))
    length = driven[closing]
    along = np.linspace(0.0, length, max(8, round(length / spacing_m)), endpoint=False)
    x, y = (np.interp(along, driven, positions_m[:, axis]) for axis in (0, 1))
    return tuple((round(float(a), 3), round(float(b), 3)) for a, b in zip(x, y, strict=True))


class Course:
    """The closed line through checkpoints; a place on it is its distance from the first one.

    Args:
        checkpoints: at least 4, in the order of driving.
    """

    def __init__(self, checkpoints: Sequence[Checkpoint]) -> None:
        if len(checkpoints) < 4:
            raise BadInput(f"checkpoints: expected at least 4, got {len(checkpoints)}")
        self._points = np.array(checkpoints, np.float64)
        self._ways = np.roll(self._points, -1, axis=0) - self._points
        self._lengths = np.linalg.norm(self._ways, axis=1)
        if self._lengths.min() < 1e-3:
            raise BadInput("checkpoints: expected each one apart from the one before")
        self._begins = np.concatenate([[0.0], np.cumsum(self._lengths)[:-1]])
        self.length_m = float(self._lengths.sum())

    def at(self, along_m: float) -> Points:
        """Return the point at a place.  # (2,)."""
        index, rest = self._segment(along_m)
        point: Points = self._points[index] + self._ways[index] * (rest / self._lengths[index])
        return point

    def heading(self, along_m: float) -> float:
        """Return the heading of the course at a place, rad."""
        x, y = self._ways[self._segment(along_m)[0]]
        return math.atan2(y, x)

    def nearest(
        self, position_m: Points, about_m: float | None = None, reach_m: float = 1.0
    ) -> float:
        """Return the place nearest to a position.

        Args:
            position_m: x and y.
            about_m: previous place: places farther from it than `reach_m` are excluded.
            reach_m: see `about_m`.
        """
        apart = position_m - self._points
        share = (np.einsum("ij,ij->i", apart, self._ways) / self._lengths**2).clip(0.0, 1.0)
        off = np.linalg.norm(apart - share[:, None] * self._ways, axis=1)
        places = self._begins + share * self._lengths
        if about_m is not None:
            off = np.where(np.abs(self.ahead(about_m, places)) <= reach_m, off, np.inf)
            if np.isinf(off).all():
                return about_m
        return float(places[np.argmin(off)])

    def along(self, positions_m: Points) -> Points:
        """Return the places of a drive, each near the previous one.  # (N,)."""
        places = [self.nearest(positions_m[0])]
        for position in positions_m[1:]:
            places.append(self.nearest(position, places[-1]))
        return np.array(places)

    def ahead(self, from_m: Any, to_m: Any) -> Any:
        """Return the distance from one place ahead to another, the shorter way; negative behind."""
        half = 0.5 * self.length_m
        return (to_m - from_m + half) % self.length_m - half

    def _segment(self, along_m: float) -> tuple[int, float]:
        along = along_m % self.length_m
        index = int(np.searchsorted(self._begins, along, side="right")) - 1
        return index, along - float(self._begins[index])


def forwards(positions_m: Points, track: Course, half_width_m: float) -> Points:
    """Return a drive on a track without its backward parts.  # (N, 2).

    Raises:
        BadInput: the drive leaves the track, or goes against its direction.
    """
    places = track.along(positions_m)
    middle = np.array([track.at(place) for place in places])
    off_m = float(np.linalg.norm(positions_m - middle, axis=1).max())
    if off_m > half_width_m:
        raise BadInput(f"the demonstration is no lap: it is {off_m:.2f} m off the track")
    ahead_m = np.cumsum([0.0, *track.ahead(places[:-1], places[1:])])
    if ahead_m[-1] < 0.0:
        raise BadInput("the demonstration is no lap: it goes against the direction of driving")
    kept: Points = positions_m[ahead_m >= np.maximum.accumulate(ahead_m)]
    return kept
