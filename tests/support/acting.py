"""Actor on the fake task, agents whose weights are their action, and a training in one process."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any

import numpy as np
import pytest

from serl import plugins
from serl.agent import State
from serl.clock import VirtualClock
from serl.errors import NeedsPerson, Silent, SpecMismatch
from serl.guard.camera_monitor import CameraFault
from serl.log.episode_log import EpisodeLog
from serl.log.metrics import MetricsWriter
from serl.loop import EpisodeKey, Observer, RecordCallback
from serl.policy import Policy
from serl.runs.assembly import DrivenArm, RunSite, make_actor
from serl.runs.folder import RunFolder
from serl.runs.resume import Continuation
from serl.runs.task_setup import make_spec, make_task
from serl.specs import ArraySpec
from serl.testing import FakeRobot, FakeTask, InProcess
from serl.training.actor import Actor, ActorConfig
from serl.training.learned_policy import LearnedPolicy
from serl.training.resets import EpisodeStarts
from serl.transport import Snapshot
from serl.types import Action, Batch, End, Observation, Record, Step


class ConstantAgent:
    """Agent whose weights are its action."""

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


class FakeSite(RunSite):
    """Run site whose operator and process are functions of a test."""

    def __init__(
        self,
        stopping: Callable[[], bool] = lambda: False,
        held: Callable[[], bool] = lambda: False,
        person: Callable[[str], object] | None = None,
        silent: Callable[[str], object] | None = None,
    ) -> None:
        self.stopping, self.held, self.person, self.silent = stopping, held, person, silent

    def is_stopping(self) -> bool:
        return self.stopping()

    def standby(self) -> bool:
        return self.held()

    def on_reset_failed(self, error: NeedsPerson) -> None:
        if self.person is None:
            raise error
        self.person(str(error))

    def on_robot_stopped(self, reason: str) -> None:
        if self.silent is not None:
            self.silent(reason)

    def on_silence(self, error: Silent) -> None:
        if self.silent is None:
            raise error
        self.silent(str(error))


class FakeStarts(EpisodeStarts):
    """Episode starts placed by a function of a test."""

    def __init__(self, place: Callable[[int], object], placements: float = math.inf) -> None:
        self.placing, self.placements, self.curriculum = place, placements, None
        self.varied = list[int]()

    def place(self, episode: int) -> None:
        self.placing(episode)

    def vary(self, episode: int) -> None:
        self.varied.append(episode)


class ActorBench:
    """Actor on the fake task, with the records that it sent."""

    def __init__(
        self,
        place: bool = True,
        stopping: Callable[[], bool] = lambda: False,
        pace: Callable[[], None] = lambda: None,
    ) -> None:
        self.weights, self.records = InProcess(), list[Record]()
        self.robot, self.task = FakeRobot(), FakeTask()
        self.policy = LearnedPolicy(ConstantAgent(), self.weights)
        self.site = FakeSite(stopping)
        self.starts = FakeStarts(self.robot.reset)
        self.site.starts = self.starts if place else None
        self.actor = Actor(
            EpisodeKey("run", "actor", 9, 0),
            self.robot,
            self.task,
            self.policy,
            VirtualClock(self.robot.advance, self.task.config.rate_hz, pace),
            [RecordCallback(self.records.append)],
            self.site,
            ActorConfig(reset_time_limit_s=2.0),
        )

    def run(self, episodes: int) -> None:
        for _, _ in zip(range(episodes), self.actor.episodes(), strict=False):
            pass

    @property
    def steps(self) -> list[Step]:
        return [record for record in self.records if isinstance(record, Step)]

    @property
    def ends(self) -> list[End]:
        return [record for record in self.records if isinstance(record, End)]


class FakeCameraArm(FakeRobot):
    """Fake robot with a camera in its spec, but without images in its readings."""

    observation_spec = FakeRobot.observation_spec.model_copy(
        update={"images": {"wrist": ArraySpec(shape=(8, 8, 3), dtype="uint8")}}
    )
    silence_s: Callable[[], float]
    arms: tuple[Any, ...] = ()  # no driver with readable settings

    def beat(self) -> None:
        pass


def notice_frozen_camera(observers: Sequence[Observer]) -> bool:
    """Return whether observers refuse the fifth equal image with a new stamp."""
    images = {"wrist": np.full((8, 8, 3), 200, np.uint8)}
    try:
        for now_s in range(5):
            for observer in observers:
                observer.on_reading(Observation({}, images, {"robot": now_s, "wrist": now_s}))
    except CameraFault as error:
        return "frozen" in str(error)
    return False


class DelegatingPolicy(LearnedPolicy):
    """Learned policy that delegates to another policy."""

    def __init__(self, policy: Policy) -> None:
        super().__init__(ConstantAgent(), InProcess())
        self.policy = policy

    def __call__(self, observation: Observation) -> Action:
        return self.policy(observation)


def train_in_this_process(patch: pytest.MonkeyPatch) -> None:
    """Let `serl train` start no processes, learn from the first steps on, and film no trials.

    `make soak` sets SERL_PROCESSES: then it starts its processes and does all that it does.
    """
    if os.environ.get("SERL_PROCESSES"):
        return
    patch.setattr("serl.cli.training.learn", _learn)
    patch.setattr("serl.cli.training.film", lambda *_: None)
    patch.setattr("serl.runs.config._STATISTICS_STEPS", 20)


def _learn(run: RunFolder, *_display: object) -> None:
    """Train a new run of one actor in simulation; see `serl.cli.training.learn`."""
    config, task, name = run.config, make_task(run.config), "actor0"
    transport, folder = InProcess(), run.episodes(name)
    with (
        MetricsWriter(run.path) as metrics,
        closing(Continuation(run, metrics)) as continuation,
        EpisodeLog(folder, make_spec(task), run.name, name, 1, config.log) as log,
        plugins.make_simulation(task) as robot,
    ):
        learner = continuation.learner(transport)

        def is_over() -> bool:
            return learner.progress.steps >= config.steps

        def take(record: Record) -> None:
            log.append(record)
            transport.send([record])
            while not is_over() and learner.step():
                pass

        key = EpisodeKey(run.name, name, 1, 0)
        arm = DrivenArm(robot, VirtualClock(robot.advance, task.config.rate_hz))
        site, observers = FakeSite(is_over), [RecordCallback(take)]
        actor = make_actor(config, key, transport, observers, arm, site, folder=folder)
        learner.publish()
        for _ in actor.episodes():
            pass
        learner.checkpoint()
