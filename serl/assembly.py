"""Puts the parts of a run together as its configuration says; nodes and tests share it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from serl import plugins
from serl.actor import Actor, LearnedPolicy, Pace
from serl.agents.agent import Agent, State
from serl.agents.config import SACConfig
from serl.camera_watch import CameraWatch, CameraWatchConfig, WatchedRobot
from serl.checkpoint import Checkpoint
from serl.clock import Clock, VirtualClock
from serl.config import TrainConfig, checked, merge
from serl.evaluation import Purpose, start_seed
from serl.frames import frame_bytes
from serl.intervention import Teleop
from serl.learner import Learner, LearnerConfig
from serl.metrics import Metrics
from serl.replay import Replay
from serl.reward import Judged, PersonReward, PoseReward
from serl.robot import SimulatedRobot
from serl.specs import Spec
from serl.task import SimulatedTask
from serl.teleop.onlooker import Onlooker
from serl.teleop.scripted import ScriptedHuman, Seen
from serl.transport import LearnerEnd, WeightSource
from serl.types import Arrival, Record

_STATISTICS_STEPS = 500
_SIMULATED_CAMERAS = CameraWatchConfig(frozen_readings=0)  # what is still looks the same


def make_task(config: TrainConfig) -> SimulatedTask:
    """The task by name or path, with its configuration's overrides checked."""
    kind = plugins.load("task", config.task)
    task: SimulatedTask = kind()
    overrides = dict(config.task_config)
    if config.observe is not None:
        overrides["observe"] = config.observe
    if overrides:
        task = kind(checked(type(task.config), merge(task.config.model_dump(), overrides)))
    return task


def make_judged_task(config: TrainConfig) -> SimulatedTask:
    """The task, its success judged as the configuration says.

    Raises:
        BadInput: the reward model is absent, damaged, or made for other cameras.
    """
    task = make_task(config)
    if config.reward.kind == "task":
        return task
    if config.reward.kind == "human":
        return Judged(task, PersonReward())
    if config.reward.kind == "pose":
        return Judged(task, PoseReward(config.reward))
    return Judged(task, plugins.load("reward", "classifier")(config.reward, task.config))


def make_spec(task: SimulatedTask) -> Spec:
    """What actor and learner agree on; needs no robot."""
    return Spec(
        task=task.name,
        observation=task.observation_spec,
        action=task.config.motion.action_spec,
        rate_hz=task.config.rate_hz,
        motion=task.config.motion.meaning,
    )


def make_agent(config: TrainConfig, spec: Spec, seed: int) -> Agent:
    """A fresh agent that learns; equal seeds give equal parameters.

    On a CPU it leaves one processor to each actor unless told otherwise: threads that wait for
    each other on a busy processor cost far more than they bring.
    """
    threads = config.agent.threads or max(1, (os.cpu_count() or 1) - config.actors)
    return _agent(spec, config.agent.model_copy(update={"threads": threads}), seed)


def make_acting_agent(config: TrainConfig, spec: Spec, seed: int) -> Agent:
    """A fresh agent that only acts: on one thread of the CPU, as a control process should."""
    acting = {"threads": 1, "device": "cpu", "compile": False, "encoder_weights": None}
    return _agent(spec, config.agent.model_copy(update=acting), seed)


def _agent(spec: Spec, config: SACConfig, seed: int) -> Agent:
    agent: Agent = plugins.load("agent", config.algorithm).create(spec, config, seed)
    return agent


def make_human(
    config: TrainConfig,
    task: SimulatedTask,
    robot: Seen,
    actor: str,
    steps_before: int = 0,
    trained: Callable[[], int] = lambda: 0,
) -> Teleop | None:
    """The person of the configuration, or None; see `ScriptedHuman` for the arguments."""
    if config.intervention == "none":
        return None
    return ScriptedHuman(
        config.human,
        task,
        robot,
        planned_steps=config.steps,
        steps_before=steps_before,
        trained=trained,
        labels=config.reward.kind == "human",
        seed=start_seed(Purpose.TRAINING, config.seed, f"{actor}/human", steps_before),
    )


def make_actor(
    config: TrainConfig,
    run: str,
    name: str,
    weights: WeightSource,
    sink: Callable[[Record], None],
    stopping: Callable[[], bool] = lambda: False,
    pace: Callable[[], None] | None = None,
    start: int = 0,
    steps_before: int = 0,
    epoch: int = 0,
    admit: Callable[[], object] = lambda: None,
    robot: SimulatedRobot | None = None,
    clock: Clock | None = None,
) -> Actor:
    """An actor that drives a simulated arm.

    Args:
        config: of the run.
        run: its name.
        name: of the actor.
        weights: where new weights appear.
        sink: takes every record.
        stopping: ends the actor.
        pace: called before each control period; by default it waits for the learner.
        start: number of the first start, so that a restarted actor goes on with fresh ones.
        steps_before: online steps that this actor made before it was restarted.
        epoch: identity of this start of the actor; 0 for a new one.
        admit: called before each episode; raises when it could not be recorded.
        robot: what is driven; one in this process by default.
        clock: keeps the rate; by default time passes as that robot is advanced. Another one is of
            real time, which waits for no learner: only the first episode waits for weights.
    """
    task = make_judged_task(config)
    robot = robot or plugins.make_simulation(task)
    seed = start_seed(Purpose.TRAINING, config.seed, f"{name}/agent", start)
    policy = LearnedPolicy(make_acting_agent(config, make_spec(task), seed), weights)
    lead = max(config.actor.max_lead_steps, first_update_at(config))
    pacing = config.actor.model_copy(update={"max_lead_steps": lead})
    wait = Pace(pacing, policy, name, stopping, steps_before)

    watch = CameraWatch(robot.observation_spec.images, _SIMULATED_CAMERAS)

    def record(item: Record) -> None:
        wait.count(item)
        sink(item)

    def place(episode: int) -> None:
        watch.begin()
        if clock is not None:
            policy.wait(stopping)
        robot.reset(start_seed(Purpose.TRAINING, config.seed, name, start + episode))

    return Actor(
        name=name,
        run=run,
        robot=WatchedRobot(robot, watch),
        task=task,
        policy=policy,
        clock=clock or VirtualClock(robot.advance, task.config.rate_hz, pace or wait),
        sink=record,
        config=config.actor,
        teleop=make_human(
            config, task, Onlooker(robot), name, steps_before, lambda: policy.trained_steps
        ),
        place=place,
        epoch=epoch,
        stopping=stopping,
        admit=admit,
    )


def _learner_config(config: TrainConfig) -> LearnerConfig:
    """As configured; who only clones is shown nothing else."""
    changed: dict[str, Any] = {"starts_at": first_update_at(config)}
    if config.agent.algorithm == "bc":
        changed["prior_share"] = 1.0
    return config.learner.model_copy(update=changed)


def make_replay(config: TrainConfig, spec: Spec, folder: Path | None = None) -> Replay:
    """An empty replay as large as the configuration says; see `make_learner` for `folder`."""
    settings, size = config.learner, frame_bytes(spec.observation.images)
    capacity = settings.capacity
    if size:  # no more than the run can fill, since a file is as large as it may become at once
        capacity = min(capacity, settings.image_bytes // size, 2 * config.steps + 20_000)
    return Replay(
        spec,
        capacity,
        config.agent.discount,
        settings.n_step,
        seed=start_seed(Purpose.TRAINING, config.seed, "replay", -1),
        crop_px=settings.crop_px,
        folder=folder if capacity * size > settings.memory_bytes else None,
    )


def first_update_at(config: TrainConfig) -> int:
    """Online steps before the first update; some, to scale observations, without demonstrations."""
    demonstrated = config.demos or config.demo_paths or config.init_from
    return max(config.learner.starts_at, 0 if demonstrated else _STATISTICS_STEPS)


def make_learner(
    config: TrainConfig,
    transport: LearnerEnd,
    metrics: Metrics,
    save: Callable[[int, dict[str, State], dict[str, Any]], object],
    demonstrations: Iterable[Record],
    checkpoint: Checkpoint | None = None,
    log: Iterable[Arrival] = (),
    taken: int = 0,
    accept: Callable[[Sequence[Arrival]], object] = lambda records: None,
    inherited: State | None = None,
    folder: Path | None = None,
) -> Learner:
    """A learner with the demonstrations in its replay.

    Args:
        config: of the run.
        transport: brings records, takes weights.
        metrics: takes rows.
        save: writes checkpoints.
        demonstrations: records of demonstrations, in a fixed order.
        checkpoint: to continue from; a learner without one is prepared on the demonstrations.
        log: the records that were accepted so far, in that order.
        taken: how many of the first of them the checkpoint's learner had taken.
        accept: makes received records durable.
        inherited: what a learner without a checkpoint starts with, see `serl.inheritance`.
        folder: where images lie that memory is too small for; None keeps all in memory.

    Raises:
        BadInput: the checkpoint does not fit.
    """
    spec = make_spec(make_task(config))
    if checkpoint:  # which holds what the encoder has become since
        started = config.agent.model_copy(update={"encoder_weights": None})
        config = config.model_copy(update={"agent": started})
    agent = make_agent(config, spec, start_seed(Purpose.TRAINING, config.seed, "learner", -1))
    replay = make_replay(config, spec, folder)
    for record in demonstrations:
        replay.add(record, prior=True)
    learner = Learner(
        agent,
        replay,
        transport,
        _learner_config(config),
        config.agent.batch_size,
        config.agent.utd,
        spec.rate_hz,
        metrics,
        save,
        accept,
        log,
    )
    if checkpoint:
        learner.resume(checkpoint.arrays, checkpoint.info, taken)
    else:
        learner.prepare(inherited)
    return learner
