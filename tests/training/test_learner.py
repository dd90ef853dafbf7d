from __future__ import annotations

from collections.abc import Sequence

import pytest

from serl.log.metrics import EpisodeRow, EventRow, UpdateRow
from serl.types import ActionSource, End, Record, Step

from ..support.desk import BATCH, UTD, Desk, Published, chosen_by, count_steps, episodes, states


def test_learner_makes_one_update_per_online_step() -> None:
    desk, sent = Desk(), list(episodes(4))
    desk.transport.send(sent)
    desk.run(10**6)
    assert desk.agent.updates == desk.learner.progress.steps == count_steps(sent)
    assert {len(batch.reward) for batch in desk.agent.batches} == {BATCH * UTD}
    assert desk.learner.progress.trained == {"a": count_steps(sent)}


def test_learner_trains_on_steps_in_order_of_arrival() -> None:
    desk = Desk(publish_every=1)
    a, b = list(episodes(1, "a")), list(episodes(1, "b"))
    desk.transport.send(a)
    desk.transport.send(b)
    desk.run(10**6)
    seen = [dict(snapshot.trained) for snapshot in desk.transport.snapshots]
    assert seen[5] == {"a": 5}
    assert seen[count_steps(a) + 3] == {"a": count_steps(a), "b": 3}


def test_training_stops_at_requested_step() -> None:
    desk = Desk()
    desk.transport.send(list(episodes(4)))
    desk.run(37)
    assert desk.agent.updates == 37
    assert desk.saved[-1][0] == 37


def test_learner_counts_human_steps_but_not_script_steps() -> None:
    desk = Desk()
    script, human = (
        list(episodes(2, "s", ActionSource.SCRIPT)),
        list(episodes(1, "h", ActionSource.HUMAN)),
    )
    desk.transport.send(script + human)
    desk.run(10**6)
    assert desk.learner.progress.received == desk.agent.updates == count_steps(human)
    assert all(batch.prior.all() for batch in desk.agent.batches)
    assert [row.actor for _, row in desk.metrics.of(EpisodeRow)] == ["h"]


def test_learner_waits_for_minimum_steps_then_catches_up() -> None:
    desk = Desk(starts_at=50)
    first, rest = list(episodes(1)), list(episodes(3, first=1))
    desk.transport.send(first)
    while desk.learner.step():
        pass
    assert desk.agent.updates == 0
    desk.transport.send(rest)
    while desk.learner.step():
        pass
    assert desk.agent.updates == count_steps(first + rest)


def test_update_batches_do_not_depend_on_record_chunking() -> None:
    sent = list(episodes(3))
    together, apart = Desk(), Desk()
    together.transport.send(sent)
    while together.learner.step():
        pass
    for record in sent:
        apart.transport.send([record])
        while apart.learner.step():
            pass
    assert len(together.agent.batches) == count_steps(sent)
    assert states(together.agent.batches) == states(apart.agent.batches)


def test_learner_trains_on_initial_steps_before_taking_next_record() -> None:
    desk = Desk(starts_at=20, publish_every=1)
    desk.transport.send(sent := list(episodes(3)))
    while desk.learner.progress.steps < 20:
        assert desk.learner.step()
    assert desk.learner.progress.received == 20
    while desk.learner.step():
        pass
    assert desk.learner.progress.steps == count_steps(sent)


def test_learner_accepts_records_in_bounded_chunks() -> None:
    class Endless(Published):
        def receive(self) -> Sequence[Record]:
            return next(batches)

    sent = list(episodes(100))
    batches = (sent[start : start + 200] for start in range(0, len(sent), 200))
    desk = Desk(transport=Endless(), period_s=1.0)
    while desk.learner.progress.steps < 1000:
        assert desk.learner.step()
        taken = desk.learner.progress.taken.total()
        assert desk.accepted == sent[: len(desk.accepted)]
        assert taken <= len(desk.accepted) <= taken + 256 + 200
    assert len(desk.accepted) > taken + 200  # more records arrived during training


def test_learner_idles_while_step_has_no_successor() -> None:
    desk = Desk()
    desk.transport.send(list(episodes(1))[:1])
    assert desk.learner.step()
    assert not desk.learner.step()
    assert desk.agent.updates == 0


def test_weights_are_published_at_start_at_interval_and_at_end() -> None:
    desk = Desk(publish_every=10)
    desk.transport.send(list(episodes(4)))
    desk.run(35)
    snapshots = desk.transport.snapshots
    assert [snapshot.version for snapshot in snapshots] == [1, 2, 3, 4, 5]
    assert [snapshot.weights["w"][0] for snapshot in snapshots] == [0, 10, 20, 30, 35]
    assert [sum(snapshot.trained.values()) for snapshot in snapshots] == [0, 10, 20, 30, 35]


def test_weights_that_are_not_finite_are_neither_published_nor_saved() -> None:
    desk = Desk(publish_every=10)
    desk.agent.broken = True
    desk.transport.send(list(episodes(4)))
    desk.run(35)
    assert desk.transport.snapshots == []
    texts = {row.text for _, row in desk.metrics.of(EventRow)}
    assert texts == {"weights not published: w is not finite", "no checkpoint: w is not finite"}
    assert not desk.saved


def test_learner_warms_up_on_demonstrations() -> None:
    desk = Desk(warm_up=7)
    for record in episodes(3, source=ActionSource.SCRIPT):
        desk.replay.add(record, prior=True)
    desk.learner.prepare()
    assert desk.agent.updates == 7
    assert desk.agent.normalised is not None
    assert len(desk.agent.normalised) == desk.replay.demonstrations
    assert desk.learner.progress.steps == 0


def test_warm_up_uses_training_share_of_demonstrations() -> None:
    desk = Desk(warm_up=2, prior_share=1.0)
    for record in episodes(2, source=ActionSource.SCRIPT):
        desk.replay.add(record, prior=True)
    for record in episodes(2, actor="b"):  # inherited experience
        desk.replay.add(record)
    desk.learner.prepare()
    assert all(batch.prior.all() for batch in desk.agent.batches)


def test_each_episode_gives_one_metrics_row() -> None:
    desk = Desk()
    records = list(episodes(2))
    for index in (3, 4, 9):
        step = records[index]
        assert isinstance(step, Step)
        records[index] = chosen_by(step, ActionSource.HUMAN)
    desk.transport.send(records)
    desk.run(10**6)
    assisted, alone = (row for _, row in desk.metrics.of(EpisodeRow))
    end = next(record for record in records if isinstance(record, End))
    assert (assisted.actor, assisted.episode, assisted.length) == ("a", 0, end.key.index)
    assert (assisted.human_steps, assisted.interventions, assisted.assisted) == (3, 2, True)
    assert assisted.duration_s == pytest.approx(end.key.index / 10)
    assert (assisted.reason, assisted.success) == (end.reason, end.success)
    assert (alone.human_steps, alone.interventions, alone.assisted) == (0, 0, False)


def test_update_metrics_are_written_at_interval() -> None:
    desk = Desk(metrics_every=20)
    desk.transport.send(sent := list(episodes(4)))
    desk.run(50)
    steps, rows = zip(*desk.metrics.of(UpdateRow), strict=True)
    assert steps == (20, 40)
    assert [row.q for row in rows] == [20.0, 40.0]
    assert rows[0].critic_loss == 0.5
    assert rows[0].actor_loss is None
    assert rows[1].lag == count_steps(sent) - 40
    assert rows[1].utd == pytest.approx(UTD * 40 / count_steps(sent))
    assert rows[1].weights_version == 5


@pytest.mark.parametrize("starts_at", [0, 30])
def test_prefetched_batches_equal_direct_batches(starts_at: int) -> None:
    """Check that the arrival time of the next record does not change a prefetched batch."""
    records = list(episodes(4))
    plain = Desk(starts_at=starts_at)
    plain.transport.send(records)
    plain.run(10**6)
    ahead = Desk(starts_at=starts_at, prefetch=True)
    for start in range(0, len(records), 7):
        ahead.transport.send(records[start : start + 7])
        ahead.run(10**6)
    assert states(ahead.agent.batches) == states(plain.agent.batches)
    assert ahead.learner.progress.taken == plain.learner.progress.taken
    assert [row.length for _, row in ahead.metrics.of(EpisodeRow)] == [
        row.length for _, row in plain.metrics.of(EpisodeRow)
    ]


def test_prefetching_learner_resumes_exactly() -> None:
    log = list(episodes(4))
    plain, whole, first = Desk(), Desk(prefetch=True), Desk(prefetch=True, checkpoint_every=40)
    for desk in (plain, whole, first):
        desk.transport.send(log)
    for desk in (plain, whole):
        desk.run(10**6)
    first.run(50)
    first.saved.pop()
    _, _, info = first.saved[-1]
    assert info["taken"] == [["a", 1, 41]], (
        "the end record counts, records that were only stored do not"
    )
    second = Desk(log, prefetch=True)
    second.go_on_from(first)
    second.run(10**6)
    assert states(whole.agent.batches) == states(plain.agent.batches)
    assert states(second.agent.batches) == states(whole.agent.batches[40:])
