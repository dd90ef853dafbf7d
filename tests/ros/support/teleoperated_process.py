"""An actor without a policy, driven by an operator's device, with `RosArm` and heartbeats.

python teleoperated_process.py RUN ROBOT
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from serl import plugins
from serl.arm_profile import ArmProfile
from serl.clock import WallClock
from serl.errors import Silent
from serl.ros.arm.robot import RosArm
from serl.ros.node import RosNode
from serl.ros.people.teleop import ActionFrame, TopicDevices
from serl.system.supervisor import is_orphaned
from serl.tasks.reach import ReachConfig
from serl.teleop.config import TeleopConfig
from serl.teleop.mux import TeleopMux
from serl.types import ActionSource
from tests.support.guarding import config


def main() -> None:
    folder, robot = Path(sys.argv[1]), sys.argv[2]
    profile: ArmProfile = plugins.load("robot", "sim")
    motion = config().motion.model_copy(update={"axes": ("x", "y", "z"), "gripper": False})
    task = ReachConfig(motion=motion)
    with RosNode(f"actor_{robot}", folder, local=True) as node:
        arm = RosArm(node, robot, profile.model_copy(update={"gripper": None}), task)
        devices = TopicDevices(node, robot, TeleopConfig(), ActionFrame(profile.base_frame))
        people = TeleopMux(devices.people(arm.action_spec))
        arm.silence_s = lambda: people.silence_s
        clock = WallClock(task.rate_hz, arm.beat)
        while not (node.stopping or is_orphaned()):
            action = people()
            arm.drive_as(ActionSource.POLICY if action is None else ActionSource.HUMAN)
            try:
                arm.act(np.zeros(3, np.float32) if action is None else action)
                arm.recover()
            except Silent:
                pass  # the arm's pose is unknown; the guard holds it
            clock.wait()


if __name__ == "__main__":
    main()
