"""Values of the package: immutability, order of keys, sources and end reasons."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from serl.errors import STUCK
from serl.testing.samples import SPEC, random_step
from serl.types import ActionSource, End, EndReason, Episode, Key, Observation, Step, parse_reason


def key(index: int = 0, episode: int = 0, epoch: int = 1) -> Key:
    return Key("run", "actor0", epoch, episode, index)


def step(index: int, source: ActionSource) -> Step:
    made = random_step(key(index), SPEC, np.random.default_rng(0))
    return dataclasses.replace(made, source=source)


def end(success: bool) -> End:
    return End(
        key(3),
        Observation({}),
        success,
        EndReason.SUCCESS if success else EndReason.TIME_LIMIT,
        0.0,
        0.0,
    )


def test_keys_sort_in_stream_order() -> None:
    stream = [key(0), key(1), key(0, episode=1), key(7, episode=1), key(0, epoch=2)]
    assert sorted(reversed(stream)) == stream
    assert len({*stream, key(1)}) == len(stream)


def test_episode_counts_steps_by_action_source() -> None:
    sources = (ActionSource.POLICY, ActionSource.HUMAN, ActionSource.HUMAN, ActionSource.SCRIPT)
    episode = Episode(tuple(step(index, source) for index, source in enumerate(sources)), None)
    assert [episode.count(source) for source in ActionSource] == [1, 2, 1]


@pytest.mark.parametrize(
    ("last", "success"), [(end(True), True), (end(False), False), (None, False)]
)
def test_episode_is_success_only_by_its_end(last: End | None, success: bool) -> None:
    assert Episode((step(0, ActionSource.POLICY),), last).success is success


@pytest.mark.parametrize("value", [key(), step(0, ActionSource.POLICY), end(True), Observation({})])
def test_values_are_frozen_and_slotted(value: object) -> None:
    field = dataclasses.fields(value)[0].name  # type: ignore[arg-type]
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(value, field, None)
    assert not hasattr(value, "__dict__")


def test_action_source_is_written_as_word() -> None:
    assert [str(source) for source in ActionSource] == ["policy", "human", "script"]
    assert ActionSource("human") is ActionSource.HUMAN


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        *[(each.value, each) for each in EndReason if not each.is_fault],
        ("a person is needed: it fell off the table", EndReason.NEEDS_PERSON),
        (f"the guard holds the arm: {STUCK}", EndReason.STUCK),
        ("camera wrist: gone", EndReason.FAULT),
        ("stuck", EndReason.FAULT),
    ],
)
def test_end_reason_is_parsed_from_recorded_text(text: str, reason: EndReason) -> None:
    found, fault = parse_reason(text)
    assert found is reason
    assert dataclasses.replace(end(success=False), reason=found, fault=fault).text == text
