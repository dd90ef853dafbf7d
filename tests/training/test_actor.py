from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from serl.clock import WallClock
from serl.errors import NeedsPerson, Silent
from serl.log.episode_log import EpisodeLog
from serl.runs.task_setup import make_spec
from serl.teleop.stop import StopLatch
from serl.testing import FakeRobot
from serl.training.actor import Site
from serl.training.evaluation import Purpose
from serl.training.learned_policy import NoPolicy
from serl.training.resets import EpisodeStarts
from serl.types import Action, ActionSource, End, Observation, Outcome

from ..support.acting import ActorBench, snapshot


def test_actor_numbers_episodes_and_starts_each_at_its_placement() -> None:
    stage = ActorBench()
    stage.run(3)
    assert [end.key.episode for end in stage.ends] == [0, 1, 2]
    assert {record.key.epoch for record in stage.records} == {9}
    firsts = [step.observation for step in stage.steps if step.key.index == 0]
    for seed, first in enumerate(firsts):
        np.testing.assert_array_equal(
            first.state["position"], FakeRobot().reset(seed).state["position"]
        )


def test_robot_silent_before_first_step_restarts_episode_under_the_same_number() -> None:
    stage, silences = ActorBench(), [2]
    observe = stage.robot.observe

    def fading() -> Observation:
        if silences[0] > 0:
            silences[0] -= 1
            raise Silent("no news")
        return observe()

    stage.robot.observe = fading  # type: ignore[method-assign]
    stage.site.starts = None
    stage.run(1)
    keys = [record.key for record in stage.records]
    assert {key.episode for key in keys} == {0}, "an episode that never began uses up no number"
    silences[0] = 100
    with pytest.raises(Silent, match="no news"):
        stage.run(1)


def test_actor_sends_heartbeats_while_it_waits_for_weights() -> None:
    beats = list[str]()
    stage = ActorBench(stopping=lambda: len(beats) >= 3)
    stage.actor.clock = WallClock(10.0, lambda: beats.append("beat"))
    stage.run(1)
    assert len(beats) >= 3, "a guard would disarm meanwhile"
    assert not stage.records


def test_robot_is_brought_to_start_without_weights_and_without_an_episode() -> None:
    stage = ActorBench(place=False)
    stage.actor.policy = NoPolicy()
    stage.robot.place(0.01, 0.0)
    assert stage.actor.bring_to_start()
    assert stage.task.reset(stage.robot.observe()) is None
    assert {step.source for step in stage.steps} == {ActionSource.SCRIPT}
    stage.site.stopping = lambda: True
    assert not stage.actor.bring_to_start()


@pytest.mark.parametrize("index", [0, 5])
def test_robot_silence_during_act_ends_episode(index: int, tmp_path: Path) -> None:
    stage, acted = ActorBench(place=False), list[Action]()
    act = stage.robot.act

    def fading(action: Action) -> Action:
        acted.append(action)
        if len(acted) == index + 1:
            raise Silent("no answer")
        return act(action)

    stage.robot.reset(0)
    stage.robot.act = fading  # type: ignore[method-assign]
    with EpisodeLog(tmp_path, make_spec(stage.task), "run", "actor", 9) as log:
        stage.actor.observers = [log, *stage.actor.observers]
        stage.run(2)
    ends = [(end.text, end.key.episode) for end in stage.ends]
    assert ends == [("no answer", 0), ("time limit", 1)]
    last = stage.steps[index]
    assert (last.key.index, last.truncated, last.reward_provenance) == (index, True, "none")
    assert not last.action.any()


def test_site_without_operator_restores_scene_in_simulation_and_raises_otherwise() -> None:
    site, robot, request = Site(), FakeRobot(), NeedsPerson("the cube fell")
    assert not site.is_stopping()
    assert not site.standby()
    site.on_robot_stopped("a fault")
    with pytest.raises(Silent, match="no news"):
        site.on_silence(Silent("no news"))
    with pytest.raises(NeedsPerson, match="the cube fell"):
        site.on_reset_failed(request)
    robot.stop("the cube fell")
    site.starts = EpisodeStarts(robot, Purpose.TRAINING, 0, "actor")
    site.on_reset_failed(request)
    assert robot.stop_reason == ""


def test_stopping_ends_episode_and_actor() -> None:
    stage = ActorBench()
    stage.site.stopping = lambda: len(stage.steps) >= 40
    stage.run(9)
    assert len(stage.steps) == 41  # the step in progress is the last
    assert isinstance(stage.records[-1], End)
    assert stage.records[-1].reason == "interrupted"


def test_stopped_robot_waits_before_episode_then_recovers() -> None:
    stage, held = ActorBench(place=False), [True, False]

    def standby() -> bool:
        if held[0]:
            assert stage.robot.stop_reason
        return held.pop(0) if len(held) > 1 else held[0]

    stage.robot.reset(0)
    stage.robot.stop("by a person")
    stage.site.held = standby
    stage.run(1)
    assert stage.robot.stop_reason == ""


def silence_robot(stage: ActorBench, for_s: float) -> None:
    """Silence the bench's robot in its first episode for `for_s` seconds; place it only once."""
    observe, begins_s = stage.robot.observe, 0.45

    def fading() -> Observation:
        if begins_s < observe().stamps["robot"] < begins_s + for_s:
            stage.robot.stop("no picture")  # `read_robot` does the same, also between episodes
            raise Silent("no picture")
        return observe()

    stage.robot.reset(0)
    stage.robot.observe = fading  # type: ignore[method-assign]


@pytest.mark.parametrize("silent_s", [0.1, 0.3])
def test_simulated_robot_resumes_once_its_readings_are_valid(silent_s: float) -> None:
    stage = ActorBench(place=False)
    silence_robot(stage, silent_s)
    stage.weights.publish(snapshot(1, 0.5))
    stage.run(3)
    assert [end.text for end in stage.ends] == ["no picture", "time limit", "time limit"]
    last = [step for step in stage.steps if step.key.episode == 1]
    assert all(step.action.any() for step in last[:5]), "the robot is still stopped"


def test_robot_stopped_by_fault_waits_for_operator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage, hold, asked = ActorBench(place=False), StopLatch(tmp_path / "stopped"), list[str]()
    stage.robot.reset(0)
    outcomes, fault = (
        [Outcome(), Outcome(math.nan)],
        "reward nan: expected at most 1e+06 either way",
    )
    judge = stage.task.outcome

    def judged(reading: Observation, index: int) -> Outcome:
        return outcomes.pop(0) if outcomes else judge(reading, index)

    monkeypatch.setattr(stage.task, "outcome", judged)

    def person() -> bool:
        asked.append(f"{hold.reason}; {stage.robot.stop_reason}")
        hold.resume()
        return False

    stage.site.silent, stage.site.held = hold.pause, lambda: hold.wait(person)
    stage.run(3)
    assert asked == [f"{fault}; {fault}"]
    assert [end.text for end in stage.ends] == [fault, "time limit", "time limit"]
    assert not stage.robot.stop_reason


def test_operator_stop_raises_no_further_request(tmp_path: Path) -> None:
    stage, hold, asked = ActorBench(place=False), StopLatch(tmp_path / "stopped"), list[str]()
    stage.robot.reset(0)
    stage.robot.stop("stopped")
    hold.stop("stopped by a person")

    def person() -> bool:
        hold.release()
        hold.resume()
        return False

    stage.site.silent, stage.site.held = asked.append, lambda: hold.wait(person)
    stage.run(1)
    assert not asked
    assert not stage.robot.stop_reason


def test_fault_during_approach_starts_no_episode_on_stopped_robot() -> None:
    stage = ActorBench()
    stage.weights.publish(snapshot(1, 0.5))
    stage.actor._approach = lambda: stage.robot.stop("a fault")  # type: ignore[method-assign]
    stage.run(1)
    assert stage.steps[0].action.any()


def test_actor_stopped_while_robot_is_held_runs_no_episode() -> None:
    stopping = False

    def standby() -> bool:
        nonlocal stopping
        stopping = True
        return True

    stage = ActorBench(stopping=lambda: stopping)
    stage.site.held = standby
    stage.run(3)
    assert stage.records == []
