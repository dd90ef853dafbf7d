"""Every family of arms: the actor's end, a guard, and a fake of the driver, over real DDS."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
from rcl_interfaces.msg import ParameterEvent

from serl import plugins
from serl.arm_profile import ArmProfile
from serl.errors import Silent
from serl.motion import Motion
from serl.robot import POSE
from serl.ros.arm.controller import controller_node, settle_controller
from serl.ros.arm.robot import RosArm
from serl.ros.arm.topics import topic_of
from serl.ros.node import RosNode
from serl.ros.topics import Topic
from serl.runs.real_arm import within_workspace
from serl.specs import ObservationSpec
from serl.tasks.reach import ReachConfig
from serl.types import Observation, Outcome

from ...support.guarding import DOWN, config
from ...support.upstream import FAMILIES
from .cell import ROBOT, Cell, eventually

MOTION = ReachConfig().motion.model_copy(update={"box_high_m": (0.70, 0.30, 0.60), "gripper": True})
HAS_ACTIONS = importlib.util.find_spec("control_msgs") is not None


def without(name: str) -> tuple[str, ...]:
    """What a profile has whose messages are not installed: a gripper, what tells errors."""
    profile: ArmProfile = plugins.load("robot", name)
    gripper = profile.gripper.command if profile.gripper is not None else None
    channels = {"gripper": gripper, "fault": profile.fault}
    return tuple(
        key
        for key, channel in channels.items()
        if channel is not None and importlib.util.find_spec(channel.package) is None
    )


def profile_of(name: str) -> ArmProfile:
    """The profile, without what cannot be used here."""
    profile: ArmProfile = plugins.load("robot", name)
    return profile.model_copy(update=dict.fromkeys(without(name)))


class Bay:
    """A family's fake, a guard of it with changes of its profile, and an actor's end."""

    def __init__(self, folder: Path, name: str, motion: Motion = MOTION, **changes: Any) -> None:
        self.name, self.profile = name, profile_of(name)
        self.motion = within_workspace(motion, self.profile)
        self.cell = Cell(folder)
        limits = config(
            frame=self.profile.base_frame,
            joint_names=self.profile.joints,
            joint_low_rad=self.profile.joint_low_rad,
            joint_high_rad=self.profile.joint_high_rad,
            wrench=self.profile.wrench is not None,
            reference=DOWN,
        ).model_copy(update={"motion": self.motion})
        (folder / "guard.yaml").write_text(json.dumps(limits.model_dump(mode="json")))
        self._file = folder / "family.py"
        self._file.write_text(
            "from serl import plugins\n"
            f"robot = plugins.load('robot', {name!r})"
            f".model_copy(update={dict.fromkeys(without(name))})\n"
            f"robot = type(robot).model_validate(robot.model_dump() | {changes!r})\n"
        )
        self.node = RosNode("actor", folder, local=True)

    def __enter__(self) -> Bay:
        self.cell.__enter__()
        self.node.__enter__()
        self.cell.start_fake(FAMILIES[self.name])
        self.cell.start_guard("--arm", str(self._file))
        self.arm = RosArm(self.node, ROBOT, self.profile, ReachConfig(motion=self.motion))
        self.node.every(0.015, self.arm.beat)  # whatever the tests wait for
        settle_controller(self.arm.remote, ROBOT, self.profile)
        self.cell.until("disarmed")
        return self

    def __exit__(self, *failure: Any) -> None:
        self.node.__exit__(None, None, None)
        self.cell.__exit__(None, None, None)

    def misbehave(self, fault: str) -> None:
        self.set(fault=fault)

    def set(self, **parameters: Any) -> None:
        """Set parameters of the controller."""
        node = controller_node(ROBOT, self.profile)
        self.arm.remote.set_parameters(node, parameters)

    def take(self) -> None:
        """Have the guard take the arm, which is well."""

        def taken() -> bool:
            if self.cell.state.startswith("disarmed"):
                self.cell.call("arm")
            elif self.cell.state.startswith("protective stop"):
                self.cell.call("ack")
            self.arm.remote.wait(lambda: False, 0.05)
            return self.cell.state.startswith(("hold", "policy"))

        eventually(taken, found=lambda: self.cell.state)

    def recover(self) -> None:
        """Ready to be driven, once it is known where the arm is: a busy machine may be late."""

        self.arm.stop("test")  # or what `act` met would stay

        def recovered() -> bool:
            try:
                self.arm.recover()
            except Silent:
                return False
            return True

        eventually(recovered)

    def drive(self, *action: float, until: Any, limit_s: float = 60.0) -> None:
        """Act ten times a second until something holds."""

        def act() -> bool:
            try:
                self.arm.observe()
                self.arm.act(np.array(action, np.float32))
                self.arm.remote.wait(lambda: False, 0.1)  # real time passes
                return bool(until())
            except Silent as error:  # a busy machine is late; the control loop does the same
                self.arm.stop(str(error))
                self.recover()
                return False

        eventually(act, limit_s, lambda: self.cell.state)

    def place(self) -> list[float]:
        reading = self.arm.observe_when_fresh(30.0)
        return [float(value) for value in reading.state["tcp_pose"][:3]]

    def opening(self) -> float:
        """Of the gripper."""
        return float(self.arm.observe_when_fresh(30.0).state["gripper"][0])

    def velocities(self) -> list[list[float]]:
        """What an arm that takes velocities is told from now on: linear (m/s), angular (rad/s)."""
        heard: list[list[float]] = []

        def hear(message: Any) -> None:
            linear, angular = message.twist.linear, message.twist.angular
            heard.append([linear.x, linear.y, linear.z, angular.x, angular.y, angular.z])

        self.node.subscribe(topic_of(self.profile.target, ROBOT, 200), hear)
        return heard

    def told(self, parameter: str) -> list[float]:
        """What the controller is told that a parameter is from now on."""
        values: list[float] = []
        tellers: set[str] = set()

        def hear(event: Any) -> None:
            tellers.add(event.node.rpartition("/")[2])
            changed = [*event.new_parameters, *event.changed_parameters]
            values.extend(each.value.double_value for each in changed if each.name == parameter)

        self.node.subscribe(Topic("/parameter_events", ParameterEvent, 100), hear)

        def heard() -> bool:
            self.misbehave("")
            return self.profile.controller.node.rpartition("/")[2] in tellers

        eventually(heard)
        return values

    def said(self, sign: str, since: int) -> bool:
        """The guard said so after its `since`-th word; beats meanwhile."""
        self.arm.remote.wait(lambda: False, 0.02)
        return any(text.startswith(sign) for _, text in self.cell.states[since:])


class Watching:
    """A task that sees where the tool is, and never ends."""

    observation_spec = ObservationSpec(state={"tcp_pose": POSE})

    def begin(self, reading: Observation) -> None:
        pass

    def observation(self, reading: Observation) -> Observation:
        return Observation({"tcp_pose": reading.state["tcp_pose"]}, stamps=reading.stamps)

    def outcome(self, reading: Observation, index: int) -> Outcome:
        return Outcome(truncated=index > 300)
