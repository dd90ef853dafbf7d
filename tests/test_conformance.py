"""Conformance suites for tasks, algorithms, scripted humans and an arm without a gripper.

Devices and other robots run their suites in the tests of their folders.
"""

from __future__ import annotations

from functools import cache

import pytest

from serl import plugins
from serl.agent import Agent
from serl.agents.bc import BC
from serl.agents.config import SACConfig
from serl.agents.hybrid import HybridSAC
from serl.agents.sac import SAC
from serl.intervention import PersonContext, Teleop
from serl.robot import SimulatedRobot
from serl.sim.arm import SimArm
from serl.specs import ArraySpec, Spec
from serl.task import SimulatedTask
from serl.tasks.reach import Reach
from serl.teleop.evaluator import Evaluator, EvaluatorConfig
from serl.teleop.scripted import ScriptedHuman, ScriptedHumanConfig
from serl.testing import (
    AgentSuite,
    FakeRobot,
    FakeTask,
    SimulatedRobotSuite,
    SimulatedTaskSuite,
    TeleopSuite,
)


class TestSimArmWithReach(SimulatedRobotSuite):
    def make(self) -> SimArm:
        task = Reach()
        return SimArm(task.scene, task.config)


class TestTasks(SimulatedTaskSuite):
    """Task suite for every task of serl with its default settings."""

    seeds = (0, 1)

    @pytest.fixture(autouse=True, params=plugins.names("task"))
    def _choose(self, request: pytest.FixtureRequest) -> None:
        self.name = request.param

    def make(self) -> tuple[SimulatedRobot, SimulatedTask]:
        robot = simulation(self.name)
        robot.reset(0)
        return robot, plugins.load("task", self.name)()


@cache
def simulation(name: str) -> SimulatedRobot:
    """Return the simulation of a task, which all tests of the task share, as its model is large."""
    return plugins.make_simulation(plugins.load("task", name)())


SMALL_AGENT = SACConfig(hidden=(32, 32), utd=2, batch_size=32, device="cpu", threads=1)


class TestSAC(AgentSuite):
    agent: type[SAC] = SAC

    rows = 2 * 32

    def spec(self) -> Spec:
        task = FakeTask()
        return Spec(
            task=task.name,
            observation=task.observation_spec,
            action=task.config.motion.action_spec,
            rate_hz=task.config.rate_hz,
        )

    def make(self) -> tuple[Agent, Spec]:
        spec = self.spec()
        return self.agent.create(spec, SMALL_AGENT, seed=0), spec


class TestHybridSAC(TestSAC):
    agent = HybridSAC

    def spec(self) -> Spec:
        spec = super().spec()
        action = spec.action.model_copy(update={"shape": (3,), "unit": "x y gripper"})
        return spec.model_copy(update={"action": action})


class TestBC(TestSAC):
    agent = BC


class TestEvaluator(TeleopSuite):
    def make(self) -> tuple[Teleop, ArraySpec]:
        robot = FakeRobot()
        training = PersonContext(FakeTask(), robot, planned_steps=1000, seed=0)
        return Evaluator(EvaluatorConfig(), training), robot.action_spec


class TestScriptedHuman(TeleopSuite):
    def make(self) -> tuple[Teleop, ArraySpec]:
        robot, task = FakeRobot(), FakeTask()
        human = ScriptedHuman(
            ScriptedHumanConfig(patience_steps=3, reaction_steps=1),
            task,
            robot,
            planned_steps=1000,
            seed=0,
        )
        return human, robot.action_spec
