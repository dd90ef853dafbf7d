"""The bench of a profile: a fake driver, a guard and an actor's `RosArm`, over real DDS."""

from __future__ import annotations

import importlib.util
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import numpy as np
from rcl_interfaces.msg import ParameterEvent

from serl.arm_profile import ArmProfile, load_robot, write_robot
from serl.compliance import TaskCompliance
from serl.errors import Silent
from serl.guard.config import GuardConfig
from serl.motion import Limits, Motion
from serl.ros.arm.controller import controller_node
from serl.ros.arm.robot import RosArm
from serl.ros.node import RosNode
from serl.ros.testing.fake_driver import DOWN
from serl.ros.testing.processes import LIMIT_S, ROBOT, GuardProcesses, eventually
from serl.ros.topics import Topic
from serl.runs.real_arm import within_workspace
from serl.system.settings_file import checked
from serl.task import TaskConfig

MOTION = Motion(
    axes=("x", "y", "z", "yaw"),
    translation_m=0.02,
    rotation_rad=0.2,
    max_rotation_rad=1.0,
    box_low_m=(0.25, -0.30, 0.04),
    box_high_m=(0.70, 0.30, 0.60),
    gripper=True,
    limits=Limits(speed_m_s=0.25, lead_m=0.020),
)
"""Motion of the tests; the tool starts in its box, see `fake_driver`."""

SPAWN = ("-m", "serl.ros.testing.fake_driver")
"""Arguments of Python that start a fake driver; its file and its namespace follow."""


def missing_types(profile: ArmProfile) -> dict[str, str]:
    """Return the parts of a profile whose message packages are not installed, with their types."""
    gripper = profile.gripper.command if profile.gripper is not None else None
    channels = {"gripper": gripper, "fault": profile.fault, "recover": profile.recover}
    return {
        part: channel.type
        for part, channel in channels.items()
        if channel is not None and importlib.util.find_spec(channel.package) is None
    }


class ProfileBench(GuardProcesses):
    """A fake driver, a guard and an actor of one arm, as a context.

    The profile's workspace and cameras belong to a cell, so they are left out. A gripper or fault
    topic whose message package is not installed is left out as well, see `missing`. The task has
    compliance tables of its own where the profile's controller takes them, see `tables_of`.

    Args:
        profile: the profile, or its name or file.
        compliance: compliance of the task; None for those tables.

    Attributes:
        profile: the profile in use.
        missing: parts of the profile that are left out, with their types.
        arm: the actor's end.
    """

    def __init__(
        self,
        folder: Path,
        profile: ArmProfile | str,
        driver: Path,
        motion: Motion = MOTION,
        compliance: TaskCompliance | None = None,
    ) -> None:
        whole = load_robot(profile) if isinstance(profile, str) else profile
        self.missing = missing_types(whole)
        left_out: dict[str, Any] = {"workspace": None, "cameras": {}, **dict.fromkeys(self.missing)}
        own = whole.model_copy(update=left_out)
        compliance = tables_of(own) if compliance is None else compliance
        self.profile = own.with_compliance(compliance)
        self.motion = within_workspace(motion, own)
        self._driver = driver
        config = guard_config(own, self.motion)
        super().__init__(folder, config.model_copy(update={"compliance": compliance}))
        self._file = folder / "arm.yaml"
        write_robot(self._file, own)
        self.node = RosNode("actor", folder, local=True)

    def __enter__(self) -> Self:
        super().__enter__()
        try:
            self.enter_context(self.node)
            self._begin()
        except BaseException:
            self.close()
            raise
        return self

    def _begin(self) -> None:
        self.start_fake(self._driver)
        self.start_guard("--arm", str(self._file))
        self.arm = RosArm(self.node, ROBOT, self.profile, TaskConfig(motion=self.motion))
        self.node.every(0.015, self.arm.beat)  # also while a test waits
        self.enter_context(self.arm)
        self.until("disarmed")

    def start_fake(self, driver: Path) -> subprocess.Popen[str]:
        """Start a fake driver in the arm's namespace."""
        return self.start("driver", *SPAWN, str(driver), self.prefix)

    def misbehave(self, fault: str = "") -> None:
        """Select a fault of `fake_driver`; empty for none."""
        self.set(fault=fault)

    def set(self, **parameters: Any) -> None:
        """Set parameters of the controller."""
        self.arm.remote.set_parameters(controller_node(ROBOT, self.profile), parameters)

    def get(self, *names: str) -> dict[str, Any]:
        """Return parameters of the controller."""
        return self.arm.remote.get_parameters(controller_node(ROBOT, self.profile), list(names))

    def take(self) -> None:
        """Block until the guard has taken the healthy arm; acknowledge its stops."""

        def is_taken() -> bool:
            if self.state.startswith("disarmed"):
                self.call("arm")
            elif self.state.startswith(("protective stop", "estop")):
                self.call("ack")
                self.call("reset")  # refused after a protective stop, which `ack` has ended
            self.pass_time(0.05)
            return self.state.startswith(("hold", "policy"))

        eventually(is_taken, found=lambda: f"{self.state}; {self.not_now}")

    def recover(self) -> None:
        """Make the actor ready to drive from the arm's present pose, once that is known."""
        self.arm.stop("test")  # otherwise a fault of `act` would stay

        def is_recovered() -> bool:
            try:
                self.arm.recover()
            except Silent:
                return False
            return True

        eventually(is_recovered)

    def make_ready(self) -> None:
        """End all faults and stops; drive with zero actions until the guard follows, at rest."""
        self.misbehave()
        self.take()
        self.recover()
        places = [self.position()]

        def is_ready() -> bool:
            places.append(self.position())
            moved_m = float(np.ptp(places[-3:], axis=0).max())  # one pose may be observed twice
            return self.state.startswith("policy") and len(places) > 2 and moved_m < 1e-4

        self.drive(until=is_ready)

    def drive(self, until: Callable[[], object], limit_s: float = LIMIT_S, **action: float) -> None:
        """Act ten times a second until a condition holds.

        Args:
            until: the condition.
            limit_s: time after which the test fails.
            action: nonzero components of the action, by axis or "gripper".
        """
        names = [*self.motion.axes, *(("gripper",) if self.motion.gripper else ())]
        values = np.array([action.get(name, 0.0) for name in names], np.float32)

        def act() -> bool:
            try:
                self.arm.observe()
                self.arm.act(values)
                self.pass_time(0.1)
                return bool(until())
            except Silent as error:  # messages are late on a busy machine; an actor does the same
                self.arm.stop(str(error))
                self.recover()
                return False

        eventually(act, limit_s, lambda: self.state)

    def pass_time(self, seconds: float) -> None:
        """Let real time pass while the actor's heartbeat goes on."""
        self.arm.remote.wait(lambda: False, seconds)

    def position(self) -> np.ndarray[Any, Any]:
        """Return the position of the tool, three numbers."""
        return self._state("tcp_pose")[:3].astype(float)

    def yaw_rad(self) -> float:
        """Return the rotation of the tool about the vertical, from pointing down."""
        x, y = self._state("tcp_pose")[3:5]
        return 2.0 * float(np.arctan2(y, x))

    def opening(self) -> float:
        """Return the opening of the gripper, 0 to 1."""
        return float(self._state("gripper")[0])

    def _state(self, name: str) -> np.ndarray[Any, Any]:
        return self.arm.observe_when_fresh(30.0).state[name]

    def history(self, parameter: str) -> list[float]:
        """Return a list that grows by the values to which a controller's parameter is set."""
        values: list[float] = []
        nodes: set[str] = set()

        def receive(event: Any) -> None:
            nodes.add(event.node.rpartition("/")[2])
            changed = [*event.new_parameters, *event.changed_parameters]
            values.extend(each.value.double_value for each in changed if each.name == parameter)

        self.node.subscribe(Topic("/parameter_events", ParameterEvent, 100), receive)

        def is_connected() -> bool:
            self.misbehave()
            return self.profile.controller.node.rpartition("/")[2] in nodes

        eventually(is_connected)
        return values

    def has_reported(self, state: str, since: int) -> bool:
        """Return whether a report of the guard began with `state`, after its first `since`."""
        self.pass_time(0.02)
        return any(text.startswith(state) for _, text in self.states[since:])


def tables_of(profile: ArmProfile) -> TaskCompliance:
    """Return a task's tables of all that a controller takes, softer than its profile."""
    controller = profile.controller
    values = {
        quantity: {axis: controller.parameters[name] for axis, name in names.items()}
        for quantity, names in controller.table_parameters.items()
    }

    def table(share: float) -> dict[str, Any]:
        rows: dict[str, Any] = {
            quantity: {
                axis: share * float(value) for axis, value in values.get(quantity, {}).items()
            }
            for quantity in ("stiffness", "damping")
        }
        high = values.get("clip", {})
        low = values.get("clip_neg", high)
        clip = {axis: (-share * float(low[axis]), share * float(high[axis])) for axis in high}
        return {**rows, "clip": clip}

    return checked(TaskCompliance, {"task": table(0.8), "reset": table(0.9)})


def guard_config(profile: ArmProfile, motion: Motion) -> GuardConfig:
    """Return the configuration of a guard of an arm whose tool points down."""
    return GuardConfig(
        motion=motion,
        reference=DOWN,
        frame=profile.base_frame,
        joint_names=profile.joints,
        joint_low_rad=profile.joint_low_rad,
        joint_high_rad=profile.joint_high_rad,
        home_rad=profile.home_rad if profile.trajectory is not None else (),
        wrench=profile.wrench is not None,
    )
