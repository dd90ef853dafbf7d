"""Estimate of a training's duration, in simulation and on an arm, from measured rates."""

from __future__ import annotations

import argparse
import math
import os
import time
from collections.abc import Callable, Sequence
from itertools import count
from typing import NamedTuple

import numpy as np
from pydantic import Field
from rich.console import Console
from rich.table import Table

from serl import plugins
from serl.agent import Agent
from serl.arm_profile import is_real
from serl.cli.arguments import add_config, add_task, number
from serl.clock import VirtualClock
from serl.errors import BadInput, counted
from serl.loop import EpisodeKey, RecordCallback, run
from serl.report.display import Display
from serl.robot import SimulatedRobot
from serl.runs.assembly import frame_encoder, make_acting_agent, make_agent, make_replay
from serl.runs.baseline import LENGTHS as CLONE_LENGTHS
from serl.runs.config import TrainConfig, parse_overrides
from serl.runs.demonstrations import record_expert
from serl.runs.settings import run_settings
from serl.runs.task_setup import make_demonstrated_task, make_spec, make_task
from serl.system.settings_file import read_yaml
from serl.task import SimulatedTask
from serl.training.evaluation import Purpose, start_seed
from serl.training.frames import FrameStack
from serl.types import (
    Action,
    ActionSource,
    End,
    EndReason,
    FrozenModel,
    Key,
    Observation,
    Record,
    Step,
)


class Rates(FrozenModel):
    """Measured rates of one machine, each measured on its own.

    Attributes:
        env_steps_per_s: steps of one actor with its simulation, the policy's action included, 1/s.
        updates_per_s: updates of the learner, each for one environment step, 1/s.
        act_s: duration of one action of the policy, s.
        expert_steps: mean length of the expert's episodes, steps.
    """

    env_steps_per_s: float = Field(gt=0)
    updates_per_s: float = Field(gt=0)
    act_s: float = Field(gt=0)
    expert_steps: float = Field(gt=0)


class Conditions(FrozenModel):
    """Conditions that a plan applies to.

    Attributes:
        rate_hz: control rate.
        max_steps: longest episode, steps.
        processors: number of processors that actors and learner share in simulation.
        gpu: whether the learner updates on a GPU and needs no processor for it.
        reset_s: time between two episodes on an arm.
    """

    rate_hz: float = Field(gt=0)
    max_steps: int = Field(ge=1)
    processors: int = Field(ge=1)
    gpu: bool = False
    reset_s: float = Field(5.0, ge=0)


class TrainingPart(NamedTuple):
    """A part of a training and its duration.

    Attributes:
        name: name for display.
        amount: amount with its unit, for display.
        simulation_s: duration in simulation.
        arm_s: duration on an arm.
    """

    name: str
    amount: str
    simulation_s: float
    arm_s: float


class Plan(NamedTuple):
    """The parts of a training in their order, and the bottlenecks.

    Attributes:
        simulation_bottleneck: description of the bottleneck in simulation.
        arm_bottleneck: description of the bottleneck on an arm.
    """

    parts: tuple[TrainingPart, ...]
    simulation_bottleneck: str
    arm_bottleneck: str

    @property
    def simulation_s(self) -> float:
        """The duration of all parts in simulation."""
        return sum(part.simulation_s for part in self.parts)

    @property
    def arm_s(self) -> float:
        """The duration of all parts on an arm."""
        return sum(part.arm_s for part in self.parts)


def make_plan(config: TrainConfig, rates: Rates, conditions: Conditions) -> Plan:
    """Return the plan of a run, with every trial and online episode at its full length.

    The learner of an arm is assumed to run concurrently on a machine like this one. The selection
    of the checkpoint and the final trials are in simulation, unless the run has a real arm: then
    they are on that arm, with a reset before each.
    """
    steps, demos = config.steps, 0 if config.demo_paths else config.demos
    demo_steps = demos * rates.expert_steps
    warm_up_s = config.learner.warm_up / rates.updates_per_s
    together, simulated = _simulated_rate(config.actors, rates, conditions)
    act_hz = 1.0 / rates.act_s
    control_hz = min(conditions.rate_hz, act_hz) * config.actors
    on_arm = min(control_hz, rates.updates_per_s)
    episodes = steps / conditions.max_steps  # at least
    reset_s, real = conditions.reset_s, is_real(config.robot)
    trials = _trials(config, real)
    trial_s = on_arm_s = trials * conditions.max_steps / rates.env_steps_per_s
    if real:
        on_arm_s = trials * (conditions.max_steps / conditions.rate_hz + reset_s)
    arm = "the control rate of the arm"
    if rates.updates_per_s < control_hz:
        arm = "the learner's updates"
    elif act_hz < conditions.rate_hz:
        arm = "the policy, which is slower than the control rate"
    parts = (
        TrainingPart(
            "demonstrations",
            counted(demos, "episode"),
            demo_steps / rates.env_steps_per_s,
            demo_steps / conditions.rate_hz + demos * reset_s,
        ),
        TrainingPart("warm-up", counted(config.learner.warm_up, "update"), warm_up_s, warm_up_s),
        TrainingPart("training", counted(steps, "step"), steps / together, steps / on_arm),
        TrainingPart("resets", f"{episodes:,.0f} or more", 0.0, episodes * reset_s / config.actors),
        TrainingPart("selection and trials", counted(trials, "episode"), trial_s, on_arm_s),
    )
    return Plan(parts, simulated, arm)


def _trials(config: TrainConfig, real: bool) -> int:
    """Return the largest number of trials: selection and final ones, in simulation of a clone, too.

    In simulation, the final trials are repeated with the last checkpoint if another one is chosen.
    """
    if real:
        return config.trials + config.arm_selection_trials * config.selection_checkpoints
    saved = math.ceil(config.steps / config.learner.checkpoint_every)
    before = config.learner.warm_up > 0 or config.init_from.run is not None  # any practice
    compared = min(saved, config.selection_checkpoints) + before
    trials = compared * config.selection_trials + config.trials * min(compared, 2)
    if config.baseline == "clone":
        trials += len(CLONE_LENGTHS) * config.selection_trials + config.trials
    return trials


def _simulated_rate(actors: int, rates: Rates, conditions: Conditions) -> tuple[float, str]:
    """Return the online steps per second of actors and learner together, and the bottleneck.

    Each process uses at most one processor, and all together at most `processors`.
    """
    acting, learning = actors * rates.env_steps_per_s, rates.updates_per_s
    work_s = 1.0 / rates.env_steps_per_s + (0.0 if conditions.gpu else 1.0 / learning)
    sharing = conditions.processors / work_s
    limits = {
        "the simulation": acting,
        "the learner's updates": learning,
        f"the processors, {conditions.processors} for {actors + 1} processes": sharing,
    }
    slowest = min(limits, key=lambda name: limits[name])
    return limits[slowest], slowest


_EXPERT_EPISODES = 2
_FIRST_UPDATES = 2  # slower: they allocate plans and buffers
Now = Callable[[], float]


class _TimedPolicy:
    """An agent as a policy that measures the total duration of its actions."""

    def __init__(self, agent: Agent, frames: int, now: Now) -> None:
        self.total_s, self.stack = 0.0, FrameStack(frames)
        self._agent, self._now = agent, now

    def __call__(self, observation: Observation) -> Action:
        begin_s = self._now()
        action = self._agent.act(self.stack(observation), explore=True)
        self.total_s += self._now() - begin_s
        return action


def measure(
    config: TrainConfig,
    seconds: float,
    now: Now = time.perf_counter,
    on_part: Callable[[str], object] = lambda text: None,
) -> tuple[Rates, bool]:
    """Measure rates of simulation, policy and learner; return them and whether there is a GPU.

    Nothing is written. For a task without a simulation the step rate is its control rate; policy
    and learner are measured on random readings.

    Args:
        config: settings of the planned run.
        seconds: duration of each measurement.
        now: clock, monotonic seconds.
        on_part: called with the description of each measurement at its start.
    """
    task = make_task(config)
    acting = make_acting_agent(config, make_spec(task), 0)
    policy = _TimedPolicy(acting, config.agent.frames, now)
    demonstrated: list[Record] = []
    env_steps_per_s, expert_steps = task.config.rate_hz, float(task.config.max_steps)
    if task.scene.simulated:
        with plugins.make_simulation(task) as robot:
            on_part("measuring demonstrations (1 of 3)")
            if getattr(task, "has_expert", True):
                demonstrated = _demonstrate(config, robot)
            on_part("measuring the simulation and the policy (2 of 3)")
            collected, env_s = _practise(config, task, robot, policy, seconds, now)
        env_steps_per_s = sum(isinstance(record, Step) for record in collected) / env_s
        if demonstrated:
            expert_steps = len(demonstrated) / _EXPERT_EPISODES - 1  # the end record is no step
    else:
        on_part("measuring the policy")
        collected = _imagine(task, policy, seconds, now)
    on_part("measuring the learner's updates (3 of 3)")
    agent = make_agent(config, make_spec(task), 0)
    rates = Rates(
        env_steps_per_s=env_steps_per_s,
        updates_per_s=_updates_per_s(config, agent, demonstrated, collected, seconds, now),
        act_s=policy.total_s / sum(isinstance(record, Step) for record in collected),
        expert_steps=expert_steps,
    )
    return rates, str(getattr(agent, "device", "cpu")) != "cpu"


def _demonstrate(config: TrainConfig, robot: SimulatedRobot) -> list[Record]:
    """Return some episodes of the demonstrator."""
    records: list[Record] = []
    record_expert(
        robot,
        make_demonstrated_task(config),
        records.append,
        _EXPERT_EPISODES,
        config.seed,
        EpisodeKey("plan", "expert", 1, 0),
        by_hand=config.demonstrator == "human",
    )
    return records


def _practise(
    config: TrainConfig,
    task: SimulatedTask,
    robot: SimulatedRobot,
    policy: _TimedPolicy,
    seconds: float,
    now: Now,
) -> tuple[list[Record], float]:
    """Run the policy in simulation for some time; return the records and the elapsed time, s."""
    records: list[Record] = []
    clock, begin_s = VirtualClock(robot.advance, task.config.rate_hz), now()
    for episode in count():
        robot.reset(start_seed(Purpose.TRAINING, config.seed, "plan", episode))
        policy.stack.begin()
        key = EpisodeKey("plan", "actor", 1, episode)
        run(robot, task, policy, clock, key, [RecordCallback(records.append)])
        if (env_s := now() - begin_s) >= seconds:
            return records, env_s
    raise AssertionError  # never reached


def _imagine(task: SimulatedTask, policy: _TimedPolicy, seconds: float, now: Now) -> list[Record]:
    """Return episodes of the policy's actions on random observations, over some time."""
    spec, rng = task.observation_spec, np.random.default_rng(0)
    state = {name: rng.normal(size=each.shape).astype("f4") for name, each in spec.state.items()}
    images = {name: rng.integers(0, 256, each.shape, "u1") for name, each in spec.images.items()}
    seen, records, begin_s = Observation(state, images, {"robot": 0.0}), list[Record](), now()
    for episode in count():
        policy.stack.begin()
        for index in range(task.config.max_steps):
            action, is_last = policy(seen), index + 1 == task.config.max_steps
            key, source = Key("plan", "actor", 1, episode, index), ActionSource.POLICY
            records.append(
                Step(key, seen, action, action, 0.0, "none", False, is_last, source, 1, 0.0, 0.0)
            )
        end = Key("plan", "actor", 1, episode, task.config.max_steps)
        records.append(End(end, seen, False, EndReason.TIME_LIMIT, 0.0, 0.0))
        if now() - begin_s >= seconds:
            return records
    raise AssertionError  # never reached


def _updates_per_s(
    config: TrainConfig,
    agent: Agent,
    demonstrated: Sequence[Record],
    collected: Sequence[Record],
    seconds: float,
    now: Now,
) -> float:
    """Measure the learner's updates per second, on batches from a replay of the recorded steps."""
    replay = make_replay(config, make_spec(make_task(config)), None, frame_encoder(agent))
    for record in demonstrated:
        replay.add(record, prior=True)
    for record in collected:
        replay.add(record)
    agent.fit_normaliser(replay.states())
    rows, share = config.agent.utd * config.agent.batch_size, config.learner.prior_share
    for _ in range(_FIRST_UPDATES):
        agent.update(replay.sample(rows, share))
    updates, begin_s = 0, now()
    while (elapsed_s := now() - begin_s) < seconds:
        agent.update(replay.sample(rows, share))
        updates += 1
    return updates / elapsed_s


def plan_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `serl plan`."""
    add_task(parser)
    add_config(parser)
    parser.add_argument(
        "--seconds", type=number(0.1, 60), default=3.0, help="duration of each measurement, s"
    )
    parser.add_argument(
        "--reset-s", type=number(0, 3600), default=5.0, help="duration of a reset on an arm, s"
    )


def plan(options: argparse.Namespace) -> int:
    """Measure rates and print the plan.

    Raises:
        BadInput: a setting cannot be used.
    """
    file = read_yaml(options.config) if options.config else {}
    config = run_settings(options.task, file, parse_overrides(options.overrides))
    if config.stages:
        raise BadInput("stages: plan one task at a time, with --stages null")
    console, task = Console(highlight=False, emoji=False), make_task(config)
    with Display(console).working("measuring") as on_part:
        rates, gpu = measure(config, options.seconds, on_part=on_part)
    conditions = Conditions(
        rate_hz=task.config.rate_hz,
        max_steps=task.config.max_steps,
        processors=len(os.sched_getaffinity(0)),
        gpu=gpu,
        reset_s=options.reset_s,
    )
    planned = make_plan(config, rates, conditions)
    show(console, config, rates, conditions, planned, task.scene.simulated)
    return 0


def show(
    console: Console,
    config: TrainConfig,
    rates: Rates,
    conditions: Conditions,
    plan: Plan,
    simulated: bool = True,
) -> None:
    """Print the measured rates, the duration of each part, and the bottlenecks.

    Numbers of the simulation are left out unless `simulated`.
    """
    agent = config.agent
    console.print(
        f"{config.task}: {config.steps:,} steps, actors {config.actors}, batch {agent.batch_size}, "
        f"UTD {agent.utd}, processors {conditions.processors}",
        soft_wrap=True,
    )
    if (load := os.getloadavg()[0]) > conditions.processors + 1:
        console.print(f"load {load:.1f}: other processes use this machine; an idle one is faster")
    simulation = f", {rates.env_steps_per_s:,.0f} steps/s of one simulation with its policy"
    console.print(
        f"measured: {1e3 * rates.act_s:.1f} ms for an action{simulation if simulated else ''},\n"
        f"{rates.updates_per_s:,.1f} updates/s (for each environment step one update, with "
        f"{agent.utd} updates of the critics)",
        soft_wrap=True,
    )
    table = Table(box=None)
    columns = ("minutes in simulation",) if simulated else ()
    for title in ("part", "amount", *columns, f"minutes at {conditions.rate_hz:g} Hz"):
        table.add_column(title, justify="right" if title.startswith("minutes") else "left")
    for part in plan.parts:
        times_s = (part.simulation_s, part.arm_s)[not simulated :]
        table.add_row(part.name, part.amount, *map(_minutes, times_s))
    times_s = (plan.simulation_s, plan.arm_s)[not simulated :]
    table.add_row("total", "", *map(_minutes, times_s), style="bold")
    console.print(table)
    if simulated:
        console.print(f"bottleneck in simulation: {plan.simulation_bottleneck}")
    console.print(
        f"bottleneck on an arm: {plan.arm_bottleneck}\n"
        f"assumed duration of a reset: {conditions.reset_s:g} s (--reset-s)",
        soft_wrap=True,
    )


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.1f}"
