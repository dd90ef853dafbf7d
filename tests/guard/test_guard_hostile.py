"""Any targets at all; faults 31 send a hundred thousand, and a million."""

from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from serl.geometry import from_rotation_vector, multiply
from serl.motion import Pose

from ..support.guarding import DOWN, START, armed, numbers
from ..support.hostile import edge


@settings(max_examples=40, deadline=None)
@given(
    targets=st.lists(
        st.tuples(
            *[st.floats(allow_nan=True, allow_infinity=True)] * 3,
            st.tuples(*[st.floats(-4, 4)] * 3),
            st.integers(1, 40),
        ),
        min_size=1,
        max_size=8,
    )
)
def test_any_targets(
    targets: list[tuple[float, float, float, tuple[float, float, float], int]],
) -> None:
    loop = armed()
    loop.mode = "policy"
    for x, y, z, turn, ticks in targets:
        quaternion = multiply(from_rotation_vector(turn), DOWN)
        for _ in range(ticks):
            loop.guard.command([x, y, z, *quaternion], loop.heard())
            loop.tick()


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_from_one_corner_to_another(seed: int) -> None:
    """Changes of direction at full speed, towards the faces of the box."""
    random = Random(seed)
    loop = armed()
    loop.mode = "policy"
    for _ in range(12):
        values = edge(random)
        loop.target = Pose((values[0], values[1], values[2]), START.quaternion)
        loop.guard.command(numbers(loop.target), loop.heard())
        loop.tick(random.randrange(1, 60))
