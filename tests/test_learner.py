from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import count
from typing import Any

import numpy as np
import pytest

from serl.agents.agent import State
from serl.assembly import make_spec
from serl.errors import CorruptData, SerlError
from serl.learner import Learner, LearnerConfig, restore_progress
from serl.loop import EpisodeKey
from serl.metrics import EpisodeRow, EventRow, Row, UpdateRow
from serl.policy import Random
from serl.replay import Replay
from serl.testing import FakeRobot, FakeTask, episode
from serl.transport import InProcess, Snapshot
from serl.types import Action, Array, Batch, End, Observation, Record, Source, Step

BATCH, UTD = 8, 2


class Counting:
    """An agent that counts its updates; its weights are the count."""

    def __init__(self) -> None:
        self.updates = 0
        self.batches: list[Batch] = []
        self.normalised: Array | None = None
        self.broken = False
        self.skipped = 0

    def act(self, observation: Observation, explore: bool) -> Action:
        return np.zeros(2, np.float32)

    def fit_normaliser(self, states: Array) -> None:
        self.normalised = states

    def update(self, batch: Batch) -> dict[str, float]:
        self.updates += 1
        self.batches.append(batch)
        return {"q": float(self.updates), "critic_loss": 0.5, "skipped": self.skipped}

    def actor_weights(self) -> State:
        return {"w": np.full(1, np.nan if self.broken else self.updates, np.float32)}

    def load_actor_weights(self, weights: State) -> None:
        self.updates = int(weights["w"][0])

    def state_dict(self) -> State:
        return {"updates": np.array(self.updates), **self.actor_weights()}

    def load_state_dict(self, state: State) -> None:
        self.updates = int(state["updates"])


class Rows:
    """Metrics in memory."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, Row]] = []

    def write(self, steps: int, row: Row) -> None:
        self.rows.append((steps, row))

    def of(self, kind: type[Row]) -> list[tuple[int, Any]]:
        return [(steps, row) for steps, row in self.rows if isinstance(row, kind)]


class Published(InProcess):
    """A transport that keeps every snapshot."""

    def __init__(self) -> None:
        super().__init__()
        self.snapshots: list[Snapshot] = []

    def publish(self, snapshot: Snapshot) -> None:
        self.snapshots.append(snapshot)
        super().publish(snapshot)


class Desk:
    """A learner with everything around it at hand."""

    def __init__(
        self,
        log: Iterable[Record] = (),
        transport: Published | None = None,
        period_s: float = 0.0,
        **settings: Any,
    ) -> None:
        self.accepted: list[Record] = []
        self.agent, self.transport, self.metrics = Counting(), transport or Published(), Rows()
        clock = count(step=period_s)
        self.replay = Replay(make_spec(FakeTask()), 5000, discount=0.9)
        self.saved: list[tuple[int, dict[str, State], dict[str, Any]]] = []
        self.learner = Learner(
            self.agent,
            self.replay,
            self.transport,
            LearnerConfig(**{"publish_every": 10, "metrics_every": 20, **settings}),
            BATCH,
            UTD,
            rate_hz=10.0,
            metrics=self.metrics,
            save=lambda step, arrays, info: self.saved.append((step, arrays, info)),
            accept=self.accepted.extend,
            log=log,
            monotonic_s=lambda: next(clock),
        )

    def run(self, steps: int) -> None:
        """Until so many steps are trained on, or nothing more can be."""
        idle = 0

        def stuck() -> bool:
            nonlocal idle
            idle += 1
            return idle > 1000

        self.learner.run(steps, stuck, idle_s=0.0)

    def go_on_from(self, other: Desk) -> None:
        """From the last checkpoint of another one."""
        _, arrays, info = other.saved[-1]
        self.learner.resume(arrays, info, sum(count for _, _, count in info["taken"]))


def episodes(
    count: int, actor: str = "a", source: Source = Source.POLICY, first: int = 0
) -> Iterator[Record]:
    """Random episodes of an actor; each of 30 steps or fewer."""
    robot, task = FakeRobot(), FakeTask()
    for number in range(first, first + count):
        key = EpisodeKey("run", actor, 1, number)
        policy = Random(robot.action_spec, number)
        for record in episode(robot, task, policy, number, key):
            if isinstance(record, Step) and source is not Source.POLICY:
                record = _chosen_by(record, source)
            yield record


def _chosen_by(step: Step, source: Source) -> Step:
    return Step(**{name: getattr(step, name) for name in Step.__slots__} | {"source": source})


def count_steps(records: Iterable[Record]) -> int:
    return sum(isinstance(record, Step) for record in records)


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
    script, human = list(episodes(2, "s", Source.SCRIPT)), list(episodes(1, "h", Source.HUMAN))
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


def states(batches: Sequence[Batch]) -> list[list[float]]:
    return [batch.state.ravel().tolist() for batch in batches]


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
    for record in episodes(3, source=Source.SCRIPT):
        desk.replay.add(record, prior=True)
    desk.learner.prepare()
    assert desk.agent.updates == 7
    assert desk.agent.normalised is not None
    assert len(desk.agent.normalised) == desk.replay.demonstrations
    assert desk.learner.progress.steps == 0


def test_an_episode_becomes_a_row() -> None:
    desk = Desk()
    records = list(episodes(2))
    for index in (3, 4, 9):
        step = records[index]
        assert isinstance(step, Step)
        records[index] = _chosen_by(step, Source.HUMAN)
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


def test_checkpoints_hold_what_the_log_does_not() -> None:
    desk = Desk(checkpoint_every=25)
    desk.transport.send(list(episodes(4)))
    desk.run(60)
    assert [step for step, _, _ in desk.saved] == [25, 50, 60]
    _, arrays, info = desk.saved[1]
    assert arrays.keys() == {"agent", "actor", "replay"}
    assert info["trained"] == {"a": 50}
    assert info["taken"] == [["a", 1, 51]]  # an end among them
    assert info["version"] == 6  # at 0, 10, 20, ...
    desk.learner.checkpoint()
    assert len(desk.saved) == 3  # nothing happened since


def test_a_successor_goes_on_as_if_nothing_had_happened() -> None:
    log = list(episodes(4))
    whole, first = Desk(starts_at=30), Desk(starts_at=30, checkpoint_every=40)
    for desk in (whole, first):
        desk.transport.send(log)
    whole.run(10**6)
    first.run(50)
    first.saved.pop()  # killed before the last one

    second = Desk(log, starts_at=30)
    second.go_on_from(first)
    assert second.learner.progress.steps == second.agent.updates == 40
    assert not second.accepted
    second.run(10**6)
    assert states(second.agent.batches) == states(whole.agent.batches[40:])
    assert second.learner.progress.trained == {"a": count_steps(log)}
    assert second.learner.progress.taken == {("a", 1): len(log)}
    assert second.replay.online == count_steps(log)
    assert second.transport.snapshots[0].version > first.transport.snapshots[-1].version
    lengths = [row.length for _, row in whole.metrics.of(EpisodeRow)]
    assert [row.length for _, row in second.metrics.of(EpisodeRow)] == lengths[1:]


def test_steps_that_were_taken_but_not_trained_on_are_trained_on_by_a_successor() -> None:
    log = list(episodes(4))
    first = Desk(starts_at=30, checkpoint_every=10)
    first.transport.send(log)
    first.run(10)  # of 30 that were taken
    assert first.learner.progress.received == 30
    second = Desk(log, starts_at=30)
    second.go_on_from(first)
    second.run(10**6)
    assert second.agent.updates == count_steps(log)


def test_a_log_without_a_checkpoint_is_learned_from_anew() -> None:
    desk = Desk(log := list(episodes(2)))
    desk.transport.send(rest := list(episodes(1, first=2)))
    desk.run(10**6)
    assert desk.learner.progress.taken == {("a", 1): len(log + rest)}
    assert desk.agent.updates == count_steps(log + rest)
    assert desk.accepted == rest


def test_versions_go_beyond_those_of_a_predecessor_that_left_no_checkpoint() -> None:
    newer = [
        Step(**{name: getattr(r, name) for name in Step.__slots__} | {"policy_version": 70})
        for r in episodes(1)
        if isinstance(r, Step)
    ]
    desk = Desk(newer)
    desk.run(10**6)
    assert desk.transport.snapshots[-1].version > 70


def test_other_demonstrations_than_the_checkpoints_are_refused() -> None:
    first, second = Desk(), Desk()
    for record in episodes(1, source=Source.SCRIPT):
        first.replay.add(record, prior=True)
    first.transport.send(list(episodes(1, first=1)))
    first.run(10)
    with pytest.raises(CorruptData, match=r"made with \d+ transitions .* found 0"):
        second.go_on_from(first)


def test_an_episode_that_a_successor_joins_midway_has_its_whole_length() -> None:
    records = list(episodes(1))
    first = Desk()
    first.transport.send(records[:10])
    first.run(10**6)
    second = Desk(records[:10])
    second.go_on_from(first)
    second.transport.send(records[10:])
    second.run(10**6)
    (row,) = (row for _, row in second.metrics.of(EpisodeRow))
    assert row.length == count_steps(records)
    assert row.weight_age <= 5  # versions that were skipped do not count


def test_after_three_updates_that_were_not_finite_it_goes_back_to_what_was_saved() -> None:
    desk = Desk(checkpoint_every=10)
    desk.transport.send(list(episodes(4)))
    desk.run(15)
    desk.saved.clear()
    desk.agent.skipped = 2
    desk.run(16)
    assert desk.agent.updates == 16
    desk.agent.skipped = 3
    desk.learner.step()
    assert desk.agent.updates == 16  # as at the end of the last run, which saved
    (event,) = (row.text for _, row in desk.metrics.of(EventRow))
    assert event == "the last 3 updates were not finite: going on with the parameters of step 16"
    desk.agent.skipped = 0
    desk.run(25)
    assert desk.agent.updates == 16 + 25 - 17


def test_going_back_in_vain_ends_it() -> None:
    desk = Desk(checkpoint_every=10)
    desk.agent.skipped = 3
    desk.transport.send(list(episodes(1)))
    with pytest.raises(SerlError, match="also from the parameters of step 0"):
        desk.run(15)


@pytest.mark.parametrize(
    "info",
    [
        {},
        {"trained": 3, "version": 1, "taken": []},
        {"trained": {}, "version": 1, "taken": [["a"]]},
    ],
)
def test_damaged_counters_are_refused(info: dict[str, Any]) -> None:
    with pytest.raises(CorruptData, match="expected the counters"):
        restore_progress(info)
