from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator

import numpy as np
import pytest

from serl.clock import VirtualClock
from serl.errors import SerlError, SpecMismatch
from serl.intervention import Event
from serl.loop import LIVE, EpisodeKey, RecordCallback, Result, run
from serl.policy import Policy, ZeroPolicy
from serl.runs.task_setup import make_spec
from serl.specs import Spec
from serl.testing import FakeRobot, FakeTask, FakeTaskConfig, episode
from serl.training.replay import Replay
from serl.types import (
    Action,
    ActionSource,
    End,
    EndReason,
    Key,
    Observation,
    Outcome,
    Record,
    Step,
    feedback_of,
)

KEY = EpisodeKey("run", "actor", 7, 3)
LEFT = np.array([-1.0, 0.0], np.float32)


class FakePerson:
    """Drives left at the given ticks, and says things at others."""

    def __init__(self, drives: Collection[int] = (), says: dict[int, Event] | None = None) -> None:
        self.drives, self.says = drives, says or {}
        self.begun, self.tick = 0, -1

    def begin(self) -> None:
        self.begun += 1

    def __call__(self) -> Action | None:
        self.tick += 1
        return LEFT if self.tick in self.drives else None

    def events(self) -> tuple[Event, ...]:
        event = self.says.pop(self.tick, None)
        return () if event is None else (event,)


class Chatty(FakePerson):
    """Says several things at once."""

    def __init__(self, says: dict[int, tuple[Event, ...]]) -> None:
        super().__init__()
        self.all = says

    def events(self) -> tuple[Event, ...]:
        return self.all.pop(self.tick, ())


class EpisodeRun:
    """One episode of the fake task, and what it sent to its sink."""

    def __init__(self, seed: int = 1) -> None:
        self.robot, self.task = FakeRobot(), FakeTask()
        self.robot.reset(seed)
        self.records: list[Record] = []

    def __call__(
        self,
        policy: Policy | None = None,
        person: FakePerson | None = None,
        sink: Callable[[Record], object] | None = None,
        version: Callable[[], int] = lambda: 0,
        interrupted: Callable[[], bool] = lambda: False,
        evaluates: bool = False,
    ) -> Result:
        return run(
            self.robot,
            self.task,
            policy or ZeroPolicy(self.robot.action_spec),
            VirtualClock(self.robot.advance, self.task.config.rate_hz),
            KEY,
            [RecordCallback(sink or self.records.append)],
            teleop=person,
            policy_version=version,
            interrupted=interrupted,
            evaluates=evaluates,
        )

    @property
    def steps(self) -> list[Step]:
        return [record for record in self.records if isinstance(record, Step)]

    @property
    def end(self) -> End:
        assert isinstance(self.records[-1], End)
        return self.records[-1]


def test_steps_are_numbered_and_their_end_comes_last() -> None:
    one = EpisodeRun()
    result = one(one.task.expert(one.robot.truth, 0))
    keys = [record.key for record in one.records]
    assert keys == [Key("run", "actor", 7, 3, index) for index in range(len(keys))]
    assert all(isinstance(record, Step) for record in one.records[:-1])
    assert one.end.success
    assert one.end.text == "success"
    assert result == Result(len(one.steps), 1.0, True, 0, EndReason.SUCCESS)
    assert [step.terminated for step in one.steps] == [False] * (result.steps - 1) + [True]
    assert not any(step.truncated for step in one.steps)


def test_each_step_saw_what_the_one_before_led_to() -> None:
    robot, task = FakeRobot(), FakeTask()
    records = episode(robot, task, task.expert(robot.truth, 0), seed=1)
    robot.reset(1)
    for record in records[:-1]:
        assert isinstance(record, Step)
        np.testing.assert_array_equal(
            record.observation.state["position"], robot.observe().state["position"]
        )
        np.testing.assert_array_equal(robot.act(record.action), record.action)
        robot.advance(0.1)
    final = records[-1].observation
    np.testing.assert_array_equal(final.state["position"], robot.observe().state["position"])


def test_a_step_is_with_the_sink_before_the_next_action() -> None:
    one = EpisodeRun()
    acted: list[str] = []
    act = one.robot.act

    def spy(action: Action) -> Action:
        acted.append("act")
        return act(action)

    one.robot.act = spy  # type: ignore[method-assign]
    one(sink=lambda record: acted.append(type(record).__name__))
    assert acted == ["act", "Step"] * one.task.config.max_steps + ["End"]


def test_an_error_of_the_sink_stops_the_episode() -> None:
    def full(record: Record) -> None:
        raise SerlError("the disk is full")

    with pytest.raises(SerlError, match="disk is full"):
        EpisodeRun()(sink=full)


def test_a_takeover_acts_in_the_same_tick_and_keeps_what_the_policy_wanted() -> None:
    one = EpisodeRun()
    person = FakePerson(drives={2, 3})
    right = np.array([1.0, 0.0], np.float32)
    result = one(lambda observation: right * 0.5, person)
    human = [step.source is ActionSource.HUMAN for step in one.steps]
    assert human == [index in {2, 3} for index in range(len(human))]
    assert {step.source for step in one.steps} == {ActionSource.HUMAN, ActionSource.POLICY}
    for step in one.steps:
        np.testing.assert_array_equal(step.requested, right * 0.5)
    assert one.steps[2].action[0] < 0 < one.steps[1].action[0] + one.steps[4].action[0]
    assert result.human_steps == 2
    assert person.begun == 1


class GuardRecorder(FakeRobot):
    """Keeps in whose name it was driven, in the order of what it was told."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[ActionSource] = []
        self.acted: list[ActionSource] = []

    def drive_as(self, source: ActionSource) -> None:
        self.told.append(source)

    def act(self, action: Action) -> Action:
        self.acted.append(self.told[-1])
        return super().act(action)


def test_a_guard_hears_who_drives_before_each_action() -> None:
    one, robot = EpisodeRun(), GuardRecorder()
    robot.reset(1)
    one.robot = robot
    one(person=FakePerson({2, 3}))
    assert robot.acted == [step.source for step in one.steps]
    assert robot.acted[1:5] == [
        ActionSource.POLICY,
        ActionSource.HUMAN,
        ActionSource.HUMAN,
        ActionSource.POLICY,
    ]


def test_what_was_executed_is_kept_not_what_was_asked_for() -> None:
    one = EpisodeRun()
    one(lambda observation: np.array([1.0, 1.0], np.float32))
    assert any(not np.array_equal(step.action, step.requested) for step in one.steps)


def test_a_step_names_the_version_that_chose_it() -> None:
    one, version = EpisodeRun(), 0

    def policy(observation: Observation) -> Action:
        nonlocal version
        version += 1
        return np.zeros(2, np.float32)

    one(policy, version=lambda: version)
    assert [step.policy_version for step in one.steps] == list(range(1, len(one.steps) + 1))


@pytest.mark.parametrize(
    ("event", "reward", "terminated", "truncated", "success", "reason"),
    [
        (Event.SUCCESS, 1.0, True, False, True, "success"),
        (Event.FAILURE, 0.0, True, False, False, "failure"),
        (Event.STOP, 0.0, False, True, False, "stopped"),
        (Event.LOST, 0.0, False, True, False, "device lost"),
        (Event.DISCARD, 0.0, False, True, False, "discarded"),
        (Event.RESET, 0.0, False, True, False, "operator"),
    ],
)
def test_a_persons_word_ends_the_episode(
    event: Event, reward: float, terminated: bool, truncated: bool, success: bool, reason: str
) -> None:
    one = EpisodeRun()
    result = one(person=FakePerson(says={4: event}))
    last = one.steps[-1]
    assert (last.key.index, last.reward) == (4, reward)
    assert (last.terminated, last.truncated) == (terminated, truncated)
    assert last.reward_provenance == ("human" if terminated else "truth")
    assert (one.end.success, one.end.text) == (success, reason)
    assert result.text == reason
    assert bool(one.robot.stop_reason) == (event in {Event.STOP, Event.LOST})


def test_of_many_words_a_stop_stops_and_a_success_still_counts() -> None:
    one = EpisodeRun()
    result = one(person=Chatty(says={4: (Event.STOP, Event.SUCCESS)}))
    assert (result.text, result.success) == ("success", True)
    assert one.robot.stop_reason == "stopped"


def test_a_live_reward_counts_for_its_step_and_the_episode_goes_on() -> None:
    one = EpisodeRun()
    says = {2: (Event.REWARD,), 4: (Event.PENALTY,), 6: (Event.REWARD, Event.PENALTY)}
    result = one(person=Chatty(says=says))
    assert result.steps == one.task.config.max_steps
    assert [step.reward for step in one.steps[:8]] == [0, 0, 1, 0, -1, 0, 0, 0]
    assert [step.reward_provenance for step in one.steps[2:5]] == [LIVE, "truth", LIVE]
    assert not one.end.success


def test_an_evaluation_is_recorded_beside_the_reward() -> None:
    one = EpisodeRun()
    says = {2: (Event.REWARD,), 4: (Event.PENALTY,), 6: (Event.REWARD, Event.PENALTY)}
    result = one(person=Chatty(says=says), evaluates=True)
    assert result.steps == one.task.config.max_steps
    assert {step.reward for step in one.steps} == {0.0}
    names = [step.reward_provenance for step in one.steps[:8]]
    assert [feedback_of(name) for name in names] == [0, 0, 1, 0, -1, 0, 0, 0]
    assert {name.partition(" + ")[0] for name in names} == {"truth"}


def test_a_last_word_outweighs_a_live_reward() -> None:
    one = EpisodeRun()
    one(person=Chatty(says={2: (Event.SUCCESS, Event.PENALTY)}))
    assert (one.steps[-1].reward, one.steps[-1].reward_provenance) == (1.0, "human")


def test_what_was_discarded_is_no_success() -> None:
    one = EpisodeRun()
    result = one(person=Chatty(says={4: (Event.SUCCESS, Event.DISCARD)}))
    assert (result.text, result.success, one.steps[-1].reward) == ("discarded", False, 0.0)


def test_the_time_limit_truncates() -> None:
    one = EpisodeRun()
    result = one()
    assert result.steps == one.task.config.max_steps
    assert (one.steps[-1].terminated, one.steps[-1].truncated) == (False, True)
    assert one.end.text == "time limit"


def test_an_interruption_truncates_after_the_step() -> None:
    one = EpisodeRun()
    asked = iter([False, False, True])
    result = one(interrupted=lambda: next(asked))
    assert (result.steps, result.text) == (3, "interrupted")
    assert (one.steps[-1].terminated, one.steps[-1].truncated) == (False, True)


def test_a_success_counts_even_when_it_is_interrupted() -> None:
    one = EpisodeRun()
    one.task = FakeTask(FakeTaskConfig(tolerance_m=1.0))
    assert one(interrupted=lambda: True).success
    assert one.steps[-1].terminated
    assert not one.steps[-1].truncated


def test_a_reading_that_is_not_finite_stops_the_robot_and_truncates() -> None:
    one = EpisodeRun()

    def breaking() -> Iterator[Action]:
        for tick in range(10):
            one.robot.broken = tick == 2
            yield LEFT

    actions = breaking()
    result = one(lambda observation: next(actions))
    assert result.steps == 3
    assert "position: not finite" in result.text
    assert one.robot.stop_reason == result.text
    assert (one.steps[-1].terminated, one.steps[-1].truncated) == (False, True)
    assert one.steps[-1].reward == 0.0
    np.testing.assert_array_equal(  # the last one that was good
        one.end.observation.state["position"], one.steps[-1].observation.state["position"]
    )


def test_a_robot_that_cannot_be_read_is_stopped_too() -> None:
    one = EpisodeRun()
    observe = one.robot.observe

    def lost() -> Observation:
        if len(one.records) == 1:
            raise SerlError("no reading for 0.2 s")
        return observe()

    one.robot.observe = lost  # type: ignore[method-assign]
    assert one().text == "no reading for 0.2 s"
    assert one.robot.stop_reason == "no reading for 0.2 s"


@pytest.mark.parametrize("reward", [math.nan, -math.inf, 1e300])
def test_a_reward_that_nothing_can_be_learned_from_stops_the_robot_too(reward: float) -> None:
    one = EpisodeRun()
    outcome = one.task.outcome

    def judge(reading: Observation, index: int) -> Outcome:
        return Outcome(reward) if index == 1 else outcome(reading, index)

    one.task.outcome = judge  # type: ignore[method-assign]
    assert one().text == f"reward {reward}: expected at most 1e+06 either way"
    assert one.robot.stop_reason
    assert [(step.reward, step.truncated) for step in one.steps] == [(0.0, False), (0.0, True)]


def test_what_a_broken_reading_cut_puts_no_transition_into_replay_that_never_was() -> None:
    stage = EpisodeRun()
    whole, readings = stage.robot.observe, iter(range(100))

    def observe() -> Observation:
        if next(readings) == 4:
            raise SerlError("camera wrist: gone")
        return whole()

    stage.robot.observe = observe  # type: ignore[method-assign]
    stage()
    spec = Spec(
        task="fake",
        observation=stage.task.observation_spec,
        action=stage.robot.action_spec,
        rate_hz=10.0,
    )
    replay = Replay(spec, 100, 0.9)
    for record in stage.records:
        replay.add(record)
    assert (len(stage.steps), len(replay), replay.dropped) == (4, 3, 1)


def test_whoever_stops_the_robot_ends_the_episode_before_actions_without_effect() -> None:
    stage = EpisodeRun()

    def policy(observation: Observation) -> Action:
        if len(stage.steps) == 3:  # a service, the guard of one of two arms, ...
            stage.robot.stop("the gains were refused")
        return LEFT

    result = stage(policy)
    assert (result.steps, result.text) == (4, "the robot was stopped: the gains were refused")
    replay = Replay(make_spec(stage.task), 100, 0.9)
    for record in stage.records:
        replay.add(record)
    assert (len(replay), replay.dropped) == (3, 1)


def test_a_fault_without_words_is_no_time_limit() -> None:
    stage = EpisodeRun()

    def outcome(reading: Observation, index: int) -> Outcome:
        raise SerlError

    stage.task.outcome = outcome  # type: ignore[method-assign]
    result = stage()
    assert (result.steps, result.success) == (1, False)
    assert [step.reward_provenance for step in stage.steps] == ["none"]
    assert stage.robot.stop_reason == result.text == "SerlError"


def test_an_episode_does_not_begin_on_a_broken_reading() -> None:
    one = EpisodeRun()
    one.robot.broken = True
    with pytest.raises(SpecMismatch, match="position: not finite"):
        one()
    assert one.robot.stop_reason
    assert one.records == []
