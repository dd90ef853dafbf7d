from __future__ import annotations

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


class FakeOperator:
    """Operator that drives left at the given ticks and sends one event at others."""

    def __init__(
        self, drives: Collection[int] = (), events_at: dict[int, Event] | None = None
    ) -> None:
        self.drives, self.events_at = drives, events_at or {}
        self.begun, self.tick = 0, -1

    def begin(self) -> None:
        self.begun += 1

    def __call__(self) -> Action | None:
        self.tick += 1
        return LEFT if self.tick in self.drives else None

    def events(self) -> tuple[Event, ...]:
        event = self.events_at.pop(self.tick, None)
        return () if event is None else (event,)


class MultiEventOperator(FakeOperator):
    """Operator that sends several events in one tick."""

    def __init__(self, events_at: dict[int, tuple[Event, ...]]) -> None:
        super().__init__()
        self.all = events_at

    def events(self) -> tuple[Event, ...]:
        return self.all.pop(self.tick, ())


class EpisodeRun:
    """One episode of the fake task and the records of it."""

    def __init__(self, seed: int = 1) -> None:
        self.robot, self.task = FakeRobot(), FakeTask()
        self.robot.reset(seed)
        self.records: list[Record] = []

    def __call__(
        self,
        policy: Policy | None = None,
        operator: FakeOperator | None = None,
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
            teleop=operator,
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


def test_loop_numbers_steps_and_records_end_last() -> None:
    episode_run = EpisodeRun()
    result = episode_run(episode_run.task.expert(episode_run.robot.truth, 0))
    keys = [record.key for record in episode_run.records]
    assert keys == [Key("run", "actor", 7, 3, index) for index in range(len(keys))]
    assert all(isinstance(record, Step) for record in episode_run.records[:-1])
    assert episode_run.end.success
    assert episode_run.end.text == "success"
    assert result == Result(len(episode_run.steps), 1.0, True, 0, EndReason.SUCCESS)
    assert [step.terminated for step in episode_run.steps] == [False] * (result.steps - 1) + [True]
    assert not any(step.truncated for step in episode_run.steps)


def test_each_step_observes_result_of_previous_action() -> None:
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


def test_step_is_recorded_before_next_action() -> None:
    episode_run = EpisodeRun()
    acted: list[str] = []
    act = episode_run.robot.act

    def spy(action: Action) -> Action:
        acted.append("act")
        return act(action)

    episode_run.robot.act = spy  # type: ignore[method-assign]
    episode_run(sink=lambda record: acted.append(type(record).__name__))
    assert acted == ["act", "Step"] * episode_run.task.config.max_steps + ["End"]


def test_error_of_record_callback_aborts_episode() -> None:
    def fail_on_full_disk(record: Record) -> None:
        raise SerlError("the disk is full")

    with pytest.raises(SerlError, match="disk is full"):
        EpisodeRun()(sink=fail_on_full_disk)


def test_takeover_acts_in_same_tick_and_step_keeps_policy_request() -> None:
    episode_run = EpisodeRun()
    operator = FakeOperator(drives={2, 3})
    right = np.array([1.0, 0.0], np.float32)
    result = episode_run(lambda observation: right * 0.5, operator)
    human = [step.source is ActionSource.HUMAN for step in episode_run.steps]
    assert human == [index in {2, 3} for index in range(len(human))]
    assert {step.source for step in episode_run.steps} == {ActionSource.HUMAN, ActionSource.POLICY}
    for step in episode_run.steps:
        np.testing.assert_array_equal(step.requested, right * 0.5)
    assert (
        episode_run.steps[2].action[0]
        < 0
        < episode_run.steps[1].action[0] + episode_run.steps[4].action[0]
    )
    assert result.human_steps == 2
    assert operator.begun == 1


def test_first_action_after_a_pause_answers_a_reading_taken_after_it() -> None:
    episode_run = EpisodeRun()

    def pause() -> bool:
        if len(episode_run.steps) == 2:  # in the third step
            episode_run.robot.place(0.03, -0.04)  # by a person
        return False

    episode_run(interrupted=pause)
    places = [step.observation.state["position"].tolist() for step in episode_run.steps]
    assert places[3] == pytest.approx((0.03, -0.04)), "the policy acted on the scene before it"


class GuardRecorder(FakeRobot):
    """Robot that notes the action source that was set before each action."""

    def __init__(self) -> None:
        super().__init__()
        self.sources: list[ActionSource] = []
        self.acted: list[ActionSource] = []

    def drive_as(self, source: ActionSource) -> None:
        self.sources.append(source)

    def act(self, action: Action) -> Action:
        self.acted.append(self.sources[-1])
        return super().act(action)


def test_robot_gets_action_source_before_each_action() -> None:
    episode_run, robot = EpisodeRun(), GuardRecorder()
    robot.reset(1)
    episode_run.robot = robot
    episode_run(operator=FakeOperator({2, 3}))
    assert robot.acted == [step.source for step in episode_run.steps]
    assert robot.acted[1:5] == [
        ActionSource.POLICY,
        ActionSource.HUMAN,
        ActionSource.HUMAN,
        ActionSource.POLICY,
    ]


def test_person_no_longer_drives_robot_when_observers_get_the_end() -> None:
    episode_run, robot = EpisodeRun(), GuardRecorder()
    robot.reset(1)
    episode_run.robot = robot
    drivers: list[ActionSource] = []
    operator = FakeOperator(set(range(1000)))
    episode_run(operator=operator, sink=lambda record: drivers.append(robot.sources[-1]))
    assert set(drivers[:-1]) == {ActionSource.HUMAN}
    assert drivers[-1] is ActionSource.SCRIPT


def test_step_stores_executed_action_apart_from_requested() -> None:
    episode_run = EpisodeRun()
    episode_run(lambda observation: np.array([1.0, 1.0], np.float32))
    assert any(not np.array_equal(step.action, step.requested) for step in episode_run.steps)


def test_step_stores_version_of_policy_that_chose_action() -> None:
    episode_run, version = EpisodeRun(), 0

    def policy(observation: Observation) -> Action:
        nonlocal version
        version += 1
        return np.zeros(2, np.float32)

    episode_run(policy, version=lambda: version)
    assert [step.policy_version for step in episode_run.steps] == list(
        range(1, len(episode_run.steps) + 1)
    )


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
def test_operator_event_ends_episode(
    event: Event, reward: float, terminated: bool, truncated: bool, success: bool, reason: str
) -> None:
    episode_run = EpisodeRun()
    result = episode_run(operator=FakeOperator(events_at={4: event}))
    last = episode_run.steps[-1]
    assert (last.key.index, last.reward) == (4, reward)
    assert (last.terminated, last.truncated) == (terminated, truncated)
    assert last.reward_provenance == ("human" if terminated else "truth")
    assert (episode_run.end.success, episode_run.end.text) == (success, reason)
    assert result.text == reason
    assert bool(episode_run.robot.stop_reason) == (event in {Event.STOP, Event.LOST})


def test_stop_with_success_stops_robot_and_counts_as_success() -> None:
    episode_run = EpisodeRun()
    result = episode_run(operator=MultiEventOperator(events_at={4: (Event.STOP, Event.SUCCESS)}))
    assert (result.text, result.success) == ("success", True)
    assert episode_run.robot.stop_reason == "stopped"


def test_live_reward_counts_for_its_step_without_ending_episode() -> None:
    episode_run = EpisodeRun()
    events_at = {2: (Event.REWARD,), 4: (Event.PENALTY,), 6: (Event.REWARD, Event.PENALTY)}
    result = episode_run(operator=MultiEventOperator(events_at=events_at))
    assert result.steps == episode_run.task.config.max_steps
    assert [step.reward for step in episode_run.steps[:8]] == [0, 0, 1, 0, -1, 0, 0, 0]
    assert [step.reward_provenance for step in episode_run.steps[2:5]] == [LIVE, "truth", LIVE]
    assert not episode_run.end.success


def test_evaluative_feedback_is_stored_in_provenance_not_in_reward() -> None:
    episode_run = EpisodeRun()
    events_at = {2: (Event.REWARD,), 4: (Event.PENALTY,), 6: (Event.REWARD, Event.PENALTY)}
    result = episode_run(operator=MultiEventOperator(events_at=events_at), evaluates=True)
    assert result.steps == episode_run.task.config.max_steps
    assert {step.reward for step in episode_run.steps} == {0.0}
    names = [step.reward_provenance for step in episode_run.steps[:8]]
    assert [feedback_of(name) for name in names] == [0, 0, 1, 0, -1, 0, 0, 0]
    assert {name.partition(" + ")[0] for name in names} == {"truth"}


def test_final_success_overrides_live_penalty() -> None:
    episode_run = EpisodeRun()
    episode_run(operator=MultiEventOperator(events_at={2: (Event.SUCCESS, Event.PENALTY)}))
    assert (episode_run.steps[-1].reward, episode_run.steps[-1].reward_provenance) == (1.0, "human")


def test_discarded_episode_is_no_success() -> None:
    episode_run = EpisodeRun()
    result = episode_run(operator=MultiEventOperator(events_at={4: (Event.SUCCESS, Event.DISCARD)}))
    assert (result.text, result.success, episode_run.steps[-1].reward) == ("discarded", False, 0.0)


def test_time_limit_truncates_episode() -> None:
    episode_run = EpisodeRun()
    result = episode_run()
    assert result.steps == episode_run.task.config.max_steps
    assert (episode_run.steps[-1].terminated, episode_run.steps[-1].truncated) == (False, True)
    assert episode_run.end.text == "time limit"


def test_interruption_truncates_episode_after_current_step() -> None:
    episode_run = EpisodeRun()
    interruptions = iter([False, False, True])
    result = episode_run(interrupted=lambda: next(interruptions))
    assert (result.steps, result.text) == (3, "interrupted")
    assert (episode_run.steps[-1].terminated, episode_run.steps[-1].truncated) == (False, True)


def test_success_in_interrupted_step_counts() -> None:
    episode_run = EpisodeRun()
    episode_run.task = FakeTask(FakeTaskConfig(tolerance_m=1.0))
    assert episode_run(interrupted=lambda: True).success
    assert episode_run.steps[-1].terminated
    assert not episode_run.steps[-1].truncated


def test_non_finite_reading_stops_robot_and_truncates_episode() -> None:
    episode_run = EpisodeRun()

    def breaking() -> Iterator[Action]:
        for tick in range(10):
            episode_run.robot.broken = tick == 2
            yield LEFT

    actions = breaking()
    result = episode_run(lambda observation: next(actions))
    assert result.steps == 3
    assert "position: not finite" in result.text
    assert episode_run.robot.stop_reason == result.text
    assert (episode_run.steps[-1].terminated, episode_run.steps[-1].truncated) == (False, True)
    assert episode_run.steps[-1].reward == 0.0
    np.testing.assert_array_equal(  # the last valid reading
        episode_run.end.observation.state["position"],
        episode_run.steps[-1].observation.state["position"],
    )


def test_failed_observation_stops_robot() -> None:
    episode_run = EpisodeRun()
    observe = episode_run.robot.observe

    def lost() -> Observation:
        if len(episode_run.records) == 1:
            raise SerlError("no reading for 0.2 s")
        return observe()

    episode_run.robot.observe = lost  # type: ignore[method-assign]
    assert episode_run().text == "no reading for 0.2 s"
    assert episode_run.robot.stop_reason == "no reading for 0.2 s"


def test_replay_drops_step_without_next_observation() -> None:
    episode_run = EpisodeRun()
    whole, readings = episode_run.robot.observe, iter(range(100))

    def observe() -> Observation:
        if next(readings) == 4:
            raise SerlError("camera wrist: gone")
        return whole()

    episode_run.robot.observe = observe  # type: ignore[method-assign]
    episode_run()
    spec = Spec(
        task="fake",
        observation=episode_run.task.observation_spec,
        action=episode_run.robot.action_spec,
        rate_hz=10.0,
    )
    replay = Replay(spec, 100, 0.9)
    for record in episode_run.records:
        replay.add(record)
    assert (len(episode_run.steps), len(replay), replay.dropped) == (4, 3, 1)


def test_stopped_robot_ends_episode_and_replay_drops_last_step() -> None:
    episode_run = EpisodeRun()

    def policy(observation: Observation) -> Action:
        if len(episode_run.steps) == 3:  # by a service or by the guard of one of two arms
            episode_run.robot.stop("the gains were refused")
        return LEFT

    result = episode_run(policy)
    assert (result.steps, result.text) == (4, "the robot was stopped: the gains were refused")
    replay = Replay(make_spec(episode_run.task), 100, 0.9)
    for record in episode_run.records:
        replay.add(record)
    assert (len(replay), replay.dropped) == (3, 1)


def test_fault_without_message_is_reported_by_its_class_name() -> None:
    episode_run = EpisodeRun()

    def outcome(reading: Observation, index: int) -> Outcome:
        raise SerlError

    episode_run.task.outcome = outcome  # type: ignore[method-assign]
    result = episode_run()
    assert (result.steps, result.success) == (1, False)
    assert [step.reward_provenance for step in episode_run.steps] == ["none"]
    assert episode_run.robot.stop_reason == result.text == "SerlError"


def test_episode_does_not_begin_with_non_finite_reading() -> None:
    episode_run = EpisodeRun()
    episode_run.robot.broken = True
    with pytest.raises(SpecMismatch, match="position: not finite"):
        episode_run()
    assert episode_run.robot.stop_reason
    assert episode_run.records == []
