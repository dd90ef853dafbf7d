import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serl.geometry import Vector, nearest_point, shortened

number = st.floats(-2.0, 2.0)
vectors = st.tuples(number, number, number)


@given(v=vectors, centre=vectors, radius=st.floats(1e-3, 5.0))
def test_the_nearest_point_is_on_the_way_and_not_beyond(
    v: Vector, centre: Vector, radius: float
) -> None:
    nearest, distance = nearest_point(v, centre, radius), math.dist(v, centre)
    assert math.dist(nearest, centre) <= radius * (1.0 + 1e-9) + 1e-12
    if distance <= radius * (1.0 - 1e-9):
        assert nearest is v
    elif distance > radius * (1.0 + 1e-9):
        assert math.dist(nearest, v) == pytest.approx(distance - radius, abs=1e-9)


def test_a_vector_is_shortened_only_where_it_is_too_long() -> None:
    short = (0.3, 0.0, 0.4)
    assert shortened(short, 0.5) is short
    assert shortened(short, 0.25) == pytest.approx((0.15, 0.0, 0.2))
