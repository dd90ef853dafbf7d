"""Scenes that the arm restores by itself: no episode but the first is placed by the simulator."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from serl import plugins
from serl.agent import Agent
from serl.clock import VirtualClock
from serl.errors import BadInput, NeedsPerson, SerlError
from serl.loop import EpisodeKey, RecordCallback, Result
from serl.policy import Policy, RandomPolicy, ZeroPolicy
from serl.runs.config import resolve, stage_configs
from serl.runs.settings import run_settings
from serl.runs.task_setup import make_task
from serl.task import SimulatedTask
from serl.testing import InProcess
from serl.training.actor import Actor, ActorConfig
from serl.training.learned_policy import LearnedPolicy
from serl.training.stages import Stage, take_turns
from serl.types import Action, ActionSource, End, Observation, Record, Step

from ..support.acting import FakeSite, FakeStarts


class Acting(LearnedPolicy):
    """A learned policy that acts as another one does."""

    def __init__(self, policy: Policy) -> None:
        super().__init__(no_agent(), InProcess())
        self.policy = policy

    def __call__(self, observation: Observation) -> Action:
        return self.policy(observation)


def no_agent() -> Any:
    return Agent


class Bench:
    """Actors of tasks on one simulated arm, what they recorded, and what was asked of a person."""

    def __init__(self, tasks: dict[str, SimulatedTask]) -> None:
        self.records: list[Record] = []
        self.placed: list[int] = []
        self.asked: list[str] = []
        self.robot: Any = plugins.make_simulation(next(iter(tasks.values())))
        self.sites = [FakeSite(person=self.help) for _ in tasks]
        for number, site in enumerate(self.sites):
            site.starts = FakeStarts(self.place, 0 if number else 1)
        self.actors = {
            name: Actor(
                EpisodeKey(name, "actor", 1, 0),
                self.robot,
                task,
                Acting(task.expert(self.robot.truth, 0)),
                VirtualClock(self.robot.advance, task.config.rate_hz),
                [RecordCallback(self.records.append)],
                site,
                ActorConfig(),
            )
            for (name, task), site in zip(tasks.items(), self.sites, strict=True)
        }

    def place(self, episode: int) -> None:
        self.placed.append(episode)
        self.robot.reset(episode)

    def help(self, reason: str) -> None:
        self.asked.append(reason)
        self.robot.reset(99)

    def ends(self, run: str) -> list[End]:
        return [each for each in self.records if isinstance(each, End) and each.key.run == run]

    def scripted(self) -> list[Step]:
        steps = [each for each in self.records if isinstance(each, Step)]
        return [step for step in steps if step.source is ActionSource.SCRIPT]

    def move(self, body: str, *position: float, yaw_rad: float = 0.0) -> None:
        """Somebody moves an object."""
        address = self.robot.model.jnt_qposadr[self.robot.model.body(body).jntadr[0]]
        turned = math.cos(0.5 * yaw_rad), 0.0, 0.0, math.sin(0.5 * yaw_rad)
        self.robot.data.qpos[address : address + 7] = (*position, *turned)
        self.robot.advance(0.3)


def restoring(name: str) -> tuple[Bench, Actor]:
    """The bench of a task that restores its scene, and its actor."""
    bench = Bench({"": make_task(resolve({"task": name, "task_config": {"auto_reset": True}}))})
    return bench, bench.actors[""]


def succeeded(actor: Actor) -> Result:
    """The result of the actor's next episode, a success."""
    result = actor.episode()
    assert result is not None
    assert result.success
    return result


def test_the_arm_puts_the_cube_down_elsewhere_and_goes_to_a_start() -> None:
    bench, actor = restoring("pick_cube")
    starts, cubes = [], []
    for _ in range(5):
        succeeded(actor)
        steps = [each for each in bench.records if isinstance(each, Step)]
        first = [s for s in steps if s.source is ActionSource.POLICY and s.key.index == 0][-1]
        assert first.observation.state["gripper"][0] > 0.9
        assert abs(first.observation.state["cube_height"][0]) < 0.006
        cubes.append(first.observation.state["cube_from_tcp"][:2])
        starts.append(bench.robot.truth()["tcp_pose"][:2])
    assert bench.placed == [0]
    assert not bench.asked
    assert len(bench.ends("")) == 9
    assert len({tuple(np.round(cube, 2)) for cube in cubes}) == 5, "starts do not differ"


def struck(bench: Bench, reading: int) -> None:
    """A picture is lost in the first episode."""
    observe, seen = bench.robot.observe, [0]

    def fading() -> Observation:
        seen[0] += 1
        if seen[0] == reading:
            raise SerlError("camera wrist: its image is 0.25 s old, over 0.2 s")
        return observe()  # type: ignore[no-any-return]

    bench.robot.observe = fading


@pytest.mark.parametrize("name", ["pick_cube", "racing_car"])
def test_an_arm_that_restores_its_scene_goes_on_after_a_fault(name: str) -> None:
    bench, actor = restoring(name)
    bench.sites[0].stopping = lambda: len(bench.records) > 1000
    struck(bench, 15)
    results = [actor.episode() for _ in range(3)]
    assert [result is not None and result.success for result in results] == [False, True, True]
    later = [each for each in bench.records if isinstance(each, Step) and each.key.episode > 0]
    assert sum(np.any(s.requested) and not np.any(s.action) for s in later) == 0
    assert (bench.placed, bench.asked) == ([0], [])


def test_a_cube_beside_the_field_is_brought_back() -> None:
    bench, actor = restoring("pick_cube")
    actor.episode()
    bench.robot.reset(3)
    bench.move("cube", 0.62, 0.23, 0.02)
    succeeded(actor)
    assert not bench.asked
    assert bench.scripted()[-1].terminated


def test_a_cube_out_of_reach_is_asked_for_once_in_words() -> None:
    bench, actor = restoring("pick_cube")
    actor.episode()
    bench.robot.reset(3)
    bench.move("cube", 0.80, 0.10, 0.02)
    succeeded(actor)
    assert bench.asked == ["a person is needed: the cube is at x 0.80 y 0.10 m, out of reach"]


def test_without_anybody_to_ask_the_arm_holds() -> None:
    bench, actor = restoring("pick_cube")
    actor.episode()
    bench.sites[0].person = None
    bench.robot.reset(3)
    bench.move("cube", 0.80, 0.10, 0.02)
    with pytest.raises(NeedsPerson, match="out of reach"):
        actor.episode()
    assert "out of reach" in bench.robot.stop_reason


def test_an_arm_that_exerts_wrenches_is_not_sent_home() -> None:
    with pytest.raises(BadInput, match=r"actor\.home_every: object_flip exerts wrenches"):
        run_settings("object_flip", {}, {"actor": {"home_every": 5}})
    for task, robot in (("racing_car", "car"), ("handover", "bimanual")):
        with pytest.raises(BadInput, match=rf"{task}: '{robot}' does not go home: expected 0"):
            run_settings(task, {}, {"actor": {"home_every": 5}})
    assert run_settings("pick_cube", {}, {"actor": {"home_every": 5}}).actor.home_every == 5


def test_the_joints_go_home_every_few_episodes_and_the_arm_comes_back() -> None:
    bench, actor = restoring("pick_cube")
    actor.config = ActorConfig(home_every=2)
    homes: list[float] = []
    home = bench.robot.home

    def begun() -> None:
        home()
        homes.append(len(bench.ends("")))

    bench.robot.home = begun
    for _ in range(4):
        succeeded(actor)
    assert homes == [4], "after the second reset"
    ends = bench.ends("")
    assert all(end.success for end in ends)
    assert len(ends) == 4 + 3 + 2, "four episodes, three resets, the move and the way back"
    at_home = ends[4].observation.state
    assert abs(at_home["lead"]).max() < 0.01
    assert not bench.asked


def test_joints_that_do_not_get_home_keep_nobody_from_going_on(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, actor = restoring("pick_cube")
    actor.config = ActorConfig(home_every=1, reset_time_limit_s=15.0)
    monkeypatch.setattr(type(bench.robot), "is_home", False)
    for _ in range(3):
        succeeded(actor)  # the arm obeys again
    reasons = [end.text for end in bench.ends("")]
    assert reasons.count("time limit") == 2
    assert not bench.asked
    assert [each.getMessage()[:28] for each in caplog.records] == ["the joints did not get home "]


def test_random_policies_leave_nothing_that_the_arm_cannot_restore() -> None:
    bench, actor = restoring("pick_cube")
    policy = actor.policy
    assert isinstance(policy, Acting)
    for seed in range(4):
        policy.policy = RandomPolicy(bench.robot.action_spec, seed)
        actor.episode()
    assert not bench.asked
    assert bench.placed == [0]


@pytest.mark.parametrize("name", ["peg_insertion", "connector_insertion"])
def test_the_arm_pulls_the_peg_out_and_begins_elsewhere(name: str) -> None:
    bench, actor = restoring(name)
    starts = []
    for _ in range(4):
        succeeded(actor)
        steps = [each for each in bench.records if isinstance(each, Step)]
        first = [s for s in steps if s.source is ActionSource.POLICY and s.key.index == 0][-1]
        x, y, z = first.observation.state["hole_from_tip"].tolist()
        assert math.hypot(x, y) < 0.05
        assert -0.066 < z < -0.014, "the tip is above the rim, as at other starts"
        starts.append((round(x, 3), round(y, 3)))
    assert len(set(starts)) == 4, "starts do not differ"
    assert bench.placed == [0]
    assert not bench.asked
    assert len(bench.ends("")) == 7
    assert all(end.success for end in bench.ends(""))


def resetting() -> list[str]:
    """Tasks that can restore their scene."""
    return [n for n in plugins.names("task") if plugins.load("task", n)().config.can_reset]


def test_these_tasks_restore_their_scene() -> None:
    assert resetting() == [
        "bin_relocation", "connector_insertion", "object_flip", "peg_insertion", "pick_cube",
        "racing_car",
    ]  # fmt: skip


@pytest.mark.parametrize("name", resetting())
def test_an_actor_that_is_started_in_a_solved_scene_begins_no_episode_in_it(name: str) -> None:
    config = resolve({"task": name, "task_config": {"auto_reset": True, "renderer": "none"}})
    bench = Bench({"": make_task(config)})
    succeeded(bench.actors[""])
    task = make_task(config)  # of another process, which has seen nothing
    begun: list[bool] = []

    class Started(Acting):
        def begin(self) -> None:
            task.begin(bench.robot.observe())
            begun.append(task.is_success(bench.robot.truth()))

    actor = dataclasses.replace(
        bench.actors[""],
        key=EpisodeKey("", "actor", 2, 0),
        task=task,
        policy=Started(task.expert(bench.robot.truth, 1)),
        site=FakeSite(person=bench.help),
    )
    result = succeeded(actor)  # from where it began it can be solved again
    assert begun == [False]
    assert result.steps > 1
    assert bench.placed == [0]
    assert not bench.asked


def test_a_peg_that_fell_is_asked_for_in_words() -> None:
    bench, actor = restoring("peg_insertion")
    actor.episode()
    bench.move("peg", 0.45, 0.08, 0.03)
    succeeded(actor)
    assert bench.asked == ["a person is needed: the peg is not in the hand"]


def test_a_task_without_a_reset_refuses_to_be_asked_for_one() -> None:
    with pytest.raises(BadInput, match="auto_reset: this task has no reset of its own"):
        make_task(resolve({"task": "reach", "task_config": {"auto_reset": True}}))


def stages() -> Bench:
    tuned = make_task(resolve({"task": "bin_relocation"})).training_defaults()
    configs = stage_configs(resolve(tuned, {"task": "bin_relocation"}))
    return Bench({name: make_task(config) for name, config in configs.items()})


def play(bench: Bench, episodes: int, judge: Callable[[str, int], None]) -> list[str]:
    """Which stage each episode was of."""
    stages = {"forward": Stage(then="backward"), "backward": Stage(then="forward", tries=2)}
    played: list[str] = []
    for stage, result in take_turns(bench.actors, stages):
        played.append(stage)
        judge(stage, result.success)
        if len(played) == episodes:
            break
    return played


def test_two_directions_reset_each_other() -> None:
    bench = stages()
    successes = []
    played = play(bench, 4, lambda stage, success: successes.append(success))
    assert played == ["forward", "backward", "forward", "backward"]
    assert successes == [True] * 4
    assert bench.placed == [0]
    assert not bench.asked


def test_help_that_leaves_the_part_in_the_goal_begins_no_episode_there() -> None:
    bench = stages()
    actor = bench.actors["backward"]
    bench.robot.reset(0)
    bench.move("part", 0.80, 0.10, 0.02)
    result = succeeded(actor)
    assert bench.asked == ["a person is needed: the part is at x 0.80 y 0.10 m, out of reach"]
    assert result.steps > 30, "it was carried back, which is no success, and then brought"
    ends = bench.ends("backward")
    assert [end.success for end in ends] == [False, True, True], "asked, reset, episode"


def test_a_part_is_grasped_from_a_side_to_which_the_tool_can_turn() -> None:
    bench = stages()
    actor = bench.actors["forward"]
    bench.robot.reset(0)
    for _ in range(15):
        bench.robot.act(np.array((0.0, 0.0, 0.0, 1.0, 0.0), np.float32))
        bench.robot.advance(0.1)
    bench.move("part", 0.47, 0.0, 0.02, yaw_rad=1.2)  # the tool is as far round as it gets: at 0.9
    bench.sites[0].starts = None
    succeeded(actor)
    assert [end.success for end in bench.ends("forward")] == [True, True]


def test_who_fails_tries_again() -> None:
    bench = stages()
    backward = bench.actors["backward"].policy
    assert isinstance(backward, Acting)
    expert, backward.policy = backward.policy, RandomPolicy(bench.robot.action_spec, 0)

    def judge(stage: str, success: int) -> None:
        if stage == "backward":
            backward.policy = expert

    assert play(bench, 4, judge) == ["forward", "backward", "backward", "forward"]
    assert bench.placed == [0]


def test_who_fails_too_often_hands_over_to_the_reset_of_the_next() -> None:
    bench = stages()
    backward = bench.actors["backward"].policy
    assert isinstance(backward, Acting)
    backward.policy = ZeroPolicy(bench.robot.action_spec)
    successes: list[int] = []
    played = play(bench, 4, lambda stage, success: successes.append(success))
    assert played == ["forward", "backward", "backward", "forward"]
    assert successes == [True, False, False, True]
    assert not bench.asked


def test_a_car_that_hits_every_wall_goes_on_by_itself() -> None:
    task = make_task(resolve({"task": "racing_car"}))
    bench = Bench({"": task})
    actor = bench.actors[""]
    actor.policy.policy = RandomPolicy(bench.robot.action_spec, seed=0)  # type: ignore[attr-defined]
    for episode in range(20):
        if episode == 10:
            actor.policy.policy = task.expert(bench.robot.truth, 0)  # type: ignore[attr-defined]
        result = actor.episode()
        assert result is not None
        if episode >= 12:
            assert result.success, "the next driver finds a car that can be driven"
            break
    assert sum(not end.success for end in bench.ends("")) >= 9, "it did collide"
    assert bench.placed == [0]
    assert not bench.asked
