import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serl.errors import BadInput
from serl.rotations import (
    align_sign,
    conjugate,
    from_rotation_vector,
    multiply,
    normalized,
    rotate,
    to_rotation_vector,
)
from serl.vectors import Vector


def norm(v: Vector) -> float:
    return math.sqrt(sum(c * c for c in v))


def vectors(size: float) -> st.SearchStrategy[Vector]:
    number = st.floats(-size, size)
    return st.tuples(number, number, number)


@given(a=vectors(1.7), b=vectors(1.7), v=vectors(2.0))
def test_rotations_compose_and_invert(a: Vector, b: Vector, v: Vector) -> None:
    p, q = from_rotation_vector(a), from_rotation_vector(b)
    assert rotate(multiply(p, q), v) == pytest.approx(rotate(p, rotate(q, v)), abs=1e-9)
    assert rotate(conjugate(p), rotate(p, v)) == pytest.approx(v, abs=1e-9)
    if norm(a) < math.pi - 1e-6:
        assert to_rotation_vector(p) == pytest.approx(a, abs=1e-9)
    minus = (-p[0], -p[1], -p[2], -p[3])
    assert align_sign(minus, p) == pytest.approx(p)
    assert norm(to_rotation_vector(minus)) <= math.pi + 1e-9


@pytest.mark.parametrize(
    "quaternion",
    [(0.0, 0.0, 0.0, 0.0), (0.0, 0.0, 0.0, 1.02), (0.0, 0.0, math.nan, 1.0), (0.0, 0.0, 1.0)],
)
def test_quaternions_that_are_none_are_refused(quaternion: tuple[float, ...]) -> None:
    with pytest.raises(BadInput, match="quaternion"):
        normalized(quaternion)
