"""Replay's transition boundaries, strata and ring buffer, compared with a plain model."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serl.errors import BadInput, SpecMismatch
from serl.specs import ArraySpec, ObservationSpec
from serl.training.replay import Replay
from serl.types import ActionSource, Batch, End, Outcome, Record, Step

from ..support.plans import FAULT, GAMMA, SPEC, Plan, fill, plan


@dataclass
class Model:
    """Reference model of replay's contents; frames are identified by their number."""

    capacity: int
    prior: set[int] = field(default_factory=set)
    closed: dict[int, tuple[float, bool]] = field(default_factory=dict)  # reward, terminated
    pinned: int = 0
    stored: list[int] = field(default_factory=list)  # online frames in order
    open: dict[tuple[str, bool], Step] = field(default_factory=dict)
    dropped: int = 0

    def held(self) -> set[int]:
        online = set(self.stored[-(self.capacity - self.pinned) :])
        demonstrations = {name for name in self.closed if name not in self.stored}
        return {name for name in self.closed if name in online} | demonstrations

    def add(self, record: Record, prior: bool) -> None:
        stream = (record.key.actor, prior)
        before = self.open.pop(stream, None)
        name = int(record.observation.state["name"][0])
        fault = isinstance(record, End) and record.text == FAULT
        follows = (
            before is not None
            and not fault
            and (
                record.key.epoch,
                record.key.episode,
                record.key.index,
            )
            == (before.key.epoch, before.key.episode, before.key.index + 1)
        )
        acts = isinstance(record, Step) and (prior or record.source is not ActionSource.SCRIPT)
        if follows or acts:
            if prior:
                self.pinned += 1
            else:
                self.stored.append(name)
        window = self.stored[-(self.capacity - self.pinned) :]
        if before is not None:
            past = int(before.observation.state["name"][0])
            if follows and (prior or past in window):
                self.closed[past] = before.reward, before.terminated
                if prior or before.source is ActionSource.HUMAN:
                    self.prior.add(past)
            else:
                self.dropped += 1
        lost = [
            key
            for key, step in self.open.items()
            if not key[1] and int(step.observation.state["name"][0]) not in window
        ]
        for key in lost:
            del self.open[key]
            self.dropped += 1
        if isinstance(record, Step) and acts:
            self.open[stream] = record

    def expected(self, name: int, n_step: int) -> tuple[float, float, int]:
        reward, discount, held, first = 0.0, 1.0, self.held(), name
        for _ in range(n_step):
            value, terminated = self.closed[name]
            reward += discount * value
            discount *= GAMMA
            name += 1
            if terminated:
                return reward, 0.0, name
            if name not in held or (name in self.prior) != (first in self.prior):
                break
        return reward, discount, name


def check(replay: Replay, model: Model, n_step: int) -> None:
    held = model.held()
    assert len(replay) == len(held)
    assert replay.dropped == model.dropped
    if not held:
        return
    batch = replay.sample(40)
    for row in range(40):
        name = int(batch.action[row, 0])
        assert name in held
        reward, discount, final = model.expected(name, n_step)
        assert batch.reward[row] == pytest.approx(reward)
        assert batch.discount[row] == pytest.approx(discount)
        assert batch.prior[row] == (name in model.prior)
        for state, images, shown in (
            (batch.state, batch.images, name),
            (batch.next_state, batch.next_images, final),
        ):
            assert state[row].tolist() == [shown, -shown, 2 * shown]
            assert (images["wrist"][row] == shown % 256).all()


def episodes(endings: list[str]) -> st.SearchStrategy[list[tuple[list[ActionSource], str]]]:
    sources = st.lists(st.sampled_from(ActionSource), min_size=1, max_size=6)
    return st.lists(st.tuples(sources, st.sampled_from(endings)), max_size=6)


ENDINGS = ["terminated", "truncated", "broken off", FAULT]


@settings(max_examples=80, deadline=None)
@given(
    demonstrations=episodes(ENDINGS),
    streams=st.tuples(episodes(ENDINGS), episodes(ENDINGS)),
    turns=st.lists(st.integers(0, 1), max_size=80),
    spare=st.integers(2, 25),
    n_step=st.integers(1, 4),
    restart=st.integers(0, 6),
)
def test_no_transition_crosses_an_episode_boundary(
    demonstrations: list[tuple[list[ActionSource], str]],
    streams: tuple[list[tuple[list[ActionSource], str]], ...],
    turns: list[int],
    spare: int,
    n_step: int,
    restart: int,
) -> None:
    """Check boundaries with two interleaved actors, a wrapping ring and one actor restart."""
    names = iter(range(0, 100_000, 100))
    shown = [Plan(*each, next(names), number) for number, each in enumerate(demonstrations)]
    demos = [record for each in shown for record in each.records()]
    queues = []
    for actor, stream in zip("ab", streams, strict=True):
        plans = [
            Plan(*each, next(names), number % 3, actor, epoch=number // 3 + (number > restart))
            for number, each in enumerate(stream)
        ]
        queues.append([record for each in plans for record in each.records()])
    capacity = len(demos) + spare
    replay, model = Replay(SPEC, capacity, GAMMA, n_step), Model(capacity)
    for record in demos:
        replay.add(record, prior=True)
        model.add(record, prior=True)
    check(replay, model, n_step)
    pinned = model.held()
    for turn in [*turns, *[0] * len(queues[0]), *[1] * len(queues[1])]:
        if queues[turn]:
            record = queues[turn].pop(0)
            replay.add(record)
            model.add(record, prior=False)
            if isinstance(record, End):
                check(replay, model, n_step)
    check(replay, model, n_step)
    assert pinned <= model.held()
    assert replay.demonstrations == len(pinned)


def by_name(batch: Batch) -> dict[int, int]:
    """Map each step's name to its row in a batch that is large enough to hold all steps."""
    return {int(name): row for row, name in enumerate(batch.action[:, 0])}


@pytest.mark.parametrize("terminates", [False, True])
def test_last_step_before_takeover_time_limit_or_end_keeps_its_successor(
    terminates: bool,
) -> None:
    human, policy, script = ActionSource.HUMAN, ActionSource.POLICY, ActionSource.SCRIPT
    replay = fill(
        Replay(SPEC, 100, GAMMA, time_limit_terminates=terminates),
        plan(policy, human, policy, first=10),
        plan(policy, ending="terminated", first=20, number=1),
        plan(policy, script, script, policy, first=30, number=2),
        plan(policy, ending="operator", first=40, number=3),
    )
    batch = replay.sample(400)
    rows = by_name(batch)
    assert sorted(rows) == [10, 11, 12, 20, 30, 33, 40]
    successor = {name: int(batch.next_state[row, 0]) for name, row in rows.items()}
    assert successor == {name: name + 1 for name in rows}
    discount = {name: float(batch.discount[row]) for name, row in rows.items()}
    final = {12, 20, 33} if terminates else {20}
    assert discount == {name: 0.0 if name in final else GAMMA for name in rows}


def test_replay_stores_zero_action_while_guard_held_arm() -> None:
    replay = Replay(SPEC, 100, GAMMA)
    first, held, end = plan(ActionSource.POLICY, ActionSource.POLICY, first=10).records()
    assert isinstance(held, Step)
    for record in (first, replace(held, action=np.zeros(1, np.float32)), end):
        replay.add(record)
    assert {float(action) for action in replay.sample(100).action[:, 0]} == {10.0, 0.0}


def test_step_before_a_gap_gets_no_successor() -> None:
    records = list(plan(*[ActionSource.POLICY] * 4).records())
    replay = Replay(SPEC, 100, GAMMA)
    for record in (*records[:2], *records[3:]):  # step 2 was lost in transport
        replay.add(record)
    assert sorted(by_name(replay.sample(200))) == [0, 3]
    assert replay.dropped == 1


def test_replay_counts_demonstration_online_and_human_steps() -> None:
    human, policy, script = ActionSource.HUMAN, ActionSource.POLICY, ActionSource.SCRIPT
    replay = fill(Replay(SPEC, 8, GAMMA), plan(script, script, first=90), prior=True)
    fill(replay, *(plan(policy, human, script, first=10 * i, number=i) for i in range(5)))
    assert replay.demonstrations == 2
    assert replay.online == 10
    assert replay.human == 5
    assert len(replay) < 12


@pytest.mark.parametrize("share", [0.0, 0.25, 0.5, 1.0])
def test_equal_batch_slices_hold_equal_shares_of_strata(share: float) -> None:
    policy, human = ActionSource.POLICY, ActionSource.HUMAN
    replay = fill(Replay(SPEC, 4000, GAMMA), plan(human, human, first=5000), prior=True)
    fill(replay, plan(*[policy] * 2000, first=0), plan(human, first=3000, number=1))
    prior = replay.sample(256, share).prior.reshape(4, 64)
    # One online step in 2001 is a human step and therefore prior too.
    assert np.abs(prior.sum(1) - 64 * share).max() <= 3


def test_strata_are_sampled_uniformly() -> None:
    policy, human = ActionSource.POLICY, ActionSource.HUMAN
    replay = fill(Replay(SPEC, 100, GAMMA, seed=1), plan(human, human, first=50), prior=True)
    fill(replay, plan(policy, human, policy, policy, first=0))
    names, counts = np.unique(replay.sample(12_000).action, return_counts=True)
    share = dict(zip(names.astype(int).tolist(), (counts / 12_000).tolist(), strict=True))
    of_prior, of_online = 0.5 / 3, 0.5 / 4
    expected = dict.fromkeys((50, 51), of_prior) | dict.fromkeys((0, 2, 3), of_online)
    assert share == pytest.approx(expected | {1: of_prior + of_online}, abs=0.02)


def test_online_part_of_batch_contains_no_demonstrations() -> None:
    """Check the online share; sampling it from all transitions once gave 94 % demonstrations."""
    shown, policy = [ActionSource.SCRIPT] * 780, [ActionSource.POLICY] * 60
    replay = fill(Replay(SPEC, 900, GAMMA), plan(*shown, first=1000), prior=True)
    for number in range(4):  # the ring wraps
        fill(replay, plan(*policy, first=100 * number, number=number))
        assert (replay.sample(1000, 0.5).action >= 1000).sum() == 500
        assert not (replay.sample(1000, 0.0).action >= 1000).any()
    assert len(replay) == len(replay.states())


def test_unassisted_policy_success_is_prior_until_overwritten() -> None:
    policy, human = ActionSource.POLICY, ActionSource.HUMAN
    replay = Replay(SPEC, 14, GAMMA, n_step=3, imitate_successes=True)
    fill(replay, plan(human, first=50), prior=True)
    fill(replay, plan(policy, policy, ending="terminated", first=1))

    def prior() -> set[int]:
        batch = replay.sample(400)
        return {int(name) for name in batch.action[batch.prior, 0]}

    assert prior() == {50, 1, 2}
    assert {1, 2} <= {int(name) for name in replay.sample(400, 0.0).action[:, 0]}, (
        "prior successes stay in the online stratum"
    )
    fill(replay, plan(policy, policy, first=10, number=1))
    fill(replay, plan(policy, human, ending="terminated", first=20, number=2))
    assert prior() == {50, 1, 2, 21}, "failures and assisted successes are not prior"
    fill(replay, plan(*[policy] * 6, first=30, number=3))
    assert prior() == {50, 21}
    lost = list(plan(policy, human, policy, ending="terminated", first=40, number=4).records())
    for record in lost[:1] + lost[2:]:
        replay.add(record)
    assert not prior() & {40, 42}, "an episode with a lost step is not prior"
    plain = fill(Replay(SPEC, 14, GAMMA), plan(policy, ending="terminated"))
    assert not plain.sample(8).prior.any()


def test_empty_stratum_is_replaced_by_the_other() -> None:
    alone = fill(Replay(SPEC, 100, GAMMA), plan(ActionSource.POLICY))
    assert not alone.sample(8).prior.any()
    shown = fill(Replay(SPEC, 100, GAMMA), plan(ActionSource.SCRIPT), prior=True)
    assert shown.sample(8).prior.all()
    with pytest.raises(BadInput, match="empty"):
        Replay(SPEC, 100, GAMMA).sample(1)


def test_demonstrations_survive_ring_overwrites_and_give_statistics() -> None:
    replay = fill(Replay(SPEC, 12, GAMMA), plan(*[ActionSource.SCRIPT] * 3, first=500), prior=True)
    for i in range(20):
        fill(replay, plan(ActionSource.POLICY, ActionSource.POLICY, first=10 * i, number=i))
    rows = by_name(replay.sample(500))
    assert {500, 501, 502} <= rows.keys()
    assert min(set(rows) - {500, 501, 502}) >= 160
    assert replay.prior_states()[:, 0].tolist() == [500, 501, 502]


def test_demonstrations_must_precede_online_steps_and_fit_capacity() -> None:
    replay = fill(Replay(SPEC, 10, GAMMA), plan(ActionSource.POLICY))
    with pytest.raises(BadInput, match="before the first online step"):
        fill(replay, plan(ActionSource.HUMAN, number=1), prior=True)
    with pytest.raises(BadInput, match="do not fit in capacity 3"):
        fill(Replay(SPEC, 3, GAMMA), plan(*[ActionSource.HUMAN] * 3), prior=True)
    full = fill(Replay(SPEC, 3, GAMMA), plan(*[ActionSource.HUMAN] * 2), prior=True)
    with pytest.raises(BadInput, match="do not fit in capacity 3"):
        fill(full, plan(ActionSource.POLICY))


def test_equal_records_and_sampler_state_give_equal_batches() -> None:
    plans = [
        plan(ActionSource.POLICY, ActionSource.HUMAN, first=10 * i, number=i) for i in range(9)
    ]
    original = fill(Replay(SPEC, 20, GAMMA, seed=1), *plans)
    original.sample(7)
    rebuilt = fill(Replay(SPEC, 20, GAMMA, seed=2), *plans)
    rebuilt.load_sampler_state(original.sampler_state())
    for _ in range(3):
        left, right = original.sample(31), rebuilt.sample(31)
        assert np.array_equal(left.action, right.action)
        assert np.array_equal(left.next_state, right.next_state)
    state = original.sampler_state()
    for wrong in ({}, {"generator": state["generator"][:5]}, state | {"more": np.zeros(1)}):
        with pytest.raises(SpecMismatch, match="sampler"):
            rebuilt.load_sampler_state(wrong)


def test_transition_with_two_128_px_cameras_takes_less_than_100_kb() -> None:
    image = ArraySpec(shape=(128, 128, 3), dtype="uint8")
    observation = ObservationSpec(
        state={"state": ArraySpec(shape=(20,))}, images={"front": image, "wrist": image}
    )
    spec = SPEC.model_copy(update={"observation": observation})
    tracemalloc.start()
    replay = Replay(spec, 1000, GAMMA, n_step=3, crop_px=4, stacked=2)
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept / replay.capacity < 100_000


def evaluated(given: dict[int, int], number: int = 0, start_s: float = 0.0) -> Iterator[Record]:
    """Yield ten steps at 10 Hz, named from 10 * number, with feedback at the given indices."""
    for record in Plan([ActionSource.POLICY] * 10, "truncated", 10 * number, number).records():
        index = record.key.index
        record = replace(record, monotonic_s=start_s + 0.1 * index)
        if isinstance(record, Step) and index in given:
            named = Outcome().evaluated(given[index]).provenance
            record = replace(record, reward_provenance=named)
        yield record


def credits(replay: Replay) -> dict[int, list[float]]:
    """Return weight and weighted sum of the feedback of each step that has any, by name."""
    batch = replay.sample(500)
    assert batch.feedback is not None
    rows = zip(batch.action[:, 0].tolist(), batch.feedback.tolist(), strict=True)
    return {int(name): row for name, row in rows if row[0]}


def test_feedback_is_credited_to_earlier_steps_by_delay() -> None:
    replay = Replay(SPEC, 16, GAMMA, feedback_delay_s=(0.25, 0.55))
    for record in evaluated({6: 1, 8: -1}):
        replay.add(record)
    third, sixth = 1 / 3, 1 / 6
    expected = {
        1: [sixth, sixth],  # 0.5 to 0.6 s before the end of step 6
        2: [third, third],
        3: [third + sixth, third - sixth],
        4: [sixth + third, sixth - third],
        5: [third, -third],
        6: [sixth, -sixth],
    }
    found = credits(replay)
    assert found == {name: pytest.approx(row, abs=1e-5) for name, row in expected.items()}
    for record in evaluated({0: 1, 3: 1}, number=1, start_s=1.1):
        replay.add(record)
    found = credits(replay)
    assert set(found) == {6, 10, 11}, "feedback stays in its episode; step 6 is still in the ring"
    assert found[10] == pytest.approx([third, third], abs=1e-5)
    replay = Replay(SPEC, 16, GAMMA)
    for record in evaluated({6: 1}):
        replay.add(record)
    assert replay.sample(4).feedback is None
