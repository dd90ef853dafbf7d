"""Conformance suites on the plug-in files outside the tree."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from serl.agent import Agent
from serl.intervention import PersonContext, Teleop
from serl.specs import ArraySpec, Spec
from serl.testing import (
    AgentSuite,
    FakeRobot,
    FakeTask,
    RewardSuite,
    TeleopSuite,
    TransportSuite,
)
from serl.transport import RunIdentity
from serl.types import Observation

from .high_reward import High
from .lazy_person import Lazy, LazyConfig
from .spool import Spool, SpoolConfig
from .td3 import TD3, TD3Config


def spec() -> Spec:
    task = FakeTask()
    return Spec(
        task=task.name,
        observation=task.observation_spec.model_copy(update={"images": {}}),
        action=task.config.motion.action_spec,
        rate_hz=task.config.rate_hz,
    )


class TestTD3(AgentSuite):
    def make(self) -> tuple[Agent, Spec]:
        return TD3.create(spec(), TD3Config(batch_size=32, utd=2), seed=0), spec()


class TestLazy(TeleopSuite):
    def make(self) -> tuple[Teleop, ArraySpec]:
        robot = FakeRobot()
        training = PersonContext(FakeTask(), robot, planned_steps=100, seed=0)
        return Lazy.create(LazyConfig(), training), robot.action_spec


class TestSpool(TransportSuite):
    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.folder = tmp_path

    def make(self) -> tuple[Spool, Spool]:
        task = FakeTask()
        whole = spec().model_copy(update={"observation": task.observation_spec})
        meeting = RunIdentity(self.folder, "run", whole)
        config = SpoolConfig()
        return Spool.actor_end(config, meeting, "actor"), Spool.learner_end(config, meeting)


class TestHigh(RewardSuite):
    def make(self) -> High:
        return High(0.25)

    def readings(self) -> list[Observation]:
        poses = [(0.4, 0.0, z_m, 1.0, 0.0, 0.0, 0.0) for z_m in (0.1, 0.2, 0.3)]
        return [Observation({"tcp_pose": np.array(pose, np.float32)}) for pose in poses]
