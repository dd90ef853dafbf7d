from __future__ import annotations

import numpy as np
import pytest

from serl.errors import NeedsPerson, Silent
from serl.intervention import NoOperator
from serl.policy import Policy, ZeroPolicy
from serl.teleop.mux import TeleopMux
from serl.testing import FakeRobot
from serl.training.evaluation import Purpose
from serl.training.resets import EpisodeStarts, SceneReset
from serl.types import Action, ActionSource, End, Observation

from ..support.acting import ActorBench, DelegatingPolicy


def test_scripted_reset_is_recorded_as_an_episode() -> None:
    stage = ActorBench(place=False)
    stage.robot.reset(0)
    toward = stage.task.expert(stage.robot.truth, 0)
    stage.policy = stage.actor.policy = DelegatingPolicy(toward)  # succeeds, so that a reset is due
    stage.run(2)
    assert [end.success for end in stage.ends] == [True, True, True]
    sources = [{s.source for s in stage.steps if s.key.episode == n} for n in range(3)]
    assert sources == [{ActionSource.POLICY}, {ActionSource.SCRIPT}, {ActionSource.POLICY}]
    assert stage.steps[-1].reward == 1.0
    assert stage.task.reset(stage.ends[1].observation) is None


def never_ready(stage: ActorBench) -> list[int]:
    """Make every reset of the bench's task fail; return a list with one entry per reset."""
    asked: list[int] = []

    def reset(reading: Observation) -> Policy:
        asked.append(1)
        return ZeroPolicy(stage.robot.action_spec)

    stage.task.reset = reset  # type: ignore[method-assign]
    return asked


def ready_again(stage: ActorBench) -> None:
    """Mark the scene as restored: the task needs no further reset."""
    stage.task.reset = lambda reading: None  # type: ignore[method-assign]


def test_operator_is_asked_again_while_scene_is_not_restored() -> None:
    stage, asked = ActorBench(), list[str]()

    def reset(reading: Observation) -> Policy | None:
        if len(asked) < 3:
            raise NeedsPerson(f"it fell off the table, {len(asked)}")
        return None

    stage.task.reset = reset  # type: ignore[method-assign]
    stage.site.person = asked.append
    assert stage.actor.episode() is not None
    requests = [f"a person is needed: it fell off the table, {number}" for number in range(3)]
    assert asked == requests
    ends = [end.text for end in stage.ends]
    assert ends == [*requests, "time limit"]
    assert [step.source for step in stage.steps[:4]] == [ActionSource.SCRIPT] * 3 + [
        ActionSource.POLICY
    ]


def test_scripted_reset_finishes_after_operator_help() -> None:
    stage, asked = ActorBench(), list[str]()
    toward = ZeroPolicy(stage.robot.action_spec)
    rest: list[Policy | None] = [toward, None]

    def reset(reading: Observation) -> Policy | None:
        if not asked:
            raise NeedsPerson("it fell off the table")
        return rest.pop(0) if rest else None

    stage.task.reset = reset  # type: ignore[method-assign]
    stage.site.person = asked.append
    assert stage.actor.episode() is not None
    assert len(asked) == 1
    assert [end.success for end in stage.ends] == [False, True, False]
    assert not stage.robot.stop_reason


def test_robot_stays_stopped_until_operator_resumes() -> None:
    stage, waited = ActorBench(), list[str]()
    never_ready(stage)
    paused: list[str] = []  # as on a real arm, the request returns at once and `standby` waits

    def standby() -> bool:
        if not paused:
            return False
        waited.append(stage.robot.stop_reason or "it may move")
        paused.clear()
        ready_again(stage)
        return True

    stage.site.person, stage.site.held = paused.append, standby
    assert stage.actor.episode() is not None
    assert waited == ["a person is needed: the reset failed 3 times"]
    assert not stage.robot.stop_reason


def test_stop_during_operator_request_starts_no_episode() -> None:
    stage, asked = ActorBench(), list[str]()
    never_ready(stage)
    stage.site.person, stage.site.stopping = asked.append, lambda: bool(asked)
    assert stage.actor.episode() is None
    assert stage.robot.stop_reason == asked[0]


def test_failed_joint_homing_is_logged_once_and_episodes_continue(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stage, stops = ActorBench(), list[str]()
    stage.site.starts = None
    moves: list[int] = []
    monkeypatch.setattr(stage.robot, "home", lambda: moves.append(1), raising=False)
    monkeypatch.setattr(stage.robot, "is_home", False, raising=False)
    stage.actor.config = stage.actor.config.model_copy(update={"home_every": 1})
    stop = stage.robot.stop

    def stopped(reason: str) -> None:
        stops.append(reason)
        stop(reason)

    monkeypatch.setattr(stage.robot, "stop", stopped)
    stage.run(4)
    assert len(moves) == 3
    assert stops == ["the joint move took too long"] * 3, "the joint move is stopped each time"
    assert not stage.robot.stop_reason
    (message,) = [each.getMessage() for each in caplog.records]
    assert message.startswith(
        "the joints did not get home (time limit, limit 2 s); episodes continue"
    )
    assert {(end.text, end.success) for end in stage.ends[1::2]} == {("time limit", False)}
    policies = {step.key.episode for step in stage.steps if step.source is ActionSource.POLICY}
    assert len(policies) == 4


def test_reset_ends_and_asks_operator_once_when_task_needs_person() -> None:
    stage, calls = ActorBench(), []

    def reset(reading: Observation) -> Policy:
        calls.append(1)
        if len(calls) > 3:
            raise NeedsPerson("it fell off the table")
        return ZeroPolicy(stage.robot.action_spec)

    stage.task.reset = reset  # type: ignore[method-assign]
    with pytest.raises(NeedsPerson, match="fell off"):
        stage.actor.episode()
    ends = [end.text for end in stage.ends]
    assert ends == ["failure", "a person is needed: it fell off the table"]
    assert stage.robot.stop_reason == ends[-1]


def test_simulation_places_only_the_allowed_number_of_episodes() -> None:
    stage = ActorBench()
    stage.starts.placements = 1
    placed: list[int] = []

    def place(episode: int) -> None:
        placed.append(episode)
        stage.robot.reset(episode)

    stage.starts.placing = place
    stage.policy = stage.actor.policy = DelegatingPolicy(stage.task.expert(stage.robot.truth, 0))
    stage.run(3)
    assert (placed, stage.starts.varied) == ([0], [1, 3])
    assert [end.success for end in stage.ends] == [True] * 5


def test_episode_starts_repeat_and_differ_by_actor_purpose_and_restore() -> None:
    robot = FakeRobot()

    def start(number: int, first: int = 0, actor: str = "a", final: bool = False) -> float:
        purpose = Purpose.FINAL if final else Purpose.TRAINING
        EpisodeStarts(robot, purpose, 7, actor, first).place(number)
        return float(robot.observe().state["position"][0])

    assert start(2) == start(2) == start(0, first=2), "a restarted actor goes on counting"
    starts = EpisodeStarts(robot, Purpose.TRAINING, 7, "a")
    restored = []
    for _ in range(2):
        starts.restore("the cube fell")
        restored.append(float(robot.observe().state["position"][0]))
    others = [start(1), start(2), start(3), start(2, actor="b"), start(2, final=True), *restored]
    assert len(set(others)) == 7


def test_reset_steps_stay_script_steps_when_operator_drives() -> None:
    stage = ActorBench()
    stage.starts.placements = 1
    stage.starts.placing = lambda episode: stage.robot._position.fill(0.0)
    stage.site.teleop = Teleoperator(np.array((0.0, 1.0), np.float32))
    stage.site.stopping = lambda: bool(stage.records) and isinstance(stage.records[-1], End)
    stage.run(1)
    assert {step.source for step in stage.steps} == {ActionSource.SCRIPT}
    np.testing.assert_array_equal(stage.steps[0].action, [0.0, 1.0])


class Teleoperator(NoOperator):
    """Operator input that always drives in one direction."""

    def __init__(self, action: Action) -> None:
        self._action, self.begun = action, 0

    def begin(self) -> None:
        self.begun += 1

    def __call__(self) -> Action:
        return self._action


def test_simulated_operator_does_not_act_in_resets() -> None:
    stage = ActorBench()
    stage.starts.placements = 1
    stage.starts.placing = lambda episode: stage.robot._position.fill(0.0)
    person = Teleoperator(np.array((0.0, 1.0), np.float32))
    mux = stage.site.teleop = TeleopMux((), person)
    stage.actor.observers = [*stage.actor.observers, mux]
    stage.run(1)
    first = [step for step in stage.steps if step.key.episode == 0]
    assert {step.source for step in first} == {ActionSource.SCRIPT}
    assert not any(np.array_equal(step.action, [0.0, 1.0]) for step in first)
    second = [step for step in stage.steps if step.key.episode == 1]
    assert {step.source for step in second} == {ActionSource.HUMAN}
    assert person.begun == 1, "a reset does not begin the simulated operator's episode"


def test_stopping_in_last_reset_requests_no_operator() -> None:
    stage = ActorBench()
    never_ready(stage)
    stage.site.stopping = lambda: len(stage.steps) >= 45
    stage.run(1)
    assert len(stage.steps) == 46  # the step in progress is the last
    assert not stage.robot.stop_reason


def test_reset_continues_after_silence_of_robot_and_begins_once_for_each_episode() -> None:
    begun, calls = list[int](), list[int]()

    class Counting(SceneReset):
        def begin(self) -> None:
            begun.append(len(calls))

        def __call__(self, reading: Observation) -> Policy | None:
            calls.append(1)
            if len(calls) == 1:
                raise Silent("no answer")
            return None

    stage = ActorBench(place=False)
    stage.robot.reset(0)
    stage.actor._scene_reset = Counting(stage.task)
    for _ in range(2):
        assert stage.actor.episode() is not None
    assert begun == [0, 2], "before the first call, and before that of the second episode"


def test_reset_is_planned_from_where_an_operator_left_the_robot() -> None:
    """Move the robot in a pause that follows the first attempt."""
    stage, planned = ActorBench(place=False), list[float]()
    stage.robot.place(0.1, 0.0)

    def reset(reading: Observation) -> Policy | None:
        planned.append(float(reading.state["position"][0]))
        return None if planned[-1] < 0.0 else ZeroPolicy(stage.robot.action_spec)

    def standby() -> bool:
        is_pause = bool(stage.ends) and planned[-1] > 0.0
        if is_pause:
            stage.robot.place(-0.1, 0.0)
        return is_pause

    stage.task.reset = reset  # type: ignore[method-assign]
    stage.site.held = standby
    assert stage.actor.bring_to_start()
    assert planned[-1] < 0.0
    assert len(stage.ends) == 1, "no attempt begins from where the robot is no more"


def test_reset_after_joint_move_begins_with_a_first_attempt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Let the reset set its own gains again: `ArmReset` does so in a first attempt only."""
    stage, calls = ActorBench(place=False), list[str]()

    class Noting(SceneReset):
        def __call__(self, reading: Observation) -> Policy | None:
            calls.append("reset")
            return None

        def confirm(self) -> None:
            calls.append("confirmed")

    monkeypatch.setattr(stage.robot, "home", lambda: calls.append("move"), raising=False)
    monkeypatch.setattr(stage.robot, "is_home", True, raising=False)
    stage.actor.config = stage.actor.config.model_copy(update={"home_every": 1})
    stage.actor._scene_reset = Noting(stage.task)
    stage.run(2)
    assert calls == ["reset", "reset", "move", "confirmed", "reset"]
