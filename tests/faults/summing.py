"""Fast-loading fake agent whose parameters are a checksum of all its batches."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from unittest.mock import patch
from zlib import crc32

import numpy as np

from serl.agent import Agent, State
from serl.log.metrics import MetricsWriter
from serl.runs import assembly
from serl.runs.checkpoint import has_saved, load_latest
from serl.runs.config import TrainConfig
from serl.runs.folder import RunFolder
from serl.runs.resume import Continuation
from serl.specs import Spec
from serl.testing import InProcess
from serl.types import Action, Array, Batch, Observation


class Summing:
    """Fake agent whose state is an order-dependent checksum over all batches."""

    def __init__(self, spec: Spec) -> None:
        self._action = np.zeros(spec.action.shape, np.float32)
        self._sum = self._updates = 0

    def act(self, observation: Observation, explore: bool) -> Action:
        return self._action

    def fit_normaliser(self, states: Array) -> None:
        self._sum = crc32(states.tobytes(), self._sum)

    def update(self, batch: Batch) -> dict[str, float]:
        for array in (batch.state, batch.action, batch.reward, batch.next_state):
            self._sum = crc32(array.tobytes(), self._sum)
        self._updates += 1
        return {}

    def actor_weights(self) -> State:
        return {"sum": np.array([self._sum, self._updates], np.int64)}

    def load_actor_weights(self, weights: State) -> None:
        self._sum, self._updates = map(int, weights["sum"])

    state_dict = actor_weights
    load_state_dict = load_actor_weights


@contextmanager
def summing() -> Iterator[None]:
    """Replace the agent of learners assembled within the context by `Summing`."""

    def make(config: TrainConfig, spec: Spec, seed: int) -> Agent:
        return Summing(spec)

    with patch.object(assembly, "make_agent", make):
        yield


def check_resumes(run: RunFolder) -> None:
    """Check that the newest checkpoint equals that of an undisturbed learner with equal records."""
    if not has_saved(run.checkpoints):
        return
    (found, warning) = load_latest(run.checkpoints)
    assert not warning
    fresh = shutil.ignore_patterns(run.checkpoints.name, run.metrics.name, "tensorboard")
    place = run.path.parent / "undisturbed" / run.name
    folder = RunFolder.open(Path(shutil.copytree(run.path, place, ignore=fresh)))
    with (
        summing(),
        MetricsWriter(folder.path) as metrics,
        closing(Continuation(folder, metrics)) as continuation,
    ):
        learner = continuation.learner(InProcess())
        while learner.progress.steps < found.step:
            assert learner.step(), f"records for {learner.progress.steps} of {found.step} steps"
        (expected,) = learner.agent.state_dict().values()
        sampler = learner.replay.sampler_state()
    assert np.array_equal(found.arrays["agent"]["sum"], expected), "it learned something else"
    assert all(np.array_equal(found.arrays["replay"][name], sampler[name]) for name in sampler)
