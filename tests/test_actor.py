from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from serl.actor import Actor, ActorConfig, LearnedPolicy, Pace
from serl.agents.agent import Agent, State
from serl.clock import VirtualClock
from serl.errors import CorruptData, NeedsPerson, Silent, SpecMismatch
from serl.intervention import Event
from serl.link import WeightsFile
from serl.policy import Hold, Policy
from serl.snapshots import encode_snapshot
from serl.testing import FakeRobot, FakeTask
from serl.transport import InProcess, Snapshot
from serl.types import Action, Batch, End, Observation, Record, Source, Step


class Constant:
    """An agent whose weights are its action."""

    def __init__(self) -> None:
        self.action = np.zeros(2, np.float32)

    def act(self, observation: Observation, explore: bool) -> Action:
        return self.action.copy()

    def fit_normaliser(self, states: np.ndarray[tuple[int, ...], np.dtype[np.float32]]) -> None:
        raise NotImplementedError

    def update(self, batch: Batch) -> dict[str, float]:
        raise NotImplementedError

    def actor_weights(self) -> State:
        return {"action": self.action}

    def load_actor_weights(self, weights: State) -> None:
        if weights.keys() != {"action"} or not np.isfinite(weights["action"]).all():
            raise SpecMismatch("weights: expected a finite action")
        self.action = np.asarray(weights["action"], np.float32)

    state_dict = actor_weights
    load_state_dict = load_actor_weights


def snapshot(version: int, value: float, trained: int = 0) -> Snapshot:
    return Snapshot(version, {"actor": trained}, {"action": np.full(2, value, np.float32)})


class Stage:
    """An actor on the fake task, and what it sent."""

    def __init__(
        self,
        place: bool = True,
        stopping: Callable[[], bool] = lambda: False,
        pace: Callable[[], None] = lambda: None,
    ) -> None:
        self.weights, self.records = InProcess(), list[Record]()
        self.robot, self.task = FakeRobot(), FakeTask()
        self.policy = LearnedPolicy(Constant(), self.weights)
        self.actor = Actor(
            name="actor",
            run="run",
            robot=self.robot,
            task=self.task,
            policy=self.policy,
            clock=VirtualClock(self.robot.advance, self.task.config.rate_hz, pace),
            sink=self.records.append,
            config=ActorConfig(reset_time_limit_s=2.0),
            place=self.robot.reset if place else None,
            epoch=9,
            stopping=stopping,
        )

    def run(self, episodes: int) -> None:
        for _, _ in zip(range(episodes), self.actor.episodes(), strict=False):
            pass

    @property
    def steps(self) -> list[Step]:
        return [record for record in self.records if isinstance(record, Step)]


def test_episodes_are_counted_and_start_where_they_are_placed() -> None:
    stage = Stage()
    stage.run(3)
    assert [r.key.episode for r in stage.records if isinstance(r, End)] == [0, 1, 2]
    assert {record.key.epoch for record in stage.records} == {9}
    firsts = [step.observation for step in stage.steps if step.key.index == 0]
    for seed, first in enumerate(firsts):
        np.testing.assert_array_equal(
            first.state["position"], FakeRobot().reset(seed).state["position"]
        )


def test_a_robot_that_is_silent_before_the_first_step_is_placed_anew() -> None:
    stage, silences = Stage(), [2]
    observe = stage.robot.observe

    def fading() -> Observation:
        if silences[0] > 0:
            silences[0] -= 1
            raise Silent("no news")
        return observe()

    stage.robot.observe = fading  # type: ignore[method-assign]
    stage.actor.place = None
    stage.run(1)
    keys = [record.key for record in stage.records]
    assert {key.episode for key in keys} == {0}, "an episode that never began has no number"
    silences[0] = 100
    with pytest.raises(Silent, match="no news"):
        stage.run(1)


def test_an_epoch_never_repeats() -> None:
    epochs = set()
    for _ in range(3):
        stage = Stage()
        stage.actor.epoch = 0
        stage.actor.__post_init__()
        epochs.add(stage.actor.epoch)
    assert len(epochs) == 3


def test_new_weights_are_taken_over_between_two_steps_of_an_episode() -> None:
    stage = Stage()
    stage.weights.publish(snapshot(1, 0.25))

    def publish() -> None:
        if len(stage.records) == 4:
            stage.weights.publish(snapshot(2, 0.5))

    stage.actor.clock = VirtualClock(stage.robot.advance, 10.0, publish)
    stage.run(1)
    versions = [step.policy_version for step in stage.steps]
    assert versions == [1] * 5 + [2] * (len(versions) - 5)
    for step in stage.steps:
        assert set(step.requested.tolist()) == {{1: 0.25, 2: 0.5}[step.policy_version]}


def test_weights_that_do_not_fit_leave_the_old_ones(caplog: pytest.LogCaptureFixture) -> None:
    stage = Stage()
    stage.weights.publish(snapshot(1, 0.25))
    assert stage.policy.refresh()
    stage.weights.publish(snapshot(2, np.nan))
    assert not stage.policy.refresh()
    assert not stage.policy.refresh()
    assert stage.policy.version == 1
    np.testing.assert_array_equal(stage.policy(stage.robot.observe()), [0.25, 0.25])
    assert [record.message for record in caplog.records] == [
        "new weights refused, going on with version 1: weights: expected a finite action"
    ]
    stage.weights.publish(snapshot(3, 0.5))
    assert stage.policy.refresh()
    assert stage.policy.version == 3


def test_a_weights_file_is_read_when_it_was_replaced(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    source = WeightsFile(path, "0123456789abcdef")
    assert source.latest(0) is None
    replace(path, encode_snapshot(snapshot(4, 0.5, trained=12), "0123456789abcdef"))
    found = source.latest(3)
    assert found is not None
    assert (found.version, dict(found.trained)) == (4, {"actor": 12})
    assert source.latest(3) is None  # not replaced since
    replace(path, encode_snapshot(snapshot(5, 0.5), "0123456789abcdef"))
    assert source.latest(5) is None  # not newer


def test_a_damaged_weights_file_leaves_the_old_weights(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    source = WeightsFile(path, "0123456789abcdef")
    policy = LearnedPolicy(Constant(), source)
    good = encode_snapshot(snapshot(1, 0.5), "0123456789abcdef")
    replace(path, good)
    assert policy.refresh()
    for bad in (good[:-1], b"", encode_snapshot(snapshot(2, 0.5), "f" * 16)):
        replace(path, bad)
        assert not policy.refresh()
        assert policy.version == 1
    replace(path, encode_snapshot(snapshot(3, 1.0), "0123456789abcdef"))
    assert policy.refresh()


def test_a_damaged_weights_file_is_told_once(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    source = WeightsFile(path, "0123456789abcdef")
    replace(path, b"nonsense")
    with pytest.raises(CorruptData):
        source.latest(0)
    assert source.latest(0) is None


def replace(path: Path, data: bytes) -> None:
    scratch = path.with_name("scratch")
    scratch.write_bytes(data)
    scratch.replace(path)


def test_a_reset_is_an_episode_of_a_script() -> None:
    stage = Stage(place=False)
    stage.robot.reset(0)
    toward = stage.task.expert(stage.robot.truth, 0)
    stage.policy = stage.actor.policy = _Acting(toward)  # succeeds, so that a reset is due
    stage.run(2)
    ends = [record for record in stage.records if isinstance(record, End)]
    assert [end.success for end in ends] == [True, True, True]
    sources = [{s.source for s in stage.steps if s.key.episode == n} for n in range(3)]
    assert sources == [{Source.POLICY}, {Source.SCRIPT}, {Source.POLICY}]
    assert stage.steps[-1].reward == 1.0
    assert stage.task.reset(ends[1].observation) is None


class _Acting(LearnedPolicy):
    """A learned policy that acts as another one does."""

    def __init__(self, policy: Policy) -> None:
        super().__init__(Constant(), InProcess())
        self._policy = policy

    def __call__(self, observation: Observation) -> Action:
        return self._policy(observation)


def never_ready(stage: Stage) -> list[int]:
    """Make every reset of the stage's task fail; counts how often one was asked for."""
    asked: list[int] = []

    def reset(reading: Observation) -> Policy:
        asked.append(1)
        return Hold(stage.robot.action_spec)

    stage.task.reset = reset  # type: ignore[method-assign]
    return asked


def test_after_three_failed_resets_the_robot_holds_for_a_person() -> None:
    stage = Stage()
    never_ready(stage)
    request = "a person is needed: the reset failed 3 times"
    with pytest.raises(NeedsPerson, match=request):
        stage.run(1)
    ends = [record for record in stage.records if isinstance(record, End)]
    assert [end.reason for end in ends] == ["time limit"] * 3 + [request]
    assert [end.key.index for end in ends] == [20] * 3 + [1]
    assert not any(end.success for end in ends)
    assert {step.source for step in stage.steps} == {Source.SCRIPT}
    assert stage.robot.stop_reason == request


def test_a_person_who_is_there_is_asked_once_and_it_goes_on() -> None:
    stage, asked = Stage(), []
    never_ready(stage)

    def help_out(reason: str) -> None:
        asked.append((reason, stage.robot.stop_reason))

    stage.actor.person = help_out
    assert stage.actor.episode() is not None
    reason = "a person is needed: the reset failed 3 times"
    assert asked == [(reason, reason)]
    assert not stage.robot.stop_reason
    assert next(step.source for step in stage.steps if step.key.episode == 4) is Source.POLICY


def test_a_scene_that_only_a_person_can_restore_is_not_tried() -> None:
    stage = Stage()

    def reset(reading: Observation) -> Policy:
        raise NeedsPerson("it fell off the table")

    stage.task.reset = reset  # type: ignore[method-assign]
    with pytest.raises(NeedsPerson, match="fell off"):
        stage.actor.episode()
    step, end = stage.records
    assert isinstance(step, Step)
    assert isinstance(end, End)
    assert step.source is Source.SCRIPT
    assert end.reason == stage.robot.stop_reason == "a person is needed: it fell off the table"


def test_a_reset_that_learns_that_none_helps_is_over_and_a_person_is_asked_once() -> None:
    stage, calls = Stage(), []

    def reset(reading: Observation) -> Policy:
        calls.append(1)
        if len(calls) > 3:
            raise NeedsPerson("it fell off the table")
        return Hold(stage.robot.action_spec)

    stage.task.reset = reset  # type: ignore[method-assign]
    with pytest.raises(NeedsPerson, match="fell off"):
        stage.actor.episode()
    ends = [record.reason for record in stage.records if isinstance(record, End)]
    assert ends == ["failure", "a person is needed: it fell off the table"]


def test_the_simulation_places_only_as_many_episodes_as_it_may() -> None:
    stage = Stage()
    stage.actor.placements = 1
    placed: list[int] = []

    def place(episode: int) -> None:
        placed.append(episode)
        stage.robot.reset(episode)

    stage.actor.place = place
    stage.policy = stage.actor.policy = _Acting(stage.task.expert(stage.robot.truth, 0))
    stage.run(3)
    assert placed == [0]
    assert [end.success for end in stage.records if isinstance(end, End)] == [True] * 5


def test_nothing_is_learned_from_a_reset_even_if_a_person_drives() -> None:
    stage = Stage(place=False)
    stage.robot.reset(0)
    stage.robot._position[:] = 0.0
    stage.actor.teleop = Teleoperator(np.array((0.0, 1.0), np.float32))
    stage.actor.stopping = lambda: bool(stage.records) and isinstance(stage.records[-1], End)
    stage.run(1)
    assert {step.source for step in stage.steps} == {Source.SCRIPT}
    np.testing.assert_array_equal(stage.steps[0].action, [0.0, 1.0])


class Teleoperator:
    """A person who always drives, in one direction."""

    def __init__(self, action: Action) -> None:
        self._action = action

    def begin(self) -> None:
        """Nothing to prepare."""

    def __call__(self) -> Action:
        return self._action

    def events(self) -> tuple[Event, ...]:
        return ()


def test_a_simulated_person_helps_in_no_reset() -> None:
    stage = Stage()
    stage.actor.placements = 1
    stage.actor.place = lambda episode: stage.robot._position.fill(0.0)
    stage.actor.teleop = Teleoperator(np.array((0.0, 1.0), np.float32))
    stage.actor.stopping = lambda: len(stage.steps) > 20
    stage.run(1)
    first = [step for step in stage.steps if step.key.episode == 0]
    assert {step.source for step in first} == {Source.SCRIPT}
    assert not any(np.array_equal(step.action, [0.0, 1.0]) for step in first)


def test_stopping_in_the_last_reset_asks_for_nobody() -> None:
    stage = Stage()
    never_ready(stage)
    stage.actor.stopping = lambda: len(stage.steps) >= 45
    stage.run(1)
    assert len(stage.steps) == 46  # the one under way is the last
    assert not stage.robot.stop_reason


def test_stopping_ends_the_episode_and_the_actor() -> None:
    stage = Stage()
    stage.actor.stopping = lambda: len(stage.steps) >= 40
    stage.run(9)
    assert len(stage.steps) == 41  # the one under way is the last
    assert isinstance(stage.records[-1], End)
    assert stage.records[-1].reason == "interrupted"


def paced(lead: int, patience_s: float, sent_before: int = 0) -> tuple[Pace, InProcess]:
    weights = InProcess()
    config = ActorConfig(max_lead_steps=lead, patience_s=patience_s)
    policy = LearnedPolicy(Constant(), weights)
    return Pace(config, policy, "actor", lambda: False, sent_before), weights


def online_steps(count: int) -> list[Step]:
    stage = Stage()
    stage.run(2)
    return stage.steps[:count]


def test_simulated_time_waits_for_a_learner_that_is_behind() -> None:
    pace, weights = paced(lead=3, patience_s=60.0, sent_before=100)
    asked = 0

    def publish() -> bool:  # asked while waiting
        nonlocal asked
        asked += 1
        if asked == 3:
            weights.publish(snapshot(1, 0.0, trained=100))
        return asked > 10

    pace._stopping = publish
    pace()
    assert asked == 3
    for step in online_steps(3):
        pace.count(step)
    asked = 4
    pace()
    assert asked == 4  # three steps ahead are allowed: no waiting


def test_simulated_time_stands_still_while_the_learner_is_silent(
    caplog: pytest.LogCaptureFixture,
) -> None:
    pace, _ = paced(lead=1, patience_s=1e-6, sent_before=9)
    turns = iter(range(5))
    pace._stopping = lambda: next(turns) == 4
    pace()
    assert next(turns, None) is None
    assert [record.message for record in caplog.records] == [
        "no news from the learner for 1e-06 s: time stands still"
    ]


def test_simulated_time_waits_for_the_first_weights() -> None:
    pace, weights = paced(lead=9, patience_s=60.0)
    turns = 0

    def publish_at_the_third() -> bool:
        nonlocal turns
        turns += 1
        if turns == 3:
            weights.publish(snapshot(1, 0.0, trained=0))
        return turns > 10

    pace._stopping = publish_at_the_third
    pace()
    assert turns == 3


def test_steps_of_a_script_are_no_lead() -> None:
    pace, weights = paced(lead=1, patience_s=60.0)
    weights.publish(snapshot(1, 0.0, trained=0))
    pace()
    stage = Stage(place=False)
    stage.robot.reset(0)
    stage.robot._position[:] = 0.0
    stage.run(1)
    script = [step for step in stage.steps if step.source is Source.SCRIPT]
    assert len(script) > 1
    for step in script:
        pace.count(step)
    pace._stopping = lambda: pytest.fail("waits")
    pace()


def test_a_fake_agent_is_an_agent() -> None:
    agent: Agent = Constant()
    assert agent.actor_weights().keys() == {"action"}


def test_a_held_robot_waits_before_its_episode_and_recovers() -> None:
    stage, held = Stage(place=False), [False, True, False]

    def standby() -> bool:
        if held[0]:
            assert stage.robot.stop_reason
        return held.pop(0) if len(held) > 1 else held[0]

    stage.robot.reset(0)
    stage.robot.stop("by a person")
    stage.actor.standby = standby
    stage.run(1)
    assert stage.robot.stop_reason == ""


def test_nobody_recovers_a_robot_that_no_person_held() -> None:
    stage = Stage(place=False)
    stage.robot.reset(0)
    stage.robot.stop("a fault")
    stage.run(1)
    assert stage.robot.stop_reason == "a fault"


def test_who_is_stopped_while_held_moves_no_more() -> None:
    stopping = False

    def standby() -> bool:
        nonlocal stopping
        stopping = True
        return True

    stage = Stage(stopping=lambda: stopping)
    stage.actor.standby = standby
    stage.run(3)
    assert stage.records == []
