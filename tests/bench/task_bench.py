"""Benchmark of tasks: success of the expert, speed, random steps, and results of trainings.

Measurements are kept in `tasks.json` and shown by `tests.bench.task_page`.
"""

from __future__ import annotations

import re
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from inspect import getdoc
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from serl import plugins
from serl.clock import VirtualClock
from serl.errors import CorruptData, SerlError
from serl.loop import EpisodeKey, Result, run
from serl.policy import RandomPolicy
from serl.robot import SimulatedRobot
from serl.runs.config import resolve, stage_configs
from serl.runs.task_setup import make_task
from serl.system.files import read_bounded
from serl.task import SimulatedTask
from serl.types import Action, ActionSource, Image, Observation
from serl.version import commit

_DEEP_M = 0.008  # exceeded by an object in a wall, not by one that a hand presses onto the table
_LONG_S = 1.0
_FAR_M = {"car": 4.0}
_ARM_FAR_M = 2.0
_BELOW_M = -0.01


class Walk(BaseModel):
    """The result of random steps in consecutive episodes.

    Attributes:
        steps: number of steps.
        warnings: warnings of MuJoCo: the simulation became unstable.
        not_finite: readings that contain NaN or infinity.
        lost: objects that left the world, fell through the table, or stayed in a wall.
        deepest_mm: largest penetration depth of a contact.
        recorded_in: the commit of the code; empty if not recorded.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    steps: int = Field(0, ge=0)
    warnings: int = Field(0, ge=0)
    not_finite: int = Field(0, ge=0)
    lost: int = Field(0, ge=0)
    deepest_mm: float = Field(0.0, ge=0)
    recorded_in: str = ""

    @property
    def faults(self) -> int:
        """The number of faults of any kind; after each one the scene was placed anew."""
        return self.warnings + self.not_finite + self.lost


def walk(task: SimulatedTask, robot: Any, steps: int, seed: int = 0) -> Walk:
    """Make random steps and check every reading for faults.

    Args:
        task: task with the rate and the time limit.
        robot: the task's simulation in MuJoCo, with contacts in `data`.
        steps: number of steps to make.
        seed: seed of the actions; the seed of each start is the number of its first step.
    """
    choose, rate_hz = RandomPolicy(robot.action_spec, seed), task.config.rate_hz
    far_m = _FAR_M.get(task.scene.robot, _ARM_FAR_M)
    counts = {"warnings": 0, "not_finite": 0, "lost": 0}
    held, action, deep_steps, deepest_m, fault = 0, choose(robot.observe()), 0, 0.0, ""
    for index in range(steps):
        if fault or index % task.config.max_steps == 0:
            robot.reset(index)
            deep_steps = 0
        if held == 0:  # each action is held for 1 to 7 steps, as white noise would not get far
            held, action = 1 + index % 7, choose(robot.observe())
        held -= 1
        robot.act(action)
        robot.advance(1.0 / rate_hz)
        depth_m = -float(robot.data.contact.dist.min(initial=0.0))
        deepest_m = max(deepest_m, depth_m)
        deep_steps = deep_steps + 1 if depth_m > _DEEP_M else 0
        fault = _fault(robot, far_m) or ("lost" if deep_steps >= _LONG_S * rate_hz else "")
        if fault:
            counts[fault] += 1
    return Walk(steps=steps, **counts, deepest_mm=round(deepest_m * 1e3, 1))


def _fault(robot: Any, far_m: float) -> str:
    """Return the kind of the present fault, a field of `Walk`; empty if there is none."""
    try:
        reading: Observation = robot.observe()
    except SerlError:  # MuJoCo has warned
        return "warnings"
    if not all(np.isfinite(value).all() for value in reading.state.values()):
        return "not_finite"
    places = [value[:3] for key, value in reading.state.items() if key.endswith("_pose")]
    away = any(np.abs(place).max() >= far_m or place[2] <= _BELOW_M for place in places)
    return "lost" if away else ""


DATA = "tasks.json"
_MAX_BYTES = 1 << 20
_SIZE_PX = (480, 360)
_SHOT = 0.5  # moment of a picture, as a share of the expert's first episode
_ROUNDS = 3


class Training(BaseModel):
    """The result of equal trainings of a task from state, over all their seeds.

    Attributes:
        command: command that repeats the training, for one seed.
        recorded_in: the commit of the code, or the one that documents the result.
        seeds: seeds of the runs.
        steps: online environment steps of each run.
        minutes: duration of the longest run, trials included; None if not recorded.
        successes: successful final trials of all runs.
        trials: final trials of all runs, unassisted, from starts not used in training.
        curve: file name of a plot, in the folder of the pictures; empty without one.
        cycle_s: mean task time of the successful trials, s.
        demonstrated_s: mean task time of the demonstrations, s.
        robot_minutes: longest motion of the robot in one run, resets included, in task time.
        episodes: online episodes of all runs.
        takeovers: takeovers by a human, in these episodes.
        requests: requests for a person, by robots that could not restore their scene.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    command: str
    recorded_in: str
    seeds: tuple[int, ...]
    steps: int = Field(ge=1)
    minutes: float | None = Field(None, gt=0)
    successes: int = Field(ge=0)
    trials: int = Field(ge=1)
    curve: str = Field("", pattern=r"^[\w.-]*$")
    cycle_s: float | None = None
    demonstrated_s: float | None = None
    robot_minutes: float | None = None
    episodes: int | None = None
    takeovers: int | None = None
    requests: int | None = None

    @property
    def settings(self) -> str:
        """The command without its seed, equal for trainings that differ only in their seeds."""
        return re.sub(r" --seed \d+$", "", self.command)

    @property
    def is_tuned(self) -> bool:
        """Whether the training uses the task's tuned settings."""
        return " --" not in self.settings


class Cloned(BaseModel):
    """The result of cloning demonstrations alone, without a robot step and without a human.

    Attributes:
        recorded_in: the commit of the code.
        seeds: seeds of the clones.
        demonstrations: number of the expert's demonstrations, for each seed.
        updates: gradient steps of each clone.
        successes: successful final trials of all clones.
        trials: final trials of all clones.
        cycle_s: mean task time of the successful trials, s.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    recorded_in: str
    seeds: tuple[int, ...]
    demonstrations: int = Field(ge=1)
    updates: int = Field(ge=1)
    successes: int = Field(ge=0)
    trials: int = Field(ge=1)
    cycle_s: float | None = None


class TaskRecord(BaseModel):
    """The measurements of a task.

    Attributes:
        expert_successes: successful trials of the scripted expert.
        expert_trials: trials of the scripted expert, one start each; 0 if not measured.
        expert_steps: mean number of steps of these trials.
        steps_per_s: environment steps with random actions, per second of one core's time.
        walk: result of many random steps; None if not measured.
        trainings: results of trainings from state.
        cloned: result of cloning alone; None if not measured. Written by hand.
        picture: content of the task's picture; empty for a moment of the expert's first try.
        reason: reason why trainings do not reach 95 %, if they do not; written by hand.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    expert_successes: int = Field(0, ge=0)
    expert_trials: int = Field(0, ge=0)
    expert_steps: float = Field(0.0, ge=0)
    steps_per_s: float = Field(0.0, ge=0)
    walk: Walk | None = None
    trainings: tuple[Training, ...] = ()
    cloned: Cloned | None = None
    picture: str = ""
    reason: str = ""

    @property
    def training(self) -> Training | None:
        """The training with tuned settings and the most seeds, the newest of equals; else None."""
        tuned = [training for training in self.trainings if training.is_tuned]
        return max(reversed(tuned), key=lambda each: len(each.seeds), default=None)

    def with_training(self, new: Training) -> TaskRecord:
        """Return the record with a training added, in place of those whose seeds it includes."""
        kept = [
            old
            for old in self.trainings
            if old.settings != new.settings or not set(old.seeds) <= set(new.seeds)
        ]
        return self.model_copy(update={"trainings": (*kept, new)})


_RECORDS = TypeAdapter(dict[str, TaskRecord])


def find_tasks(names: Iterable[str]) -> Iterator[SimulatedTask]:
    """Yield the tasks of these names; of a task that is trained in stages, each stage's task."""
    for name in names:
        named = {"task": name}
        config = resolve(make_task(resolve(named)).training_defaults(), named)
        for each in (stage_configs(config) or {"": config}).values():
            yield make_task(each)


def summaries() -> dict[str, str]:
    """Return the docstring of each task that is known by name."""
    return {each.name: getdoc(type(each)) or "" for each in find_tasks(plugins.names("task"))}


def measure(task: SimulatedTask, trials: int) -> tuple[TaskRecord, Image]:
    """Measure the expert's success and the speed of a task; take a picture of the expert."""
    with plugins.make_simulation(task) as robot:
        results = [expert_episode(task, robot, seed) for seed in range(trials)]
        record = TaskRecord(
            expert_successes=sum(result.success for result in results),
            expert_trials=trials,
            expert_steps=round(statistics.mean(result.steps for result in results), 1),
            steps_per_s=round(speed(task, robot)),
        )
        return record, shoot(task, robot, round(_SHOT * results[0].steps))


def wander(task: SimulatedTask, steps: int) -> Walk:
    """Make random steps in a simulation of the task; return the result with the code's commit."""
    made_with = commit()  # before: it may take an hour, and files change
    with plugins.make_simulation(task) as robot:
        return walk(task, robot, steps).model_copy(update={"recorded_in": made_with})


def expert_episode(
    task: SimulatedTask,
    robot: SimulatedRobot,
    seed: int,
    interrupted: Callable[[], bool] = lambda: False,
) -> Result:
    """Run an episode of the expert, from the start of a seed."""
    robot.reset(seed)
    clock = VirtualClock(robot.advance, task.config.rate_hz)
    key = EpisodeKey("bench", "expert", 1, seed)
    expert = task.expert(robot.truth, seed)
    return run(
        robot,
        task,
        expert,
        clock,
        key,
        [],
        chosen_by=ActionSource.SCRIPT,
        interrupted=interrupted,
    )


def speed(task: SimulatedTask, robot: SimulatedRobot, rounds: int = _ROUNDS) -> float:
    """Return environment steps per second of this thread's CPU time, the median of some episodes.

    Resets and drawing actions are not counted.
    """
    steps = task.config.max_steps
    seconds = []
    for seed in range(rounds):
        choose = RandomPolicy(robot.action_spec, seed)
        reading = robot.reset(seed)
        task.begin(reading)
        actions = [choose(reading) for _ in range(steps)]
        seconds.append(thread_s(partial(play, task, robot, actions)))
    return steps / statistics.median(seconds)


def play(task: SimulatedTask, robot: SimulatedRobot, actions: list[Action]) -> None:
    """Execute actions one after the other, without a reset, whatever their outcomes."""
    dt_s = 1.0 / task.config.rate_hz
    for index, action in enumerate(actions):
        robot.act(action)
        robot.advance(dt_s)
        reading = robot.observe()
        task.outcome(reading, index)
        task.observation(reading)


def thread_s(function: Callable[[], object]) -> float:
    """Return the CPU time that this thread spends in a call, s; other threads do not count."""
    start_s = time.thread_time()
    function()
    return time.thread_time() - start_s


def shoot(task: SimulatedTask, robot: SimulatedRobot, step: int) -> Image:
    """Return a picture of the expert after some steps from the first start.  # (H, W, 3) uint8."""
    left = iter(range(step))
    expert_episode(task, robot, 0, lambda: next(left, None) is None)
    picture: Image = plugins.make_renderer(robot, supersampling=2).frame("front", *_SIZE_PX)
    return picture


def load_records(docs: Path) -> dict[str, TaskRecord]:
    """Return the measurements of tasks, by name; {} if there is no file yet.

    Raises:
        CorruptData: the file is damaged.
    """
    path = docs / DATA
    if not path.exists():
        return {}
    try:
        return _RECORDS.validate_json(read_bounded(path, _MAX_BYTES))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise CorruptData(f"{path}: {where}: {first['msg']}") from None
