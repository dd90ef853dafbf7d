"""Faults of numbers: values that are not finite and would ruin training."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch

from serl.agent import State
from serl.agents.config import SACConfig
from serl.agents.sac import SAC
from serl.clock import VirtualClock
from serl.errors import BadInput
from serl.log.episode_log import EpisodeLog
from serl.log.episode_reader import episode_paths, read_episode
from serl.log.metrics import EventRow, Row
from serl.log.wire import decode_record, encode_record
from serl.loop import EpisodeKey, run
from serl.policy import RandomPolicy
from serl.runs.task_setup import make_spec
from serl.testing import FakeRobot, FakeTask, InProcess, episode
from serl.training.learner import Learner, LearnerConfig
from serl.training.replay import Replay
from serl.transport import Snapshot
from serl.types import Batch, Observation, Outcome, Record

from .records import ANY_DISK
from .refusal import refusal
from .registry import REGISTRY, Level

SPEC = make_spec(FakeTask())
SMALL = SACConfig(hidden=(16, 16), critics=2, batch_size=8, utd=2, device="cpu")
LEARNER = LearnerConfig(publish_every=1, checkpoint_every=20)
BAD_REWARDS = (math.nan, math.inf, -math.inf, 1e300)


class FaultyAgent(SAC):
    """SAC agent with values that are not finite at given updates, in batch or parameters."""

    bad_batches: Collection[int] = ()
    bad_parameter_at = 0
    calls = 0

    def update(self, batch: Batch) -> dict[str, float]:
        self.calls += 1
        if self.calls in self.bad_batches:
            batch = replace(batch, reward=np.full_like(batch.reward, np.nan))
        if self.calls == self.bad_parameter_at:
            with torch.no_grad():
                self.actor.flat[0, 0] = torch.nan
        return super().update(batch)


class TransportRecorder(InProcess):
    """Transport, metrics and checkpoint stand-in that keeps everything it receives."""

    def __init__(self) -> None:
        super().__init__()
        self.given: list[State] = []
        self.events: list[str] = []

    def publish(self, snapshot: Snapshot) -> None:
        self.given.append(dict(snapshot.weights))

    def write(self, steps: int, row: Row) -> None:
        if isinstance(row, EventRow):
            self.events.append(row.text)

    def save(self, step: int, arrays: dict[str, State], info: object) -> None:
        self.given += arrays.values()


@REGISTRY.fault(
    28,
    "Loss or parameters not finite",
    injected="batches with NaN: two in a row, three in a row, all; NaN in a parameter of the actor",
    required="such updates are skipped; after three in a row the last valid parameters are "
    "restored; after three more the learner ends with one line; invalid parameters are never "
    "published or saved",
    level=Level.COMPONENT,
)
def poisoned_training(folder: Path) -> None:
    watched, learn = _faulty_training(bad_batches={30, 31, 51, 52, 53})
    assert learn(60) == ""
    assert watched.events == [
        "the last 3 updates were not finite: going on with the parameters of step 40"
    ]
    watched, learn = _faulty_training(bad_parameter_at=50)
    assert learn(60) == ""
    assert "not published" in watched.events[0]
    assert watched.events[-1].endswith("going on with the parameters of step 40")
    watched, learn = _faulty_training(bad_batches=range(50, 1000))
    assert "also from the parameters of step 40" in learn(60)


def _faulty_training(
    bad_batches: Collection[int] = (), bad_parameter_at: int = 0
) -> tuple[TransportRecorder, Callable[[int], str]]:
    """Return the recorder and a function that trains and returns the reason of failure."""
    agent, watched = FaultyAgent.create(SPEC, SMALL, 0), TransportRecorder()
    assert isinstance(agent, FaultyAgent)
    agent.bad_batches, agent.bad_parameter_at = bad_batches, bad_parameter_at
    learner = Learner(
        agent,
        Replay(SPEC, 1000, discount=0.9),
        watched,
        LEARNER,
        SMALL.batch_size,
        SMALL.utd,
        SPEC.rate_hz,
        watched,
        watched.save,
    )
    watched.send(list(_played(60)))

    def learn(steps: int) -> str:
        why = refusal(partial(learner.run, steps, lambda: False))
        assert all(np.isfinite(array).all() for state in watched.given for array in state.values())
        assert learner.progress.steps == steps or why
        return why

    return watched, learn


def _played(steps: int) -> Iterator[Record]:
    """Yield episodes of random actions with at least `steps` steps."""
    seed = 0
    while steps > 0:
        records = episode(FakeRobot(), FakeTask(), RandomPolicy(SPEC.action, seed), seed)
        yield from records
        steps -= len(records) - 1
        seed += 1


class InvalidRewardTask(FakeTask):
    """Fake task that gives an invalid reward at its third step."""

    bad = 0.0

    def outcome(self, reading: Observation, index: int) -> Outcome:
        return Outcome(self.bad) if index == 2 else super().outcome(reading, index)


@REGISTRY.fault(
    29,
    "Reward not finite or out of range",
    injected="a task returns NaN, +-infinity or 1e300; a message has such a reward",
    required="the robot is stopped, and the episode truncated with the reason; no such value is "
    "logged; the message is refused",
    level=Level.COMPONENT,
)
def bad_reward(folder: Path) -> None:
    for number, bad in enumerate(BAD_REWARDS):
        robot, task = FakeRobot(), InvalidRewardTask()
        robot.reset(1)
        task.bad = bad
        clock, key = VirtualClock(robot.advance, SPEC.rate_hz), EpisodeKey("run", "actor0", 1, 0)
        with EpisodeLog(folder / f"{number}", SPEC, key.run, key.actor, 1, ANY_DISK) as log:
            result = run(robot, task, RandomPolicy(SPEC.action, 0), clock, key, [log])
        (path,) = episode_paths(folder / f"{number}")
        logged = read_episode(path, SPEC)
        assert logged.end is not None
        assert f"reward {bad}" in logged.end.text
        assert logged.end.text == result.text == robot.stop_reason
        rewards = [(step.reward, step.truncated) for step in logged.steps]
        assert rewards == [(0.0, False), (0.0, False), (0.0, True)]
        assert refusal(partial(_over_the_wire, replace(logged.steps[-1], reward=bad)), BadInput)


def _over_the_wire(record: Record) -> None:
    decode_record(encode_record(record), SPEC)
