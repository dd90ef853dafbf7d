import math

import numpy as np
import pytest

from serl.errors import BadInput
from serl.tasks.parts.track import Course, checkpoints_of

SQUARE = Course(((0.0, 0.0), (2.0, 0.0), (2.0, 2.0), (0.0, 2.0)))


def circle(turns: float, points: int = 200) -> np.ndarray:
    angles = np.linspace(0.0, 2.0 * math.pi * turns, points)
    return 2.0 * np.stack([np.cos(angles), np.sin(angles)], axis=1)


def test_course_positions_are_distances_along_closed_line() -> None:
    assert SQUARE.length_m == 8.0
    assert SQUARE.at(3.0) == pytest.approx((2.0, 1.0))
    assert SQUARE.at(7.0) == pytest.approx((0.0, 1.0)), (
        "on the segment from the last to the first point"
    )
    assert SQUARE.at(-1.0) == pytest.approx(SQUARE.at(7.0))
    assert SQUARE.heading(1.0) == pytest.approx(0.0)
    assert SQUARE.heading(3.0) == pytest.approx(math.pi / 2)


def test_ahead_takes_the_shorter_direction() -> None:
    assert SQUARE.ahead(7.5, 0.5) == pytest.approx(1.0)
    assert SQUARE.ahead(0.5, 7.5) == pytest.approx(-1.0)


def test_nearest_position_does_not_jump_across_the_track() -> None:
    middle = np.array((1.0, 1.1))
    assert SQUARE.nearest(np.array((1.0, 0.2))) == pytest.approx(1.0)
    assert SQUARE.nearest(middle, 1.0, reach_m=0.5) == pytest.approx(1.0)
    assert SQUARE.nearest(np.array((1.0, 2.0))) == pytest.approx(5.0)
    assert SQUARE.nearest(np.array((1.0, 2.0)), 1.0) == pytest.approx(1.0)
    assert SQUARE.nearest(np.array((0.0, 1.0)), 3.0, reach_m=0.1) == pytest.approx(3.0)


def test_one_lap_defines_a_course() -> None:
    points = checkpoints_of(circle(1.3))
    course = Course(points)
    assert course.length_m == pytest.approx(4.0 * math.pi, rel=0.02)
    gaps = np.linalg.norm(np.diff(np.array(points), axis=0), axis=1)
    assert gaps == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize("drive", [circle(0.7), np.zeros((50, 2)), np.array([[0.0, 0.0]])])
def test_drive_that_does_not_return_is_no_lap(drive: np.ndarray) -> None:
    with pytest.raises(BadInput, match="no lap"):
        checkpoints_of(drive)


def test_course_needs_four_distinct_points() -> None:
    with pytest.raises(BadInput, match="at least 4"):
        Course(((0.0, 0.0), (1.0, 0.0), (1.0, 1.0)))
    with pytest.raises(BadInput, match="apart"):
        Course(((0.0, 0.0), (1.0, 0.0), (1.0, 0.0), (0.0, 1.0)))
