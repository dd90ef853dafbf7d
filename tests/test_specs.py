"""Specs: accepted and refused arrays, error messages, and differences of two specs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from serl.errors import SpecMismatch
from serl.specs import ArraySpec, ObservationSpec, Spec
from serl.testing import random_array, random_observation
from serl.types import Observation

POSE = ArraySpec(shape=(7,), unit="m xyzw")
GRIPPER = ArraySpec(shape=(1,), low=0.0, high=1.0)
CAMERA = ArraySpec(shape=(4, 6, 3), dtype="uint8")
SEEN = ObservationSpec(state={"tcp_pose": POSE, "gripper": GRIPPER}, images={"wrist": CAMERA})


def seen() -> Observation:
    return random_observation(SEEN, np.random.default_rng(0))


def spec(**changes: Any) -> Spec:
    parts: dict[str, Any] = {
        "task": "reach",
        "observation": SEEN,
        "action": ArraySpec(shape=(4,), low=-1.0, high=1.0),
        "rate_hz": 10.0,
    }
    return Spec(**{**parts, **changes})


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        (np.zeros(2, np.float32), r"gripper: expected float32\[1\], got float32\[2\]"),
        (np.zeros((1, 1), np.float32), r"expected float32\[1\], got float32\[1, 1\]"),
        (np.zeros(1), r"expected float32\[1\], got float64\[1\]"),
        (np.array([np.nan], np.float32), r"gripper: not finite: \[nan\]"),
        (np.array([-np.inf], np.float32), r"gripper: not finite"),
        (np.array([-0.5], np.float32), "gripper: -0.5 is below 0"),
        (np.array([1.5], np.float32), "gripper: 1.5 is above 1"),
    ],
)
def test_array_spec_refuses_invalid_array_by_name(
    value: np.ndarray[Any, Any], complaint: str
) -> None:
    with pytest.raises(SpecMismatch, match=complaint) as raised:
        GRIPPER.validate_array(value, "gripper")
    assert "\n" not in str(raised.value)


def test_array_spec_accepts_values_at_bounds() -> None:
    for value in (0.0, 1.0):
        GRIPPER.validate_array(np.array([value], np.float32), "gripper")


@settings(deadline=None)
@given(
    shape=st.lists(st.integers(0, 4), max_size=3).map(tuple),
    low=st.none() | st.floats(-5, 0, width=32),
    high=st.none() | st.floats(0, 5, width=32),
    seed=st.integers(0, 99),
)
def test_array_spec_accepts_values_within_bounds(
    shape: tuple[int, ...], low: float | None, high: float | None, seed: int
) -> None:
    array = ArraySpec(shape=shape, low=low, high=high)
    array.validate_array(random_array(array, np.random.default_rng(seed)), "value")


def test_observation_spec_accepts_valid_observation() -> None:
    SEEN.validate_observation(seen())


@pytest.mark.parametrize(
    ("state", "images", "complaint"),
    [
        ({"tcp_pose": None}, {}, r"state: expected \['gripper', 'tcp_pose'\], got \['gripper'\]"),
        ({"q": np.zeros(7, np.float32)}, {}, r"got \['gripper', 'q', 'tcp_pose'\]"),
        ({}, {"wrist": None}, r"images: expected \['wrist'\], got \[\]"),
        ({"gripper": np.array([2.0], np.float32)}, {}, "state gripper: 2 is above 1"),
        ({}, {"wrist": np.zeros((4, 6, 4), np.uint8)}, "image wrist: expected uint8"),
        ({}, {"wrist": np.zeros((4, 6, 3), np.float32)}, "image wrist: expected uint8"),
    ],
)
def test_observation_spec_refuses_invalid_observation(
    state: dict[str, Any], images: dict[str, Any], complaint: str
) -> None:
    def changed(arrays: Any, changes: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in {**arrays, **changes}.items() if value is not None}

    observation = seen()
    bad = Observation(changed(observation.state, state), changed(observation.images, images))
    with pytest.raises(SpecMismatch, match=complaint):
        SEEN.validate_observation(bad)


def test_state_units_are_first_words_of_array_units() -> None:
    units = {"place": (2, "m, base frame"), "yaw": (1, "rad"), "on": (1, ""), "force": (1, "N; x")}
    state = {name: ArraySpec(shape=(size,), unit=unit) for name, (size, unit) in units.items()}
    assert ObservationSpec(state=state).state_units == ("m", "m", "rad", "", "N")


def test_units_that_follow_each_other_are_of_equal_parts() -> None:
    units = {"wrench": (6, "N Nm, base frame"), "velocity": (3, "m/s m/s rad/s, as wrenches")}
    state = {name: ArraySpec(shape=(size,), unit=unit) for name, (size, unit) in units.items()}
    found = ObservationSpec(state=state).state_units
    assert found == (*["N"] * 3, *["Nm"] * 3, "m/s", "m/s", "rad/s")
    odd = {"wrench": ArraySpec(shape=(5,), unit="N Nm")}
    assert ObservationSpec(state=odd).state_units == ("N",) * 5


def test_flatten_follows_order_of_spec() -> None:
    pose = np.arange(7, dtype=np.float32)
    gripper = np.array([0.5], np.float32)
    observation = Observation({"gripper": gripper, "tcp_pose": pose})
    assert SEEN.flatten(observation).tolist() == [0, 1, 2, 3, 4, 5, 6, 0.5]
    assert SEEN.state_size == 8


CHANGES: list[tuple[dict[str, Any], str]] = [
    ({"task": "pick"}, 'task: "reach" != "pick"'),
    ({"rate_hz": 20.0}, "rate_hz: 10.0 != 20.0"),
    ({"action": ArraySpec(shape=(5,), low=-1, high=1)}, "action.shape: [4] != [5]"),
    (
        {"observation": ObservationSpec(state={"tcp_pose": POSE, "gripper": GRIPPER})},
        "observation.images.wrist",
    ),
    (
        {
            "observation": ObservationSpec(
                state={"gripper": GRIPPER, "tcp_pose": POSE}, images={"wrist": CAMERA}
            )
        },
        "order of the state arrays",
    ),
    (
        {
            "observation": ObservationSpec(
                state={"tcp_pose": ArraySpec(shape=(7,), unit="mm"), "gripper": GRIPPER},
                images={"wrist": CAMERA},
            )
        },
        'observation.state.tcp_pose.unit: "m xyzw" != "mm"',
    ),
]


@pytest.mark.parametrize(("changes", "expected"), CHANGES)
def test_difference_names_first_differing_field(changes: dict[str, Any], expected: str) -> None:
    mine, theirs = spec(), spec(**changes)
    assert mine.digest != theirs.digest
    assert expected in mine.difference(theirs)
    assert "\n" not in mine.difference(theirs)


def test_difference_of_other_task_names_only_task() -> None:
    assert spec().difference(spec(task="pick", rate_hz=20.0)) == 'task: "reach" != "pick"'


def test_difference_gives_array_that_one_spec_lacks_by_its_shape() -> None:
    other = spec(observation=ObservationSpec(state={"gripper": GRIPPER}, images={"wrist": CAMERA}))
    assert spec().difference(other) == "observation.state.tcp_pose.shape: [7] != absent"


def test_spec_survives_json_round_trip_with_same_digest() -> None:
    mine = spec()
    theirs = Spec.model_validate_json(mine.model_dump_json())
    assert mine.difference(theirs) == ""
    assert mine.digest == theirs.digest
    assert len(mine.digest) == 16
    assert set(mine.digest) <= set("0123456789abcdef")


def test_spec_refuses_unknown_field() -> None:
    with pytest.raises(ValidationError):
        Spec.model_validate({**spec().model_dump(), "extra": 1})
