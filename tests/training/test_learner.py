from __future__ import annotations

from collections.abc import Sequence

import pytest

from serl.log.metrics import EpisodeRow, EventRow, UpdateRow
from serl.types import ActionSource, End, Record, Step

from ..support.desk import BATCH, UTD, Desk, Published, chosen_by, count_steps, episodes, states


def test_there_is_one_update_for_each_online_step() -> None:
    desk, sent = Desk(), list(episodes(4))
    desk.transport.send(sent)
    desk.run(10**6)
    assert desk.agent.updates == desk.learner.progress.steps == count_steps(sent)
    assert {len(batch.reward) for batch in desk.agent.batches} == {BATCH * UTD}
    assert desk.learner.progress.trained == {"a": count_steps(sent)}


def test_steps_are_trained_on_in_the_order_of_arrival() -> None:
    desk = Desk(publish_every=1)
    a, b = list(episodes(1, "a")), list(episodes(1, "b"))
    desk.transport.send(a)
    desk.transport.send(b)
    desk.run(10**6)
    seen = [dict(snapshot.trained) for snapshot in desk.transport.snapshots]
    assert seen[5] == {"a": 5}
    assert seen[count_steps(a) + 3] == {"a": count_steps(a), "b": 3}


def test_training_stops_at_the_steps_that_were_asked_for() -> None:
    desk = Desk()
    desk.transport.send(list(episodes(4)))
    desk.run(37)
    assert desk.agent.updates == 37
    assert desk.saved[-1][0] == 37


def test_steps_of_a_script_are_not_counted_and_steps_of_a_human_are() -> None:
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


def test_it_waits_for_enough_steps_then_catches_up() -> None:
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


def test_an_update_sees_the_records_up_to_its_step_however_they_arrived() -> None:
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


def test_steps_from_before_the_start_are_trained_on_before_the_next_record_is_taken() -> None:
    desk = Desk(starts_at=20, publish_every=1)
    desk.transport.send(sent := list(episodes(3)))
    while desk.learner.progress.steps < 20:
        assert desk.learner.step()
    assert desk.learner.progress.received == 20
    while desk.learner.step():
        pass
    assert desk.learner.progress.steps == count_steps(sent)


def test_records_are_accepted_when_they_are_received_and_not_all_at_once() -> None:
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
    assert len(desk.accepted) > taken + 200  # more came while there was work


def test_a_step_without_a_successor_is_no_reason_to_spin() -> None:
    desk = Desk()
    desk.transport.send(list(episodes(1))[:1])
    assert desk.learner.step()
    assert not desk.learner.step()
    assert desk.agent.updates == 0


def test_weights_are_published_at_the_start_then_every_so_many_steps_and_at_the_end() -> None:
    desk = Desk(publish_every=10)
    desk.transport.send(list(episodes(4)))
    desk.run(35)
    snapshots = desk.transport.snapshots
    assert [snapshot.version for snapshot in snapshots] == [1, 2, 3, 4, 5]
    assert [snapshot.weights["w"][0] for snapshot in snapshots] == [0, 10, 20, 30, 35]
    assert [sum(snapshot.trained.values()) for snapshot in snapshots] == [0, 10, 20, 30, 35]


def test_what_is_not_finite_is_never_published_or_saved() -> None:
    desk = Desk(publish_every=10)
    desk.agent.broken = True
    desk.transport.send(list(episodes(4)))
    desk.run(35)
    assert desk.transport.snapshots == []
    texts = {row.text for _, row in desk.metrics.of(EventRow)}
    assert texts == {"weights not published: w is not finite", "no checkpoint: w is not finite"}
    assert not desk.saved


def test_it_prepares_on_demonstrations_once() -> None:
    desk = Desk(warm_up=7)
    for record in episodes(3, source=ActionSource.SCRIPT):
        desk.replay.add(record, prior=True)
    desk.learner.prepare()
    assert desk.agent.updates == 7
    assert desk.agent.normalised is not None
    assert len(desk.agent.normalised) == desk.replay.demonstrations
    assert desk.learner.progress.steps == 0


def test_the_warm_up_draws_the_share_of_demonstrations_that_training_draws() -> None:
    desk = Desk(warm_up=2, prior_share=1.0)
    for record in episodes(2, source=ActionSource.SCRIPT):
        desk.replay.add(record, prior=True)
    for record in episodes(2, actor="b"):  # inherited experience
        desk.replay.add(record)
    desk.learner.prepare()
    assert all(batch.prior.all() for batch in desk.agent.batches)


def test_an_episode_becomes_a_row() -> None:
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


def test_the_state_of_learning_becomes_a_row_every_so_often() -> None:
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
def test_batches_that_are_drawn_ahead_are_the_same(starts_at: int) -> None:
    """Whether the next record is there when an update begins, or comes later."""
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


def test_a_learner_that_draws_ahead_goes_on_exactly() -> None:
    log = list(episodes(4))
    plain, whole, first = Desk(), Desk(prefetch=True), Desk(prefetch=True, checkpoint_every=40)
    for desk in (plain, whole, first):
        desk.transport.send(log)
    for desk in (plain, whole):
        desk.run(10**6)
    first.run(50)
    first.saved.pop()
    _, _, info = first.saved[-1]
    assert info["taken"] == [["a", 1, 41]], "an end among them, none of what was only stored"
    second = Desk(log, prefetch=True)
    second.go_on_from(first)
    second.run(10**6)
    assert states(whole.agent.batches) == states(plain.agent.batches)
    assert states(second.agent.batches) == states(whole.agent.batches[40:])
