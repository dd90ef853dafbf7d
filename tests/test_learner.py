from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pytest

from serl.agents.agent import State
from serl.assembly import make_spec
from serl.errors import CorruptData
from serl.learner import Learner, LearnerConfig, Progress, restore_progress
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

    def act(self, observation: Observation, explore: bool) -> Action:
        return np.zeros(2, np.float32)

    def fit_normaliser(self, states: Array) -> None:
        self.normalised = states

    def update(self, batch: Batch) -> dict[str, float]:
        self.updates += 1
        self.batches.append(batch)
        return {"q": float(self.updates), "critic_loss": 0.5}

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

    def __init__(self, progress: Progress | None = None, **settings: Any) -> None:
        self.agent, self.transport, self.metrics = Counting(), Published(), Rows()
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
            progress=progress,
        )

    def run(self, steps: int) -> None:
        """Until so many steps are trained on, or nothing more can be."""
        idle = 0

        def stuck() -> bool:
            nonlocal idle
            idle += 1
            return idle > 1000

        self.learner.run(steps, stuck, idle_s=0.0)


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
    desk.transport.send(list(episodes(4)))
    desk.run(50)
    steps, rows = zip(*desk.metrics.of(UpdateRow), strict=True)
    assert steps == (20, 40)
    assert [row.q for row in rows] == [20.0, 40.0]
    assert rows[0].critic_loss == 0.5
    assert rows[0].actor_loss is None
    assert rows[1].lag == desk.learner.progress.received - 40
    assert rows[1].utd == pytest.approx(UTD * 40 / desk.learner.progress.received)
    assert rows[1].weights_version == 5


def test_checkpoints_hold_what_the_log_does_not() -> None:
    desk = Desk(checkpoint_every=25)
    desk.transport.send(list(episodes(4)))
    desk.run(60)
    assert [step for step, _, _ in desk.saved] == [25, 50, 60]
    _, arrays, info = desk.saved[0]
    assert arrays.keys() == {"agent", "actor", "replay"}
    assert info["trained"] == {"a": 25}
    assert info["version"] == 3  # at 0, 10 and 20
    desk.learner.checkpoint()
    assert len(desk.saved) == 3  # nothing happened since


def test_a_successor_trains_on_what_was_logged_but_not_trained_on() -> None:
    log = list(episodes(4))
    first = Desk()
    first.transport.send(log)
    first.run(40)
    _, arrays, info = first.saved[-1]

    second = Desk(restore_progress(info))
    second.agent.load_state_dict(arrays["agent"])
    second.learner.restore(log)
    assert second.learner.progress.received == count_steps(log)
    assert second.learner.progress.steps == 40
    second.run(10**6)
    assert second.agent.updates == count_steps(log)
    assert second.learner.progress.trained == {"a": count_steps(log)}
    assert second.replay.online == count_steps(log)
    assert second.transport.snapshots[0].version > first.transport.snapshots[-1].version


def test_an_episode_that_a_successor_joins_midway_has_its_whole_length() -> None:
    records = list(episodes(1))
    desk = Desk()
    desk.learner.restore(records[:10])
    desk.transport.send(records[10:])
    desk.run(10**6)
    assert [row.length for _, row in desk.metrics.of(EpisodeRow)] == [count_steps(records)]


@pytest.mark.parametrize("info", [{}, {"trained": 3, "version": 1}, {"trained": {"a": 1}}])
def test_damaged_counters_are_refused(info: dict[str, Any]) -> None:
    with pytest.raises(CorruptData, match="expected counters"):
        restore_progress(info)
