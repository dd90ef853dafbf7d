"""Conformance test suites for implementations of the contracts, and fakes that pass them.

    class TestMyArm(RobotSuite):
        def make(self) -> Robot:
            return MyArm()

A subclass implements one method, `make`, and pytest collects its tests. Every call of `make`
returns a new object, equal to the others. The suite of arm profiles is in `serl.ros.testing`.
"""

from serl.testing.agent import AgentSuite
from serl.testing.device import DeviceBench, DeviceSuite
from serl.testing.fakes import FakeRobot, FakeTask, FakeTaskConfig, arm_spec
from serl.testing.policy import PolicySuite, TeleopSuite
from serl.testing.reward import RewardSuite
from serl.testing.robot import RobotSuite, SimulatedRobotSuite
from serl.testing.samples import episode, failures, random_array, random_batch, random_observation
from serl.testing.task import SimulatedTaskSuite, TaskSuite
from serl.testing.transport import InProcess, TransportSuite

__all__ = [
    "AgentSuite",
    "DeviceBench",
    "DeviceSuite",
    "FakeRobot",
    "FakeTask",
    "FakeTaskConfig",
    "InProcess",
    "PolicySuite",
    "RewardSuite",
    "RobotSuite",
    "SimulatedRobotSuite",
    "SimulatedTaskSuite",
    "TaskSuite",
    "TeleopSuite",
    "TransportSuite",
    "arm_spec",
    "episode",
    "failures",
    "random_array",
    "random_batch",
    "random_observation",
]
