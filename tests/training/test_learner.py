from __future__ import annotations

from collections.abc import Sequence

import pytest

from serl.log.metrics import EpisodeRow, EventRow, UpdateRow
from serl.types import ActionSource, End, Record, Step

from ..support.desk import (
    BATCH,
    UTD,
    LearnerBench,
    RecordingTransport,
    chosen_by,
    count_steps,
    episodes,
    states,
)


def test_learner_makes_one_update_per_online_step() -> None:
    bench, sent = LearnerBench(), list(episodes(4))
    bench.transport.send(sent)
    bench.run(10**6)
    assert bench.agent.updates == bench.learner.progress.steps == count_steps(sent)
    assert {len(batch.reward) for batch in bench.agent.batches} == {BATCH * UTD}
    assert bench.learner.progress.trained == {"a": count_steps(sent)}


def test_learner_trains_on_steps_in_order_of_arrival() -> None:
    bench = LearnerBench(publish_every=1)
    a, b = list(episodes(1, "a")), list(episodes(1, "b"))
    bench.transport.send(a)
    bench.transport.send(b)
    bench.run(10**6)
    seen = [dict(snapshot.trained) for snapshot in bench.transport.snapshots]
    assert seen[5] == {"a": 5}
    assert seen[count_steps(a) + 3] == {"a": count_steps(a), "b": 3}


def test_training_stops_at_requested_step() -> None:
    bench = LearnerBench()
    bench.transport.send(list(episodes(4)))
    bench.run(37)
    assert bench.agent.updates == 37
    assert bench.saved[-1][0] == 37


def test_learner_counts_human_steps_but_not_script_steps() -> None:
    bench = LearnerBench()
    script, human = (
        list(episodes(2, "s", ActionSource.SCRIPT)),
        list(episodes(1, "h", ActionSource.HUMAN)),
    )
    bench.transport.send(script + human)
    bench.run(10**6)
    assert bench.learner.progress.received == bench.agent.updates == count_steps(human)
    assert all(batch.prior.all() for batch in bench.agent.batches)
    assert [row.actor for _, row in bench.metrics.rows_of(EpisodeRow)] == ["h"]


def test_learner_waits_for_minimum_steps_then_catches_up() -> None:
    bench = LearnerBench(starts_at=50)
    first, rest = list(episodes(1)), list(episodes(3, first=1))
    bench.transport.send(first)
    bench.run(10**6)
    assert bench.agent.updates == 0
    bench.transport.send(rest)
    bench.run(10**6)
    assert bench.agent.updates == count_steps(first + rest)


def test_update_batches_do_not_depend_on_record_chunking() -> None:
    sent = list(episodes(3))
    together, apart = LearnerBench(), LearnerBench()
    together.transport.send(sent)
    together.run(10**6)
    for record in sent:
        apart.transport.send([record])
        while apart.learner.step():
            pass
    assert len(together.agent.batches) == count_steps(sent)
    assert states(together.agent.batches) == states(apart.agent.batches)


def test_learner_trains_on_initial_steps_before_taking_next_record() -> None:
    bench = LearnerBench(starts_at=20, publish_every=1)
    bench.transport.send(sent := list(episodes(3)))
    while bench.learner.progress.steps < 20:
        assert bench.learner.step()
    assert bench.learner.progress.received == 20
    bench.run(10**6)
    assert bench.learner.progress.steps == count_steps(sent)


def test_learner_accepts_records_in_bounded_chunks() -> None:
    class Endless(RecordingTransport):
        def receive(self) -> Sequence[Record]:
            return next(batches)

    sent = list(episodes(100))
    batches = (sent[start : start + 200] for start in range(0, len(sent), 200))
    bench = LearnerBench(transport=Endless(), period_s=1.0)
    while bench.learner.progress.steps < 1000:
        assert bench.learner.step()
        taken = bench.learner.progress.taken.total()
        assert bench.accepted == sent[: len(bench.accepted)]
        assert taken <= len(bench.accepted) <= taken + 256 + 200
    assert len(bench.accepted) > taken + 200  # more records arrived during training


def test_learner_idles_while_step_has_no_successor() -> None:
    bench = LearnerBench()
    bench.transport.send(list(episodes(1))[:1])
    assert bench.learner.step()
    assert not bench.learner.step()
    assert bench.agent.updates == 0


def test_weights_are_published_at_start_at_interval_and_at_end() -> None:
    bench = LearnerBench(publish_every=10)
    bench.transport.send(list(episodes(4)))
    bench.run(35)
    snapshots = bench.transport.snapshots
    assert [snapshot.version for snapshot in snapshots] == [1, 2, 3, 4, 5]
    assert [snapshot.weights["w"][0] for snapshot in snapshots] == [0, 10, 20, 30, 35]
    assert [sum(snapshot.trained.values()) for snapshot in snapshots] == [0, 10, 20, 30, 35]


def test_weights_that_are_not_finite_are_neither_published_nor_saved() -> None:
    bench = LearnerBench(publish_every=10)
    bench.agent.broken = True
    bench.transport.send(list(episodes(4)))
    bench.run(35)
    assert bench.transport.snapshots == []
    texts = {row.text for _, row in bench.metrics.rows_of(EventRow)}
    assert texts == {"weights not published: w is not finite", "no checkpoint: w is not finite"}
    assert not bench.saved


def test_learner_warms_up_on_demonstrations() -> None:
    bench = LearnerBench(warm_up=7)
    for record in episodes(3, source=ActionSource.SCRIPT):
        bench.replay.add(record, prior=True)
    bench.learner.prepare()
    assert bench.agent.updates == 7
    assert bench.agent.normalised is not None
    assert len(bench.agent.normalised) == bench.replay.demonstrations
    assert bench.learner.progress.steps == 0


def test_warm_up_uses_training_share_of_demonstrations() -> None:
    bench = LearnerBench(warm_up=2, prior_share=1.0)
    for record in episodes(2, source=ActionSource.SCRIPT):
        bench.replay.add(record, prior=True)
    for record in episodes(2, actor="b"):  # inherited experience
        bench.replay.add(record)
    bench.learner.prepare()
    assert all(batch.prior.all() for batch in bench.agent.batches)


def test_each_episode_gives_one_metrics_row() -> None:
    bench = LearnerBench()
    records = list(episodes(2))
    for index in (3, 4, 9):
        step = records[index]
        assert isinstance(step, Step)
        records[index] = chosen_by(step, ActionSource.HUMAN)
    bench.transport.send(records)
    bench.run(10**6)
    assisted, alone = (row for _, row in bench.metrics.rows_of(EpisodeRow))
    end = next(record for record in records if isinstance(record, End))
    assert (assisted.actor, assisted.episode, assisted.length) == ("a", 0, end.key.index)
    assert (assisted.human_steps, assisted.interventions, assisted.assisted) == (3, 2, True)
    assert assisted.duration_s == pytest.approx(end.key.index / 10)
    assert (assisted.reason, assisted.success) == (end.reason, end.success)
    assert (alone.human_steps, alone.interventions, alone.assisted) == (0, 0, False)


def test_update_metrics_are_written_at_interval() -> None:
    bench = LearnerBench(metrics_every=20)
    bench.transport.send(sent := list(episodes(4)))
    bench.run(50)
    steps, rows = zip(*bench.metrics.rows_of(UpdateRow), strict=True)
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
    plain = LearnerBench(starts_at=starts_at)
    plain.transport.send(records)
    plain.run(10**6)
    ahead = LearnerBench(starts_at=starts_at, prefetch=True)
    for start in range(0, len(records), 7):
        ahead.transport.send(records[start : start + 7])
        ahead.run(10**6)
    assert states(ahead.agent.batches) == states(plain.agent.batches)
    assert ahead.learner.progress.taken == plain.learner.progress.taken
    assert [row.length for _, row in ahead.metrics.rows_of(EpisodeRow)] == [
        row.length for _, row in plain.metrics.rows_of(EpisodeRow)
    ]
