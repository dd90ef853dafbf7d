"""Removal of discarded episodes and faulty steps from replay."""

from __future__ import annotations

from dataclasses import replace

import pytest

from serl.errors import STUCK
from serl.training.replay import Replay
from serl.types import ActionSource, End, EndReason

from ..support.plans import FAULT, GAMMA, SPEC, Plan, fill, plan


def names(replay: Replay) -> set[int]:
    """Return the names of the frames from which transitions can be sampled."""
    if not len(replay):
        return set()
    return {int(name) for name in replay.states()[:, 0]}


def test_discarded_episode_is_removed_from_replay() -> None:
    replay = Replay(SPEC, 100, GAMMA)
    policy, human = ActionSource.POLICY, ActionSource.HUMAN
    for each in (
        plan(policy, policy, number=0, first=0),
        plan(policy, human, human, number=1, first=10, ending="discarded"),
        plan(human, policy, number=2, first=20),
    ):
        for record in each.records():
            replay.add(record)
    assert names(replay) == {0, 1, 20, 21}
    assert (replay.online, replay.human, replay.dropped) == (7, 3, 0)
    assert len(replay.prior_states()) == 1
    assert set(replay.sample(200).state[:, 0].tolist()) <= {0.0, 1.0, 20.0, 21.0}


@pytest.mark.parametrize("lost", [0, 1, 4])
def test_discarded_episode_with_lost_record_is_removed_from_replay(lost: int) -> None:
    """Check that the preceding episode stays complete."""
    replay = fill(Replay(SPEC, 100, GAMMA), plan(*[ActionSource.POLICY] * 3))
    records = list(
        plan(*[ActionSource.POLICY] * 5, number=1, first=10, ending="discarded").records()
    )
    for record in (*records[:lost], *records[lost + 1 :]):
        replay.add(record)
    assert names(replay) == {0, 1, 2}


def test_step_before_a_fault_is_dropped() -> None:
    """Check that the observation repeated by a fault's end record is not used as a successor."""
    replay = fill(Replay(SPEC, 100, GAMMA), plan(*[ActionSource.POLICY] * 3, ending=FAULT))
    assert names(replay) == {0, 1}
    batch = replay.sample(100)
    assert (batch.next_state[:, 0] == batch.state[:, 0] + 1).all()
    assert replay.dropped == 1
    fill(replay, plan(ActionSource.POLICY, number=1, first=10))
    assert names(replay) == {0, 1, 10}


def test_terminated_step_is_kept_even_if_end_reports_fault() -> None:
    ended = [
        replace(record, reason=EndReason.FAULT, fault="solved, as another program says")
        if isinstance(record, End)
        else record
        for record in plan(ActionSource.POLICY, ending="terminated").records()
    ]
    replay = Replay(SPEC, 100, GAMMA)
    for record in ended:
        replay.add(record)
    assert names(replay) == {0}


def test_discarding_an_episode_keeps_steps_of_other_episodes() -> None:
    """Discard an episode interleaved with another actor's after the ring has wrapped."""
    replay = Replay(SPEC, 8, GAMMA)
    long = plan(*[ActionSource.POLICY] * 6, ending="discarded", first=0)
    other = Plan([ActionSource.POLICY] * 4, "truncated", first=100, actor="b")
    mixed = list(long.records())
    for place, record in zip((1, 3, 5, 7, 9), other.records(), strict=True):
        mixed.insert(place, record)
    for record in mixed:
        replay.add(record)
    assert {name for name in names(replay) if name < 100} == set()
    assert names(replay) <= {100, 101, 102, 103}
    assert names(replay)
    for record in plan(*[ActionSource.POLICY] * 3, first=50, number=1).records():
        replay.add(record)
    assert {50, 51, 52} <= names(replay)


def test_steps_without_motion_of_a_stuck_arm_are_dropped() -> None:
    """Drop the two seconds without motion that precede the guard's stuck report."""
    replay = fill(Replay(SPEC, 100, GAMMA), plan(*[ActionSource.POLICY] * 3))
    ends_s = 4.0 - 0.02
    reason = f"the guard holds the arm: {STUCK}"
    for record in plan(*[ActionSource.POLICY] * 40, ending=reason, number=1, first=10).records():
        now_s = ends_s if isinstance(record, End) else 0.1 * record.key.index
        replay.add(replace(record, monotonic_s=now_s))
    assert names(replay) == {0, 1, 2} | set(range(10, 10 + 15))
    assert (replay.online, replay.dropped) == (3 + 39, 1)


def test_discarding_the_only_episode_empties_replay() -> None:
    replay = Replay(SPEC, 8, GAMMA)
    for record in plan(ActionSource.POLICY, ending="discarded").records():
        replay.add(record)
    assert len(replay) == 0
