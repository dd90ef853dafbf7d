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
from serl.arm_profile import is_real
from serl.clock import Clock, RealTime, VirtualClock, WallClock
from serl.guard.camera_monitor import CameraMonitor, CameraMonitorConfig
from serl.intervention import PersonContext, SimulationView, Teleop
from serl.log.annotations import ToolLog, TruthLog
from serl.log.metrics import Metrics
from serl.loop import EpisodeKey, Observer
from serl.reward import RewardedTask
from serl.robot import SimulatedRobot
from serl.runs.checkpoint import Checkpoint
from serl.runs.config import TrainConfig
from serl.runs.reward_data import with_labelled
from serl.runs.scene_reset import make_scene_reset, reset_kind
from serl.runs.task_setup import make_rewarded_task, make_spec, make_task
from serl.specs import Spec
from serl.task import SimulatedTask
from serl.teleop.mux import TeleopMux
from serl.teleop.scripted import CachedView
from serl.training.actor import Actor, Site
from serl.training.curriculum import Curriculum
from serl.training.evaluation import Purpose, start_seed
from serl.training.frames import FrameEncoder, feature_bytes, frame_bytes
from serl.training.learned_policy import BackPressure, LearnedPolicy
from serl.training.learner import Learner, LearnerConfig
from serl.training.replay import Replay
from serl.training.resets import EpisodeStarts
from serl.training.successes import LastFrames
from serl.transport import LearnerEnd, WeightSource
from serl.types import ActionSource, Arrival, Record, Step, is_online

# Images of a scene at rest are identical, and images rendered in this process are never stale.
_SIMULATED_CAMERAS = CameraMonitorConfig(frozen_readings=0, stamped=False)


def make_agent(config: TrainConfig, spec: Spec, seed: int) -> Agent:
    """Return a fresh agent for the learner; equal seeds give equal parameters.

    On a CPU, `agent.threads` defaults to the number of processors that this process may use, minus
    one for each actor: threads that wait for each other on a busy processor cost far more than they
    bring.
    """
    threads = config.agent.threads or max(1, len(os.sched_getaffinity(0)) - config.actors)
    own: dict[str, Any] = {"threads": threads}
    bounds = getattr(config.agent, "return_bounds", None)
    if bounds is not None:
        own["return_bounds"] = _with_additions(config, *bounds)
    if config.agent.encoder_weights == "auto" and is_real(config.robot):
        own["encoder_weights"] = None  # those of "auto" were trained on simulated images
    return _agent(spec, config.agent.model_copy(update=own), seed)


def _with_additions(config: TrainConfig, low: float, high: float) -> tuple[float, float] | None:
    """Return bounds of returns that hold with all additions to the reward; None for no bounds."""
    if config.reward.kind == "progress":  # see `serl.shaping`
        low -= config.reward.progress.weight
    if not config.feedback.weight:
        return low, high
    if config.agent.discount == 1.0:
        return None
    most = config.feedback.weight / (1.0 - config.agent.discount)
    return low - most, high + most


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
    robot: SimulationView,
    actor: str,
    history: ActorHistory | None = None,
    trained: Callable[[], int] = lambda: 0,
) -> Teleop | None:
    """Return the configured simulated person, or None; `PersonContext` documents the arguments."""
    if config.intervention == "none":
        return None
    before = history or ActorHistory()
    training = PersonContext(
        task,
        robot,
        planned_steps=config.steps,
        steps_before=before.steps,
        takeovers_before=before.takeovers,
        trained=trained,
        labels=config.reward.success_kind == "human",
        seed=start_seed(Purpose.TRAINING, config.seed, f"{actor}/human", before.steps),
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
            None for all, or for the first only if the arm resets itself (`reset.kind`). When its
            own resets fail for good, the simulation replaces the person and places the scene again.
        simulated: whether the arm is simulated; the scene of a real arm is never placed.
    """

    robot: Any = None
    clock: Clock | None = None
    placements: float | None = None
    simulated: bool = True


class ActorHistory(NamedTuple):
    """Work of an actor before it was restarted.

    Attributes:
        starts: number of starts of episodes, so that a restarted actor uses fresh ones.
        steps: number of online steps.
        takeovers: segments of human steps among them.
    """

    starts: int = 0
    steps: int = 0
    takeovers: int = 0

    @classmethod
    def of(cls, starts: int, records: Iterable[Arrival]) -> ActorHistory:
        """Return the work in the records of an actor's log."""
        steps, takeovers, human = 0, 0, False
        for record in records:
            drove = human and record.key.index > 0
            human = isinstance(record, Step) and record.source is ActionSource.HUMAN
            steps += is_online(record)
            takeovers += human and not drove
        return cls(starts, steps, takeovers)


class RunSite(Site):
    """The site of a run's actor; the base class has no operators but the simulated human."""

    def attend(self, robot: Any, script: Teleop | None) -> Teleop | None:
        """Return the operator input, given the robot and the simulated human."""
        return TeleopMux((), script) if script else None

    def has_operator(self) -> bool:
        """Return whether simulated time passes in real time, because people take part."""
        return False


def make_actor(
    config: TrainConfig,
    key: EpisodeKey,
    weights: WeightSource,
    observers: Sequence[Observer],
    arm: DrivenArm | None = None,
    site: RunSite | None = None,
    history: ActorHistory | None = None,
    folder: Path | None = None,
) -> Actor:
    """Return an actor that drives an arm, simulated or real.

    Args:
        config: settings of the run.
        key: key of the first episode, with the names of run and actor and a unique epoch.
        weights: source of new weights.
        observers: receive every record, the log first.
        arm: the arm; by default a new simulation.
        site: process and operators; completed by its scene and its operator input.
        history: work before a restart.
        folder: folder of the actor's episodes, to which tool positions are written, and the
            simulation's ground truth where another reward than the task's is used; see
            `serl.log.annotations`. None writes neither.
    """
    task = make_rewarded_task(config)
    arm, site, history = arm or DrivenArm(), site or RunSite(), history or ActorHistory()
    robot, rate_hz = arm.robot or plugins.make_simulation(task), task.config.rate_hz
    policy = _make_policy(config, key.actor, weights, history.starts)
    pressure = _make_back_pressure(config, policy, key.actor, site, history.steps)

    def trained_steps() -> int:
        return policy.trained_steps

    if arm.simulated:
        site.starts = EpisodeStarts(robot, Purpose.TRAINING, config.seed, key.actor, history.starts)
        site.starts.curriculum = make_curriculum(config, task, robot, trained_steps)
        site.starts.placements = math.inf if reset_kind(config) == "person" else 1
        if arm.placements is not None:
            site.starts.placements = arm.placements
    view = CachedView(robot)
    human = make_human(config, task, view, key.actor, history, trained_steps)
    site.teleop = site.attend(robot, human)
    real_time = RealTime(WallClock(rate_hz), site.has_operator, pressure)
    clock = arm.clock or VirtualClock(robot.advance, rate_hz, real_time)
    cameras = _SIMULATED_CAMERAS if arm.simulated else CameraMonitorConfig()
    ordered = [*observers[:1], CameraMonitor(robot.observation_spec.images, cameras)]
    if isinstance(site.teleop, Observer):  # before observers that may fail: it keeps a stop
        ordered.append(site.teleop)
    ordered += [*observers[1:], pressure]
    if folder is not None:
        ordered.append(ToolLog(folder))
        if arm.simulated and isinstance(task, RewardedTask):
            ordered.append(TruthLog(folder, lambda: task.solved))
    reset = make_scene_reset(config, task, robot, key.actor, history.starts)
    evaluates = config.feedback.weight > 0
    return Actor(key, robot, task, policy, clock, ordered, site, config.actor, reset, evaluates)


def _make_policy(
    config: TrainConfig, name: str, weights: WeightSource, start: int
) -> LearnedPolicy:
    """Return the policy that an actor explores with, seeded by the number of its first start."""
    seed = start_seed(Purpose.TRAINING, config.seed, f"{name}/agent", start)
    seen = make_spec(make_task(config))  # without the views that are only logged
    agent = make_acting_agent(config, seen, seed)
    return LearnedPolicy(agent, weights, config.actor.exploring_share, config.agent.frames)


def _make_back_pressure(
    config: TrainConfig, policy: LearnedPolicy, actor: str, site: Site, steps_before: int
) -> BackPressure:
    """Return the back-pressure that makes an actor wait for its learner until training ends."""
    lead = max(
        config.actor.max_lead_steps,
        config.learner.publish_every,  # or it would wait for weights that wait for it
        config.first_update_at,
    )

    def is_over() -> bool:
        return site.is_stopping() or policy.trained_steps >= config.steps

    return BackPressure(lead, config.actor.patience_s, policy, actor, is_over, steps_before)


def _learner_config(config: TrainConfig, agent: Agent) -> LearnerConfig:
    """Return the learner's settings; behaviour cloning ("bc") samples demonstrations only."""
    changed: dict[str, Any] = {"starts_at": config.first_update_at}
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
    recorded: int = 0,
) -> Replay:
    """Return an empty replay buffer of the configured size; `make_learner` explains arguments."""
    settings, cameras = config.learner, spec.observation.images
    pixels = frame_bytes(cameras)
    size = feature_bytes(cameras, encoder) if encoder else pixels
    capacity = settings.capacity
    if size:  # no more than the run can fill, since a file is as large as it may become at once
        capacity = min(capacity, settings.image_bytes // size, 2 * config.steps + 20_000 + recorded)
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
        imitate_successes=settings.imitate_successes,
        time_limit_terminates=settings.time_limit_terminates,
        feedback_delay_s=config.feedback.delay_s if config.feedback.weight else None,
    )


def frame_encoder(agent: Agent) -> FrameEncoder | None:
    """Return the agent's encoder for frames in replay; None where replay stores pixels."""
    encoder: FrameEncoder | None = getattr(agent, "frame_encoder", lambda: None)()
    return encoder


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
    recorded: int = 0,
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
        recorded: upper limit of the number of records in recordings and of another run.

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
    replay = make_replay(config, spec, folder, encoder, recorded)
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


def check_agent(config: TrainConfig, spec: Spec) -> None:
    """Raise `BadInput` if the agent cannot be made, or not with a reward learned beside it."""
    agent, reward = make_agent(config, spec, 0), _learned_reward(config)
    if reward is not None:
        reward.check(agent)


def _learned_reward(config: TrainConfig) -> Any:
    """Return the class of the networks that learn a reward beside the agent; None for none."""
    if config.feedback.weight:
        from serl.agents.feedback import FeedbackReward  # imports torch

        return FeedbackReward
    return plugins.load("reward", "vice") if config.reward.kind == "vice" else None


def _with_reward(agent: Agent, config: TrainConfig, last: LastFrames, seed: int) -> Agent:
    """Return the agent; if a reward is learned beside it, wrapped by the networks that learn it."""
    reward = _learned_reward(config)
    if reward is None:
        return agent
    given: tuple[Any, ...] = (config.feedback,)
    if not config.feedback.weight:
        views = make_task(config).config.policy_views
        successes = with_labelled(last.successes(), config.vice.positives, views)
        shift = config.learner.crop_px if config.vice.crop_px is None else config.vice.crop_px
        given = (config.vice.model_copy(update={"crop_px": shift}), successes)
    rewarded: Agent = reward(agent, *given, seed)
    return rewarded
