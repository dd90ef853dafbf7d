"""Rewards shaped by potentials: what they add, and what they must not change."""

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
from serl.training.replay import Replay
from serl.types import Array, Episode, Observation, Record, Step

from .test_loop import FakePerson

DISCOUNT, WEIGHT = 0.9, 2.0


class Nearness:
    provenance = "nearness"

    def __call__(self, seen: Observation) -> float:
        return self.of(seen.state["position"])

    def of(self, position: Array) -> float:
        return float(np.exp(-10.0 * np.linalg.norm(position)))


class Done(Nearness):
    def of(self, position: Array) -> float:
        return 1.0


SHAPER = Shaper(Nearness(), WEIGHT, DISCOUNT)


class Recorded:
    """An episode of the fake task."""

    def __init__(
        self,
        task: SimulatedTask,
        policy: Callable[[FakeRobot], Policy] | None = None,
        person: FakePerson | None = None,
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
            teleop=person,
        )

    @property
    def steps(self) -> list[Step]:
        return [record for record in self.records if isinstance(record, Step)]

    def potential(self, index: int) -> float:
        return SHAPER.potential(self.records[index].observation)

    def earned(self) -> float:
        """The discounted return, with what a perfect critic expects after a truncation."""
        steps = self.steps
        earned = sum(DISCOUNT**index * step.reward for index, step in enumerate(steps))
        shaped = steps[-1].reward_provenance.endswith(SHAPER.provenance)
        left = 0.0 if steps[-1].terminated or not shaped else -self.potential(-1)
        return earned + DISCOUNT ** len(steps) * left


def pairs(
    sparse_task: SimulatedTask, says: dict[int, Event] | None = None
) -> tuple[Recorded, Recorded]:
    """Equal episodes, sparse and shaped."""
    person = (FakePerson(says=dict(says or {})) for _ in range(2))
    tasks = sparse_task, ShapedTask(sparse_task, SHAPER)
    sparse, shaped = (Recorded(task, person=who) for task, who in zip(tasks, person, strict=True))
    return sparse, shaped


@pytest.mark.parametrize(
    ("says", "terminated"),
    [
        ({}, True),
        ({3: Event.SUCCESS}, True),
        ({3: Event.FAILURE}, True),
        ({3: Event.RESET}, False),
        ({2: Event.REWARD, 3: Event.PENALTY}, True),
    ],
)
def test_shaping_takes_the_first_potential_and_nothing_else(
    says: dict[int, Event], terminated: bool
) -> None:
    sparse, shaped = pairs(FakeTask(), says)
    assert len(shaped.steps) > 3
    assert shaped.steps[-1].terminated == terminated
    assert shaped.earned() == pytest.approx(sparse.earned() - shaped.potential(0), abs=1e-6)
    for before, after in zip(sparse.records, shaped.records, strict=True):
        assert before.key == after.key
        if isinstance(before, Step) and isinstance(after, Step):
            np.testing.assert_array_equal(before.action, after.action)
            assert (before.terminated, before.truncated) == (after.terminated, after.truncated)
            named = f"{before.reward_provenance} + progress of nearness, weight 2, discount 0.9"
            assert after.reward_provenance == named
    assert replace(shaped.result, reward=0.0) == replace(sparse.result, reward=0.0)


def test_a_time_limit_keeps_the_last_potential() -> None:
    task = ShapedTask(FakeTask(), SHAPER)
    cut = Recorded(task, lambda robot: ZeroPolicy(robot.action_spec))
    assert cut.steps[-1].truncated
    last = DISCOUNT * cut.potential(-1) - cut.potential(-2)
    assert cut.steps[-1].reward == pytest.approx(last)


def test_a_success_that_is_discarded_in_its_step_keeps_its_own_potential() -> None:
    tick = len(Recorded(FakeTask()).steps) - 1
    _, shaped = pairs(FakeTask(), {tick: Event.DISCARD})
    assert (shaped.steps[tick].truncated, shaped.result.reason) == (True, "discarded")
    judged = 1.0 + DISCOUNT * shaped.potential(-1) - shaped.potential(-2)
    assert shaped.steps[tick].reward == pytest.approx(judged)


def test_progress_neither_is_a_success_nor_ends_an_episode() -> None:
    person = RewardedTask(FakeTask(), NoReward("human"))
    task = ShapedTask(person, Shaper(Done(), WEIGHT, DISCOUNT))
    there = Recorded(task)
    assert not there.result.success
    assert there.result.reason == "time limit"
    assert task.solved, "the truth beside it is still noted"


def test_a_loop_earns_nothing() -> None:
    class Circle:
        def __init__(self, robot: FakeRobot) -> None:
            self.turn = 0

        def __call__(self, observation: Observation) -> Array:
            self.turn += 1
            ways = ((1, 0), (0, 1), (-1, 0), (0, -1))
            return np.array(ways[self.turn % 4], np.float32)

    circle = Recorded(ShapedTask(RewardedTask(FakeTask(), NoReward("human")), SHAPER), Circle)
    assert len(circle.steps) == 30
    assert circle.earned() == pytest.approx(-circle.potential(0), abs=1e-6)
    still = sum(step.reward for step in circle.steps)
    assert still < 0, "of the rewards themselves a loop makes a loss"
    undiscounted = Shaper(Nearness(), WEIGHT, 1.0)
    task = ShapedTask(RewardedTask(FakeTask(), NoReward("human")), undiscounted)
    circle = Recorded(task, Circle)
    gain = circle.potential(-1) - circle.potential(0)
    assert sum(step.reward for step in circle.steps) == pytest.approx(gain, abs=1e-6)


def test_returns_in_replay_differ_by_potentials_alone() -> None:
    task, batches = FakeTask(), []
    for each in (task, ShapedTask(task, SHAPER)):
        replay = Replay(make_spec(task), 200, DISCOUNT, n_step=3, seed=0)
        for seed in range(4):
            policy = None if seed % 2 else lambda robot: ZeroPolicy(robot.action_spec)
            for record in Recorded(each, policy, seed=seed).records:
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


def test_recorded_episodes_are_shaped_as_if_they_had_been_when_recorded() -> None:
    sparse, shaped = pairs(FakeTask(), {3: Event.FAILURE})
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


class Numbers:
    """The numbers of a topic, one a reading; None for a number that is too old."""

    def __init__(self, *numbers: float | None) -> None:
        self.left = list(numbers)

    def __call__(self) -> float:
        if (number := self.left.pop(0)) is None:
            raise Silent("reward: /cell/progress: its newest message is old")
        return number


def test_a_success_needs_no_progress_unless_it_is_discarded() -> None:
    numbers = (*[0.5] * len(Recorded(FakeTask()).steps), None)
    done = Recorded(of_topic(*numbers))
    assert (done.result.success, done.steps[-1].reward) == (True, 0.5)
    discarded = Recorded(
        of_topic(*numbers), person=FakePerson(says={len(numbers) - 2: Event.DISCARD})
    )
    assert (discarded.steps[-1].reward, discarded.steps[-1].reward_provenance) == (0.0, "none")


def of_topic(*numbers: float | None) -> ShapedTask:
    progress = TopicProgress(RewardConfig(kind="progress", topic="/cell/progress"))
    progress.newest = Numbers(*numbers)
    return ShapedTask(FakeTask(), Shaper(progress, 1.0, 0.5))


def test_a_topics_progress_is_clipped_and_a_stale_one_is_a_fault() -> None:
    still = lambda robot: ZeroPolicy(robot.action_spec)  # noqa: E731
    cut = Recorded(of_topic(0.25, 3.0, -1.0, None), still)
    assert [step.reward for step in cut.steps] == [0.5 - 0.25, -1.0, 0.0]
    assert cut.steps[0].reward_provenance == (
        "truth + progress of topic /cell/progress, weight 1, discount 0.5"
    )
    assert (cut.steps[2].reward_provenance, cut.result.reason) == ("none", "fault")
    assert cut.result.fault.startswith("reward: /cell/progress")
    assert is_shaped(Episode(tuple(cut.steps), None), of_topic().shaper.provenance)


def test_no_episode_begins_on_a_stale_progress() -> None:
    with pytest.raises(Silent, match="/cell/progress"):
        Recorded(of_topic(None))
