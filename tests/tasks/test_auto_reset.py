"""Scripted resets of scenes: the simulator places only the first episode."""

from __future__ import annotations

import dataclasses
import math
from itertools import islice
from typing import Any

import numpy as np
import pytest

from serl import plugins
from serl.clock import VirtualClock
from serl.errors import BadInput, SerlError
from serl.loop import EpisodeKey, RecordCallback, Result
from serl.policy import RandomPolicy
from serl.runs.config import resolve, stage_configs
from serl.runs.settings import run_settings
from serl.runs.task_setup import make_task
from serl.task import SimulatedTask
from serl.training.actor import Actor, ActorConfig
from serl.training.stages import Stage, take_turns
from serl.types import ActionSource, End, Observation, Record, Step

from ..support.acting import DelegatingPolicy, FakeSite, FakeStarts


class Bench:
    """Actors of tasks on one simulated arm, with their records and requests to the operator."""

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
                DelegatingPolicy(task.expert(self.robot.truth, 0)),
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
        """Move an object to a position in metres, as an operator would."""
        address = self.robot.model.jnt_qposadr[self.robot.model.body(body).jntadr[0]]
        turned = math.cos(0.5 * yaw_rad), 0.0, 0.0, math.sin(0.5 * yaw_rad)
        self.robot.data.qpos[address : address + 7] = (*position, *turned)
        self.robot.advance(0.3)


def make_resetting_bench(name: str) -> tuple[Bench, Actor]:
    """Return the bench of a task with scripted reset, and its actor."""
    bench = Bench({"": make_task(resolve({"task": name, "task_config": {"auto_reset": True}}))})
    return bench, bench.actors[""]


def run_success(actor: Actor) -> Result:
    """Run the actor's next episode, require success and return its result."""
    result = actor.episode()
    assert result is not None
    assert result.success
    return result


def test_scripted_reset_moves_cube_and_returns_arm_to_start() -> None:
    bench, actor = make_resetting_bench("pick_cube")
    starts, cubes = [], []
    for _ in range(3):
        run_success(actor)
        steps = [each for each in bench.records if isinstance(each, Step)]
        first = [s for s in steps if s.source is ActionSource.POLICY and s.key.index == 0][-1]
        assert first.observation.state["gripper"][0] > 0.9
        assert abs(first.observation.state["cube_height"][0]) < 0.006
        cubes.append(first.observation.state["cube_from_tcp"][:2])
        starts.append(bench.robot.truth()["tcp_pose"][:2])
    assert bench.placed == [0]
    assert not bench.asked
    assert len(bench.ends("")) == 5
    assert len({tuple(np.round(cube, 2)) for cube in cubes}) == 3, "starts do not differ"


def lose_image(bench: Bench, reading: int) -> None:
    """Make one reading of the first episode fail with an outdated image."""
    observe, seen = bench.robot.observe, [0]

    def fading() -> Observation:
        seen[0] += 1
        if seen[0] == reading:
            raise SerlError("camera wrist: its image is 0.25 s old, over 0.2 s")
        return observe()  # type: ignore[no-any-return]

    bench.robot.observe = fading


@pytest.mark.parametrize("name", ["pick_cube", "racing_car"])
def test_task_with_reset_continues_after_camera_fault(name: str) -> None:
    bench, actor = make_resetting_bench(name)
    bench.sites[0].stopping = lambda: len(bench.records) > 1000
    lose_image(bench, 15)
    results = [actor.episode() for _ in range(3)]
    assert [result is not None and result.success for result in results] == [False, True, True]
    later = [each for each in bench.records if isinstance(each, Step) and each.key.episode > 0]
    assert sum(np.any(s.requested) and not np.any(s.action) for s in later) == 0
    assert (bench.placed, bench.asked) == ([0], [])


def test_reset_brings_back_cube_outside_its_field() -> None:
    bench, actor = make_resetting_bench("pick_cube")
    actor.episode()
    bench.robot.reset(3)
    bench.move("cube", 0.62, 0.23, 0.02)
    run_success(actor)
    assert not bench.asked
    assert bench.scripted()[-1].terminated


@pytest.mark.parametrize(
    ("name", "body", "position", "reason"),
    [
        ("pick_cube", "cube", (0.80, 0.10, 0.02), "the cube is at x 0.80 y 0.10 m, out of reach"),
        ("peg_insertion", "peg", (0.45, 0.08, 0.03), "the peg is not in the hand"),
    ],
)
def test_reset_asks_operator_once_for_object_that_it_cannot_take(
    name: str, body: str, position: tuple[float, ...], reason: str
) -> None:
    bench, actor = make_resetting_bench(name)
    actor.episode()
    bench.robot.reset(3)
    bench.move(body, *position)
    run_success(actor)
    assert bench.asked == [f"a person is needed: {reason}"]


def test_joint_homing_is_refused_where_unsupported() -> None:
    with pytest.raises(BadInput, match=r"actor\.home_every: object_flip exerts wrenches"):
        run_settings("object_flip", {}, {"actor": {"home_every": 5}})
    for task, robot in (("racing_car", "car"), ("handover", "bimanual")):
        with pytest.raises(BadInput, match=rf"{task}: '{robot}' does not go home: expected 0"):
            run_settings(task, {}, {"actor": {"home_every": 5}})
    assert run_settings("pick_cube", {}, {"actor": {"home_every": 5}}).actor.home_every == 5


def test_joints_go_home_every_few_episodes_and_arm_returns_to_start() -> None:
    bench, actor = make_resetting_bench("pick_cube")
    actor.config = ActorConfig(home_every=2)
    homes: list[float] = []
    home = bench.robot.home

    def begun() -> None:
        home()
        homes.append(len(bench.ends("")))

    bench.robot.home = begun
    for _ in range(4):
        run_success(actor)
    assert homes == [4], "after the second reset"
    ends = bench.ends("")
    assert all(end.success for end in ends)
    assert len(ends) == 4 + 3 + 2, "four episodes, three resets, the homing move and the return"
    at_home = ends[4].observation.state
    assert abs(at_home["lead"]).max() < 0.01
    assert not bench.asked


def test_reset_restores_scene_after_random_policies() -> None:
    bench, actor = make_resetting_bench("pick_cube")
    policy = actor.policy
    assert isinstance(policy, DelegatingPolicy)
    for seed in range(2):
        policy.policy = RandomPolicy(bench.robot.action_spec, seed)
        actor.episode()
    assert not bench.asked
    assert bench.placed == [0]


@pytest.mark.parametrize("name", ["peg_insertion", "connector_insertion"])
def test_scripted_reset_pulls_peg_out_and_starts_elsewhere(name: str) -> None:
    bench, actor = make_resetting_bench(name)
    starts = []
    for _ in range(3):
        run_success(actor)
        steps = [each for each in bench.records if isinstance(each, Step)]
        first = [s for s in steps if s.source is ActionSource.POLICY and s.key.index == 0][-1]
        x, y, z = first.observation.state["hole_from_tip"].tolist()
        assert math.hypot(x, y) < 0.05
        assert -0.066 < z < -0.014, "the tip is above the rim, as at other starts"
        starts.append((round(x, 3), round(y, 3)))
    assert len(set(starts)) == 3, "starts do not differ"
    assert bench.placed == [0]
    assert not bench.asked
    assert len(bench.ends("")) == 5
    assert all(end.success for end in bench.ends(""))


def resetting() -> list[str]:
    """Return the names of tasks that can restore their scene."""
    return [n for n in plugins.names("task") if plugins.load("task", n)().config.can_reset]


def test_tasks_with_scripted_reset() -> None:
    assert resetting() == [
        "bin_relocation", "connector_insertion", "object_flip", "peg_insertion", "pick_cube",
        "racing_car",
    ]  # fmt: skip


@pytest.mark.parametrize("name", resetting())
def test_restarted_actor_starts_no_episode_in_solved_scene(name: str) -> None:
    config = resolve({"task": name, "task_config": {"auto_reset": True, "renderer": "none"}})
    bench = Bench({"": make_task(config)})
    run_success(bench.actors[""])
    task = make_task(config)  # a fresh task, as in a restarted process
    begun: list[bool] = []

    class Started(DelegatingPolicy):
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
    result = run_success(actor)  # the task can be solved again from its start
    assert begun == [False]
    assert result.steps > 1
    assert bench.placed == [0]
    assert not bench.asked


def test_auto_reset_is_refused_for_task_without_reset() -> None:
    with pytest.raises(BadInput, match="auto_reset: this task has no reset of its own"):
        make_task(resolve({"task": "reach", "task_config": {"auto_reset": True}}))


def stages() -> Bench:
    tuned = make_task(resolve({"task": "bin_relocation"})).training_defaults()
    configs = stage_configs(resolve(tuned, {"task": "bin_relocation"}))
    return Bench({name: make_task(config) for name, config in configs.items()})


def test_two_directions_reset_each_other() -> None:
    bench = stages()
    turns = {"forward": Stage(then="backward"), "backward": Stage(then="forward")}
    played = list(islice(take_turns(bench.actors, turns), 4))
    assert [stage for stage, _ in played] == ["forward", "backward", "forward", "backward"]
    assert all(result.success for _, result in played)
    assert bench.placed == [0]
    assert not bench.asked


def test_part_left_in_goal_by_operator_is_moved_before_episode() -> None:
    bench = stages()
    actor = bench.actors["backward"]
    bench.robot.reset(0)
    bench.move("part", 0.80, 0.10, 0.02)
    result = run_success(actor)
    assert bench.asked == ["a person is needed: the part is at x 0.80 y 0.10 m, out of reach"]
    assert result.steps > 30, "the part was carried back, without success, and then brought"
    ends = bench.ends("backward")
    assert [end.success for end in ends] == [False, True, True], "operator request, reset, episode"


def test_part_is_grasped_from_side_within_tool_yaw_range() -> None:
    bench = stages()
    actor = bench.actors["forward"]
    bench.robot.reset(0)
    for _ in range(15):
        bench.robot.act(np.array((0.0, 0.0, 0.0, 1.0, 0.0), np.float32))
        bench.robot.advance(0.1)
    bench.move("part", 0.47, 0.0, 0.02, yaw_rad=1.2)  # the tool's yaw is at its limit of 0.9 rad
    bench.sites[0].starts = None
    run_success(actor)
    assert [end.success for end in bench.ends("forward")] == [True, True]


def test_car_resets_itself_after_collisions() -> None:
    task = make_task(resolve({"task": "racing_car"}))
    bench = Bench({"": task})
    actor = bench.actors[""]
    actor.policy.policy = RandomPolicy(bench.robot.action_spec, seed=0)  # type: ignore[attr-defined]
    for _ in range(4):
        actor.episode()
    assert sum(not end.success for end in bench.ends("")) >= 4, "the random policy collided"
    actor.policy.policy = task.expert(bench.robot.truth, 0)  # type: ignore[attr-defined]
    run_success(actor)  # the expert starts with a drivable car
    assert bench.placed == [0]
    assert not bench.asked
