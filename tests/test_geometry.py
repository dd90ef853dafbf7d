import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serl.errors import BadInput
from serl.geometry import (
    Vector,
    align_sign,
    conjugate,
    from_rotation_vector,
    limit_length,
    multiply,
    nearest_point,
    nearest_rotation,
    normalize,
    rotate,
    rotation_between,
    to_rotation_vector,
)


def vectors(size: float) -> st.SearchStrategy[Vector]:
    number = st.floats(-size, size)
    return st.tuples(number, number, number)


@settings(deadline=None)
@given(a=vectors(1.7), b=vectors(1.7), v=vectors(2.0))
def test_rotations_compose_and_invert(a: Vector, b: Vector, v: Vector) -> None:
    p, q = from_rotation_vector(a), from_rotation_vector(b)
    assert rotate(multiply(p, q), v) == pytest.approx(rotate(p, rotate(q, v)), abs=1e-9)
    assert rotate(conjugate(p), rotate(p, v)) == pytest.approx(v, abs=1e-9)
    if math.hypot(*a) < math.pi - 1e-6:
        assert to_rotation_vector(p) == pytest.approx(a, abs=1e-9)
    minus = (-p[0], -p[1], -p[2], -p[3])
    assert align_sign(minus, p) == pytest.approx(p)
    assert math.hypot(*to_rotation_vector(minus)) <= math.pi + 1e-9


@settings(deadline=None)
@given(a=vectors(1.7), b=vectors(1.7))
def test_rotation_between_turns_first_rotation_into_second(a: Vector, b: Vector) -> None:
    p, q = from_rotation_vector(a), from_rotation_vector(b)
    turn = rotation_between(p, q)
    assert math.hypot(*turn) <= math.pi + 1e-9
    reached = multiply(from_rotation_vector(turn), p)
    assert align_sign(reached, q) == pytest.approx(q, abs=1e-9)
    # Its length equals that of the product's rotation vector for either sign.
    minus = (-p[0], -p[1], -p[2], -p[3])
    for start in (p, minus):
        length = math.hypot(*to_rotation_vector(multiply(q, conjugate(start))))
        assert math.hypot(*rotation_between(start, q)) == pytest.approx(length, abs=1e-9)


@settings(deadline=None)
@given(a=vectors(1.7), b=vectors(1.7), radius=st.floats(1e-3, math.pi))
def test_nearest_rotation_is_on_shortest_path_within_radius(
    a: Vector, b: Vector, radius: float
) -> None:
    centre, q = from_rotation_vector(a), from_rotation_vector(b)
    minus = (-q[0], -q[1], -q[2], -q[3])
    whole = rotation_between(centre, q)
    for given_q in (q, minus):
        nearest = nearest_rotation(given_q, centre, radius)
        kept = rotation_between(centre, nearest)
        assert math.hypot(*kept) <= radius * (1.0 + 1e-9)
        if math.hypot(*whole) <= radius * (1.0 - 1e-9):
            assert nearest is given_q
        elif radius * (1.0 + 1e-9) < math.hypot(*whole) < math.pi - 1e-6:
            part = radius / math.hypot(*whole)
            assert kept == pytest.approx([part * c for c in whole], abs=1e-6)
            assert math.sqrt(sum(c * c for c in nearest)) == pytest.approx(1.0, abs=1e-9)


@pytest.mark.parametrize(
    "quaternion",
    [(0.0, 0.0, 0.0, 0.0), (0.0, 0.0, 0.0, 1.02), (0.0, 0.0, math.nan, 1.0), (0.0, 0.0, 1.0)],
)
def test_normalize_refuses_invalid_quaternions(quaternion: tuple[float, ...]) -> None:
    with pytest.raises(BadInput, match="quaternion"):
        normalize(quaternion)


@settings(deadline=None)
@given(v=vectors(2.0), centre=vectors(2.0), radius=st.floats(1e-3, 5.0))
def test_nearest_point_is_on_line_within_radius(v: Vector, centre: Vector, radius: float) -> None:
    nearest, distance = nearest_point(v, centre, radius), math.dist(v, centre)
    assert math.dist(nearest, centre) <= radius * (1.0 + 1e-9) + 1e-12
    if distance <= radius * (1.0 - 1e-9):
        assert nearest is v
    elif distance > radius * (1.0 + 1e-9):
        assert math.dist(nearest, v) == pytest.approx(distance - radius, abs=1e-9)


def test_limit_length_shortens_only_longer_vectors() -> None:
    short = (0.3, 0.0, 0.4)
    assert limit_length(short, 0.5) is short
    assert limit_length(short, 0.25) == pytest.approx((0.15, 0.0, 0.2))
