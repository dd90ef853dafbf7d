"""Assembly of a run's actor, learner and agent from its configuration; used by nodes and tests."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Sequence
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from serl import plugins
from serl.agent import Agent, AgentConfig, State
from serl.clock import Clock, RealTime, VirtualClock, WallClock
from serl.guard.camera_monitor import CameraMonitor, CameraMonitorConfig, MonitoredRobot
from serl.intervention import PersonContext, Seen, Teleop
from serl.log.annotations import ToolLog, TruthLog
from serl.log.metrics import Metrics
from serl.reward import RewardedTask
from serl.robot import Homing, SimulatedRobot
from serl.runs.checkpoint import Checkpoint
from serl.runs.config import TrainConfig
from serl.runs.reward_data import with_labelled
from serl.runs.task_setup import make_judged_task, make_spec, make_task
from serl.specs import Spec
from serl.task import SimulatedTask
from serl.teleop.scripted import Onlooker, Resting
from serl.training.actor import Actor
from serl.training.curriculum import Curriculum
from serl.training.evaluation import Purpose, start_seed
from serl.training.frames import FrameEncoder, feature_bytes, frame_bytes
from serl.training.learned_policy import LearnedPolicy, Pace
from serl.training.learner import Learner, LearnerConfig
from serl.training.replay import Replay
from serl.training.resets import SceneSetter
from serl.training.successes import LastFrames
from serl.transport import LearnerEnd, WeightSource
from serl.types import Arrival, Record

_STATISTICS_STEPS = 500
# Images of a scene at rest are identical, and images rendered in this process are never stale.
_SIMULATED_CAMERAS = CameraMonitorConfig(frozen_readings=0, stamped=False)


def make_agent(config: TrainConfig, spec: Spec, seed: int) -> Agent:
    """Return a fresh agent for the learner; equal seeds give equal parameters.

    On a CPU, `agent.threads` defaults to the number of processors minus one for each actor:
    threads that wait for each other on a busy processor cost far more than they bring.
    """
    threads = config.agent.threads or max(1, (os.cpu_count() or 1) - config.actors)
    return _agent(spec, config.agent.model_copy(update={"threads": threads}), seed)


def make_acting_agent(config: TrainConfig, spec: Spec, seed: int) -> Agent:
    """Return a fresh agent that only acts: on one CPU thread, as a control process should."""
    acting = {"threads": 1, "device": "cpu", "compile": False, "encoder_weights": None}
    return _agent(spec, config.agent.model_copy(update=acting), seed)


def _agent(spec: Spec, config: AgentConfig, seed: int) -> Agent:
    agent: Agent = plugins.load("agent", config.algorithm).create(spec, config, seed)
    return agent


def make_curriculum(
    config: TrainConfig,
    task: SimulatedTask,
    robot: SimulatedRobot,
    trained_steps: Callable[[], int],
) -> Curriculum | None:
    """Return the configured curriculum; None when all episodes begin at the task's own starts."""
    if config.curriculum.start >= 1.0:
        return None
    seeds = count(config.seed)
    return Curriculum(
        config.curriculum,
        trained=lambda: trained_steps() / config.steps,
        progress=lambda: task.progress(robot.truth()),
        expert=lambda: task.expert(robot.truth, next(seeds)),
    )


def make_human(
    config: TrainConfig,
    task: SimulatedTask,
    robot: Seen,
    actor: str,
    steps_before: int = 0,
    trained: Callable[[], int] = lambda: 0,
) -> Teleop | None:
    """Return the configured simulated person, or None; `PersonContext` documents the arguments."""
    if config.intervention == "none":
        return None
    training = PersonContext(
        task,
        robot,
        planned_steps=config.steps,
        steps_before=steps_before,
        trained=trained,
        labels=config.reward.kind == "human",
        seed=start_seed(Purpose.TRAINING, config.seed, f"{actor}/human", steps_before),
    )
    human: Teleop = plugins.load("person", config.intervention).create(config.human, training)
    return human


class DrivenArm(NamedTuple):
    """The arm that an actor drives, and the source of its time and resets.

    Attributes:
        robot: an arm that is shared or runs in another process; None for a new simulation in the
            actor's process.
        clock: keeps the rate of a robot in real time, which waits for no learner: only the first
            episode waits for weights. None: time passes as the robot is advanced.
        placements: number of episodes that begin with a placement of the scene by the simulation;
            None for all, or for the first only if the task's `auto_reset` is set. When the arm's
            own resets fail for good, the simulation replaces the person and places the scene again.
        person: called on a real arm, whose scene no simulation places, with the task that a person
            has to do at the arm or its scene; None in simulation.
    """

    robot: Any = None
    clock: Clock | None = None
    placements: float | None = None
    person: Callable[[str], object] | None = None


class Attendance(NamedTuple):
    """The human input to an actor, and the pace of simulated time while people take part.

    Attributes:
        attend: returns the source of human input, given the robot and the simulated human.
        standby: see `Actor`.
        attended: while this returns True, simulated time passes in real time.
    """

    attend: Callable[[Any, Teleop | None], Teleop | None] = lambda robot, script: script
    standby: Callable[[], bool] = lambda: False
    attended: Callable[[], bool] = lambda: False


_ALONE, _NOBODY = DrivenArm(), Attendance()


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
    driven: DrivenArm = _ALONE,
    attendance: Attendance = _NOBODY,
    witnessed: Path | None = None,
) -> Actor:
    """Return an actor that drives an arm, simulated or real.

    Args:
        config: settings of the run.
        run: name of the run.
        name: name of the actor.
        weights: source of new weights.
        sink: called with every record.
        stopping: the actor ends when this returns True.
        pace: called before each control period; by default it waits for the learner.
        start: number of the first start, so that a restarted actor uses fresh starts.
        steps_before: online steps that this actor made before it was restarted.
        epoch: identity of this start of the actor; 0 for a new one.
        admit: called before each episode; raises when the episode could not be recorded.
        driven: the arm; by default a new simulation.
        attendance: the human input; by default only the simulated human.
        witnessed: folder of the actor's episodes, to which tool positions are written, and the
            simulation's ground truth where another reward than the task's is used; see
            `serl.log.annotations`. None writes neither.
    """
    task = make_judged_task(config)
    robot, rate_hz = driven.robot or plugins.make_simulation(task), task.config.rate_hz
    policy = _make_policy(config, name, weights, start)
    wait = _make_pace(config, policy, name, stopping, steps_before)
    simulated = driven.person is None
    cameras = _SIMULATED_CAMERAS if simulated else CameraMonitorConfig()
    watch = CameraMonitor(robot.observation_spec.images, cameras)
    placed = driven.placements
    if placed is None:
        placed = 1 if task.config.auto_reset else math.inf

    tools, truths = ToolLog(witnessed) if witnessed else None, None
    if witnessed and simulated and isinstance(task, RewardedTask):
        truths = TruthLog(witnessed, lambda: task.solved)

    def record(item: Record) -> None:
        wait.count(item)
        sink(item)
        for log in (tools, truths):
            if log is not None:
                log.take(item)

    def trained() -> int:
        return policy.trained_steps

    def ready() -> None:
        if driven.clock is not None:
            policy.wait(stopping)

    def standby() -> bool:
        if not simulated:  # a simulation is waited for where it is placed
            ready()
        return attendance.standby()

    scene = SceneSetter(robot, watch, config.seed, name, start, ready)
    human = make_human(config, task, Onlooker(robot), name, steps_before, trained)
    script = Resting(human, lambda: actor.resets) if human else None
    real_time = RealTime(WallClock(rate_hz), attendance.attended, pace or wait)
    actor = Actor(
        name=name,
        run=run,
        robot=MonitoredRobot(robot, watch, tools.see if tools else lambda reading: None),
        task=task,
        policy=policy,
        clock=driven.clock or VirtualClock(robot.advance, rate_hz, real_time),
        sink=record,
        config=config.actor,
        teleop=attendance.attend(robot, script),
        place=scene.place if simulated else None,
        placements=placed,
        person=driven.person or scene.help,
        silent=driven.person,
        homing=robot if isinstance(robot, Homing) else None,
        curriculum=make_curriculum(config, task, robot, trained),
        epoch=epoch,
        stopping=stopping,
        admit=admit,
        standby=standby,
    )
    return actor


def _make_policy(
    config: TrainConfig, name: str, weights: WeightSource, start: int
) -> LearnedPolicy:
    """Return the policy that an actor explores with, seeded by the number of its first start."""
    seed = start_seed(Purpose.TRAINING, config.seed, f"{name}/agent", start)
    seen = make_spec(make_task(config))  # without the views that are only logged
    agent = make_acting_agent(config, seen, seed)
    return LearnedPolicy(agent, weights, frames=config.agent.frames)


def _make_pace(
    config: TrainConfig,
    policy: LearnedPolicy,
    name: str,
    stopping: Callable[[], bool],
    steps_before: int,
) -> Pace:
    """Return the back-pressure that makes an actor wait for its learner until training ends."""
    lead = max(
        config.actor.max_lead_steps,
        config.learner.publish_every,  # or it would wait for weights that wait for it
        first_update_at(config),
    )

    def over() -> bool:
        return stopping() or policy.trained_steps >= config.steps

    return Pace(lead, config.actor.patience_s, policy, name, over, steps_before)


def _learner_config(config: TrainConfig, agent: Agent) -> LearnerConfig:
    """Return the learner's settings; behaviour cloning ("bc") samples demonstrations only."""
    changed: dict[str, Any] = {"starts_at": first_update_at(config)}
    if config.learner.prefetch is None:
        changed["prefetch"] = str(getattr(agent, "device", "cpu")) != "cpu"
    if config.agent.algorithm == "bc":
        changed["prior_share"] = 1.0
    return config.learner.model_copy(update=changed)


def make_replay(
    config: TrainConfig,
    spec: Spec,
    folder: Path | None = None,
    encoder: FrameEncoder | None = None,
) -> Replay:
    """Return an empty replay buffer of the configured size; see `make_learner` for `folder`."""
    settings, cameras = config.learner, spec.observation.images
    pixels = frame_bytes(cameras)
    size = feature_bytes(cameras, encoder) if encoder else pixels
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
        encoder=encoder,
        stacked=config.agent.frames,
    )


def frame_encoder(agent: Agent) -> FrameEncoder | None:
    """Return the agent's encoder for frames in replay; None where replay stores pixels."""
    encoder: FrameEncoder | None = getattr(agent, "frame_encoder", lambda: None)()
    return encoder


def first_update_at(config: TrainConfig) -> int:
    """Return the number of online steps before the first update.

    Without demonstrations at least 500, from which the scale of observations is computed.
    """
    origin = config.init_from
    recorded = config.demos or config.demo_paths or origin.data != "none"
    demonstrated = recorded or origin.loads("normaliser")
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
    experience: Iterable[Record] = (),
) -> Learner:
    """Return a learner with the demonstrations in its replay.

    Args:
        config: settings of the run.
        transport: delivers records and publishes weights.
        metrics: receives rows of metrics.
        save: writes checkpoints.
        demonstrations: records of demonstrations, in a fixed order.
        checkpoint: to continue from; a learner without one is prepared on the demonstrations.
        log: the records that were accepted so far, in the order of acceptance.
        taken: number of records of `log` that the checkpoint's learner had taken, from the first.
        accept: makes received records durable.
        inherited: arrays that a learner without a checkpoint starts with; see
            `serl.runs.inheritance`.
        folder: folder of the images that do not fit into memory; None keeps all in memory.
        experience: records of another run that count as this run's, in a fixed order.

    Raises:
        BadInput: the checkpoint does not fit.
    """
    spec = make_spec(make_task(config))
    if checkpoint:  # which holds the encoder as trained since
        started = config.agent.model_copy(update={"encoder_weights": None})
        config = config.model_copy(update={"agent": started})
    seed = start_seed(Purpose.TRAINING, config.seed, "learner", -1)
    agent = make_agent(config, spec, seed)
    encoder = frame_encoder(agent)
    if encoder:  # loaded before the first frame is encoded, as stored features are final
        state, begins = agent.state_dict(), checkpoint.arrays["agent"] if checkpoint else inherited
        known = {name: array for name, array in (begins or {}).items() if name in state}
        agent.load_state_dict({**state, **known})
    replay = make_replay(config, spec, folder, encoder)
    last = LastFrames(spec.observation, config.vice.last_frames)
    for record in demonstrations:
        replay.add(record, prior=True)
        last.add(record)
    for record in experience:
        replay.add(record)
    learner = Learner(
        _with_reward(agent, config, last, seed),
        replay,
        transport,
        _learner_config(config, agent),
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


def _with_reward(agent: Agent, config: TrainConfig, last: LastFrames, seed: int) -> Agent:
    """Return the agent, wrapped for `reward.kind` "vice" by the classifier that learns a reward."""
    if config.reward.kind != "vice":
        return agent
    views = make_task(config).config.policy_views
    successes = with_labelled(last.successes(), config.vice.positives, views)
    shift = config.learner.crop_px if config.vice.crop_px is None else config.vice.crop_px
    vice = config.vice.model_copy(update={"crop_px": shift})
    judging: Agent = plugins.load("reward", "vice")(agent, vice, successes, seed)
    return judging
