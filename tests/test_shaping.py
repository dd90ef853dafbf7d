"""Potential-based reward shaping: the added reward and the unchanged optimal return."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from serl.clock import VirtualClock
from serl.errors import Silent, SpecMismatch
from serl.intervention import Event
from serl.loop import EpisodeKey, RecordCallback, Result, run
from serl.policy import Policy, ZeroPolicy
from serl.reward import NoReward, RewardConfig, RewardedTask
from serl.runs.task_setup import make_spec
from serl.shaping import ShapedTask, Shaper, TopicProgress, is_shaped
from serl.task import SimulatedTask
from serl.testing import FakeRobot, FakeTask
from serl.topic_reward import TimedNumber
from serl.training.replay import Replay
from serl.types import Array, Episode, Observation, Record, Step

from .test_loop import FakeOperator

DISCOUNT, WEIGHT = 0.9, 2.0


class Nearness:
    provenance = "nearness"

    def __call__(self, seen: Observation) -> float:
        return self.of(seen.state["position"])

    def of(self, position: Array) -> float:
        return float(np.exp(-10.0 * np.linalg.norm(position)))


class FullProgress(Nearness):
    def of(self, position: Array) -> float:
        return 1.0


SHAPER = Shaper(Nearness(), WEIGHT, DISCOUNT)


class RecordedEpisode:
    """Records of one episode of the fake task."""

    def __init__(
        self,
        task: SimulatedTask,
        policy: Callable[[FakeRobot], Policy] | None = None,
        operator: FakeOperator | None = None,
        seed: int = 1,
    ) -> None:
        robot = FakeRobot()
        robot.reset(seed)
        self.records: list[Record] = []
        self.result: Result = run(
            robot,
            task,
            policy(robot) if policy else task.expert(robot.truth, 0),
            VirtualClock(robot.advance, task.config.rate_hz),
            EpisodeKey("run", "actor", 7, seed),
            [RecordCallback(self.records.append)],
            teleop=operator,
        )

    @property
    def steps(self) -> list[Step]:
        return [record for record in self.records if isinstance(record, Step)]

    def potential(self, index: int) -> float:
        return SHAPER.potential(self.records[index].observation)

    def discounted_return(self) -> float:
        """Return the discounted return plus the value of the last potential after truncation."""
        steps = self.steps
        discounted_return = sum(DISCOUNT**index * step.reward for index, step in enumerate(steps))
        shaped = steps[-1].reward_provenance.endswith(SHAPER.provenance)
        left = 0.0 if steps[-1].terminated or not shaped else -self.potential(-1)
        return discounted_return + DISCOUNT ** len(steps) * left


def sparse_and_shaped_episodes(
    sparse_task: SimulatedTask, events_at: dict[int, Event] | None = None
) -> tuple[RecordedEpisode, RecordedEpisode]:
    """Record the same episode with sparse and with shaped rewards."""
    operators = (FakeOperator(events_at=dict(events_at or {})) for _ in range(2))
    tasks = sparse_task, ShapedTask(sparse_task, SHAPER)
    sparse, shaped = (
        RecordedEpisode(task, operator=operator)
        for task, operator in zip(tasks, operators, strict=True)
    )
    return sparse, shaped


@pytest.mark.parametrize(
    ("events_at", "terminated"),
    [
        ({}, True),
        ({3: Event.SUCCESS}, True),
        ({3: Event.FAILURE}, True),
        ({3: Event.RESET}, False),
        ({2: Event.REWARD, 3: Event.PENALTY}, True),
    ],
)
def test_shaping_changes_return_only_by_first_potential(
    events_at: dict[int, Event], terminated: bool
) -> None:
    sparse, shaped = sparse_and_shaped_episodes(FakeTask(), events_at)
    assert len(shaped.steps) > 3
    assert shaped.steps[-1].terminated == terminated
    assert shaped.discounted_return() == pytest.approx(
        sparse.discounted_return() - shaped.potential(0), abs=1e-6
    )
    for before, after in zip(sparse.records, shaped.records, strict=True):
        assert before.key == after.key
        if isinstance(before, Step) and isinstance(after, Step):
            np.testing.assert_array_equal(before.action, after.action)
            assert (before.terminated, before.truncated) == (after.terminated, after.truncated)
            named = f"{before.reward_provenance} + progress of nearness, weight 2, discount 0.9"
            assert after.reward_provenance == named
    assert replace(shaped.result, reward=0.0) == replace(sparse.result, reward=0.0)


def test_truncation_by_time_limit_keeps_last_potential() -> None:
    task = ShapedTask(FakeTask(), SHAPER)
    cut = RecordedEpisode(task, lambda robot: ZeroPolicy(robot.action_spec))
    assert cut.steps[-1].truncated
    last = DISCOUNT * cut.potential(-1) - cut.potential(-2)
    assert cut.steps[-1].reward == pytest.approx(last)


def test_discarded_success_keeps_its_last_potential() -> None:
    tick = len(RecordedEpisode(FakeTask()).steps) - 1
    _, shaped = sparse_and_shaped_episodes(FakeTask(), {tick: Event.DISCARD})
    assert (shaped.steps[tick].truncated, shaped.result.reason) == (True, "discarded")
    expected_reward = 1.0 + DISCOUNT * shaped.potential(-1) - shaped.potential(-2)
    assert shaped.steps[tick].reward == pytest.approx(expected_reward)


def test_full_progress_is_no_success_and_does_not_end_episode() -> None:
    human_task = RewardedTask(FakeTask(), NoReward("human"))
    task = ShapedTask(human_task, Shaper(FullProgress(), WEIGHT, DISCOUNT))
    there = RecordedEpisode(task)
    assert not there.result.success
    assert there.result.reason == "time limit"
    assert task.solved, "the success of the task was not noted"


def test_closed_path_earns_no_shaping_return() -> None:
    class Circle:
        def __init__(self, robot: FakeRobot) -> None:
            self.turn = 0

        def __call__(self, observation: Observation) -> Array:
            self.turn += 1
            ways = ((1, 0), (0, 1), (-1, 0), (0, -1))
            return np.array(ways[self.turn % 4], np.float32)

    circle = RecordedEpisode(
        ShapedTask(RewardedTask(FakeTask(), NoReward("human")), SHAPER), Circle
    )
    assert len(circle.steps) == 30
    assert circle.discounted_return() == pytest.approx(-circle.potential(0), abs=1e-6)
    still = sum(step.reward for step in circle.steps)
    assert still < 0, "the undiscounted sum of rewards of a closed path is not negative"
    undiscounted = Shaper(Nearness(), WEIGHT, 1.0)
    task = ShapedTask(RewardedTask(FakeTask(), NoReward("human")), undiscounted)
    circle = RecordedEpisode(task, Circle)
    gain = circle.potential(-1) - circle.potential(0)
    assert sum(step.reward for step in circle.steps) == pytest.approx(gain, abs=1e-6)


def test_shaped_replay_rewards_differ_only_by_potentials() -> None:
    task, batches = FakeTask(), []
    for each in (task, ShapedTask(task, SHAPER)):
        replay = Replay(make_spec(task), 200, DISCOUNT, n_step=3, seed=0)
        for seed in range(4):
            policy = None if seed % 2 else lambda robot: ZeroPolicy(robot.action_spec)
            for record in RecordedEpisode(each, policy, seed=seed).records:
                replay.add(record)
        batches.append(replay.sample(256))
    sparse, shaped = batches
    np.testing.assert_array_equal(sparse.discount, shaped.discount)
    assert {round(float(each), 3) for each in sparse.discount} == {0.0, 0.729, 0.81, 0.9}
    first, last = (
        np.array([WEIGHT * Nearness().of(row[:2]) for row in states])
        for states in (sparse.state, sparse.next_state)
    )
    expected = sparse.reward + sparse.discount * last - first
    np.testing.assert_allclose(shaped.reward, expected, atol=1e-5)


def test_shaping_recorded_episode_equals_shaping_during_recording() -> None:
    sparse, shaped = sparse_and_shaped_episodes(FakeTask(), {3: Event.FAILURE})
    (*steps, end), (*expected, _) = sparse.records, shaped.records
    made = SHAPER.shaped(Episode(tuple(steps), end))  # type: ignore[arg-type]
    for mine, recorded in zip(made.steps, expected, strict=True):
        assert isinstance(recorded, Step)
        assert mine.reward == pytest.approx(recorded.reward, abs=1e-9)
        assert mine.reward_provenance == recorded.reward_provenance
    assert is_shaped(made, SHAPER.provenance)
    assert not is_shaped(Episode(tuple(steps), None), SHAPER.provenance)  # type: ignore[arg-type]
    with pytest.raises(SpecMismatch, match=r"discount 0\.9, here not at all"):
        is_shaped(made, "")
    with pytest.raises(SpecMismatch, match=r"nearness, weight 2, discount 0\.9, here by that of x"):
        is_shaped(made, "x")
    half = replace(made, steps=(*made.steps[:2], *steps[2:]))  # type: ignore[arg-type]
    with pytest.raises(SpecMismatch, match="not at all"):
        is_shaped(half, SHAPER.provenance)
    cut = SHAPER.shaped(Episode(tuple(steps), None))  # type: ignore[arg-type]
    assert [step.reward for step in cut.steps[:-1]] == [step.reward for step in made.steps[:-1]]


class TopicNumbers:
    """Numbers of a topic, one per reading; None stands for a stale number."""

    def __init__(self, *numbers: float | None) -> None:
        self.left = list(numbers)

    def __call__(self) -> TimedNumber:
        if (number := self.left.pop(0)) is None:
            raise Silent("reward: /cell/progress: its newest message is old")
        return TimedNumber(number, 0.0)


def test_success_needs_no_progress_unless_discarded() -> None:
    numbers = (*[0.5] * len(RecordedEpisode(FakeTask()).steps), None)
    done = RecordedEpisode(topic_task(*numbers))
    assert (done.result.success, done.steps[-1].reward) == (True, 0.5)
    discarded = RecordedEpisode(
        topic_task(*numbers), operator=FakeOperator(events_at={len(numbers) - 2: Event.DISCARD})
    )
    assert (discarded.steps[-1].reward, discarded.steps[-1].reward_provenance) == (0.0, "none")


def topic_task(*numbers: float | None) -> ShapedTask:
    progress = TopicProgress(RewardConfig(kind="progress", topic="/cell/progress"))
    progress.newest = TopicNumbers(*numbers)
    return ShapedTask(FakeTask(), Shaper(progress, 1.0, 0.5))


def test_topic_progress_is_clipped_and_stale_progress_is_fault() -> None:
    still = lambda robot: ZeroPolicy(robot.action_spec)  # noqa: E731
    cut = RecordedEpisode(topic_task(0.25, 3.0, -1.0, None), still)
    assert [step.reward for step in cut.steps] == [0.5 - 0.25, -1.0, 0.0]
    assert cut.steps[0].reward_provenance == (
        "truth + progress of topic /cell/progress, weight 1, discount 0.5"
    )
    assert (cut.steps[2].reward_provenance, cut.result.reason) == ("none", "fault")
    assert cut.result.fault.startswith("reward: /cell/progress")
    assert is_shaped(Episode(tuple(cut.steps), None), topic_task().shaper.provenance)


def test_episode_does_not_begin_with_stale_progress() -> None:
    with pytest.raises(Silent, match="/cell/progress"):
        RecordedEpisode(topic_task(None))
