from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from serl.errors import BadInput
from serl.specs import ArraySpec, ObservationSpec
from serl.successes import LastFrames, Successes, with_labelled
from serl.types import End, Key, Observation, Record, Source, Step

SPEC = ObservationSpec(state={"x": ArraySpec(shape=(1,))})
IMAGE = ArraySpec(shape=(8, 8, 3), dtype="uint8")
WITH_IMAGES = ObservationSpec(state=SPEC.state, images={"front": IMAGE})


def records(episode: int, steps: int, success: bool) -> list[Record]:
    """Of an episode, whose observations hold 10 times its number, and the step."""

    def seen(index: int) -> Observation:
        value = 10 * episode + index
        images = {"front": np.full((8, 8, 3), value, np.uint8)}
        return Observation({"x": np.array([value], np.float32)}, images)

    action = np.zeros(1, np.float32)
    taken: list[Record] = [
        Step(
            Key("run", "expert", 1, episode, index),
            seen(index),
            action,
            action,
            0.0,
            "truth",
            False,
            False,
            Source.SCRIPT,
            0,
            0.0,
            0.0,
        )
        for index in range(steps)
    ]
    key = Key("run", "expert", 1, episode, steps)
    return [*taken, End(key, seen(steps), success, "success", 0.0, 0.0)]


def kept(spec: ObservationSpec, count: int = 3) -> Successes:
    last = LastFrames(spec, count)
    for record in (*records(0, 6, True), *records(1, 6, False), *records(2, 1, True)):
        last.add(record)
    return last.successes()


def test_the_last_observations_of_successes_are_kept_and_of_no_others() -> None:
    assert kept(SPEC).state.ravel().tolist() == [4, 5, 6, 20, 21]
    assert kept(SPEC, 1).state.ravel().tolist() == [6, 21]


def test_images_are_kept_where_the_policy_sees_any() -> None:
    found = kept(WITH_IMAGES)
    assert len(found) == 5
    assert found.images["front"][:, 0, 0, 0].tolist() == [4, 5, 6, 20, 21]


@pytest.mark.parametrize("spec", [SPEC, WITH_IMAGES])
def test_there_may_be_none(spec: ObservationSpec) -> None:
    assert len(LastFrames(spec, 3).successes()) == 0


def test_labelled_images_are_of_no_use_to_who_sees_none() -> None:
    found = kept(SPEC)
    assert with_labelled(found, (), {}) is found
    with pytest.raises(BadInput, match=r"vice\.positives: are images, and the policy sees none"):
        with_labelled(found, (Path("x"),), {})
