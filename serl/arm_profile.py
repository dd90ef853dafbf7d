"""Profile of an arm and its ROS 2 driver: topics, types, frames, joints, gains. Data only.

Names are relative to the robot's namespace unless they begin with a slash.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Literal, Self

import yaml
from pydantic import Field, model_validator

from serl import plugins
from serl.compliance import AXES as AXES
from serl.compliance import SOFT_N_M, TaskCompliance
from serl.compliance import ControllerProfile as ControllerProfile
from serl.compliance import ErrorClip as ErrorClip
from serl.compliance import Gains as Gains
from serl.errors import BadInput
from serl.geometry import Vector
from serl.motion import FARTHEST_RAD
from serl.reset import ResetConfig
from serl.system.files import make_folder, write_atomic
from serl.system.settings_file import checked, read_yaml
from serl.types import FrozenModel
from serl.workspace import CameraName, CellCamera, SetupResult, Workspace

POSE = "geometry_msgs/msg/PoseStamped"
"""Type of messages with a pose."""
TWIST = "geometry_msgs/msg/TwistStamped"
"""Type of messages with a twist."""
WRENCH = "geometry_msgs/msg/WrenchStamped"
"""Type of messages with a wrench."""
JOINTS = "sensor_msgs/msg/JointState"
"""Type of messages with the state of joints."""
TRAJECTORY = "trajectory_msgs/msg/JointTrajectory"
"""Type of messages with a trajectory of joints."""
NUMBERS = "std_msgs/msg/Float64MultiArray"
"""Type of messages with numbers, such as the opening of a gripper."""
IMAGE = "sensor_msgs/msg/Image"
"""Type of messages with a camera's picture."""
TRIGGER = "std_srvs/srv/Trigger"
"""Type of services without a request."""
GRIP = "control_msgs/action/GripperCommand"
"""Type of the standard gripper action."""
RUNNING = "std_msgs/msg/Bool"
"""Type of messages on whether the arm's program runs."""
FRANKA_STATE = "franka_msgs/msg/FrankaRobotState"
"""Type of messages with the full state of a Franka arm."""
XARM_STATE = "xarm_msgs/msg/RobotMsg"
"""Type of messages with the full state of an xArm."""
KORTEX_FAULT = "example_interfaces/msg/Bool"
"""Type of messages on whether a Kinova arm is in fault."""
FAULTS = (RUNNING, FRANKA_STATE, XARM_STATE, KORTEX_FAULT)
"""Types of fault topics: a latched flag that the arm's program runs, the full robot state, or a
periodic flag that the arm has a fault."""

SIM = "sim"
"""Robot name of the simulated arm behind ROS 2."""


def is_real(robot: str | None) -> bool:
    """Return whether a robot is real: not `SIM`, and not None (simulation in the actor process)."""
    return robot is not None and robot != SIM


FrameName = Annotated[str, Field(min_length=1, max_length=128)]


class Channel(FrozenModel):
    """A topic, service or action: its name, and its type in the notation of `ros2 interface`."""

    name: str = Field(pattern=r"^/?[A-Za-z][A-Za-z0-9_]*(/[A-Za-z][A-Za-z0-9_]*)*$")
    type: str = Field(pattern=r"^[a-z][a-z0-9_]*/(msg|srv|action)/[A-Z][A-Za-z0-9]*$")

    @property
    def package(self) -> str:
        """The package that defines the type."""
        return self.type.partition("/")[0]


class GripperProfile(FrozenModel):
    """A gripper of one degree of freedom.

    Attributes:
        command: position command: one number on a topic, or the goal of an action.
        state: joint states that contain the gripper's position.
        joint: name of the gripper's joint in `state`; None for its first entry.
        closed: the position when closed, in the driver's unit (m, rad, or a fraction).
        open: the position when open.
        effort: greatest effort of a command, if its type has one.
    """

    command: Channel
    state: Channel
    joint: str | None = None
    closed: float = 0.0
    open: float
    effort: float = Field(10.0, gt=0)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.command.type not in (NUMBERS, GRIP):
            raise ValueError(f"command.type {self.command.type}: expected {NUMBERS} or {GRIP}")
        if self.open == self.closed:
            raise ValueError(f"open {self.open} must differ from closed {self.closed}")
        return self

    def opening(self, position: float) -> float:
        """Return the opening at a driver position: 0 closed, 1 open."""
        return (position - self.closed) / (self.open - self.closed)

    def position(self, opening: float) -> float:
        """Return the driver position at an opening (0 closed, 1 open)."""
        return self.closed + opening * (self.open - self.closed)


class Payload(FrozenModel):
    """Payload at the flange, as configured in the robot.

    Attributes:
        mass_kg: mass of the payload.
        center_m: its centre of mass in the frame of the flange.
    """

    mass_kg: float = Field(ge=0, le=20)
    center_m: Vector = (0.0, 0.0, 0.0)


class ArmProfile(FrozenModel):
    """The profile of a family of arms: its geometry, its driver's channels and its limits.

    Attributes:
        name: name of the family.
        summary: one line that names the driver and the arm.
        base_frame: frame of poses, targets, twists and wrenches.
        tool_frame: frame whose pose is measured and targeted.
        joints: names of the arm's joints, in the order of all joint numbers here.
        joint_low_rad: lower limits.
        joint_high_rad: upper limits.
        home_rad: joint positions with which episodes begin; `actor.home_every` brings them back.
        pose: measured base_T_tcp.
        twist: twist of the tool; None if the driver publishes none: it is then derived from poses.
        wrench: wrench that the surroundings exert on the tool; None without a sensor: then zero.
        wrench_frame: frame of the wrench: the base frame or the tool frame.
        wrench_reversed: the driver publishes the wrench that the tool exerts on the surroundings;
            readings have the opposite one.
        twist_frames: accepted frame ids of twist headers; empty for the base frame's name.
        wrench_frames: accepted frame ids of wrench headers; empty for the wrench frame's name.
        joint_states: joint states of the arm, possibly with further joints.
        target: target pose of the controller, or target velocity if the type is TWIST, in the base
            frame and about the tool; published at 100 Hz, by the guard only.
        target_wrench: wrench that the tool exerts beside the controller's spring, along and about
            the axes of the tool frame; published by the guard only. None for a controller that
            takes none.
        trajectory: topic of a driver that moves the joints along each trajectory it receives, and
            follows `target` again from the next target on, without a switch of controllers;
            published by the guard only. None for any other driver.
        gripper: profile of the gripper; None for an arm without one.
        controller: profile of the controller.
        payload: payload of the gripper and the parts fixed to it.
        yield_m: total distance the arm gives way in a protective stop; None for `Limits.yield_m`.
        fault: topic that reports errors of the arm; None if the driver has none: then errors are
            not detected.
        recover: service that clears a fault of the arm; called by a person, never automatically.
        workspace: allowed positions of the tool; None until a person taught them (`serl setup`).
        cameras: cameras of the cell, by name.
        setup: results of the steps of `serl setup`, by step.
        reset: settings of resets on this arm, which override those of a task; None for none.
    """

    name: str
    summary: str
    base_frame: str
    tool_frame: str
    joints: Annotated[tuple[str, ...], Field(min_length=1)]
    joint_low_rad: tuple[float, ...]
    joint_high_rad: tuple[float, ...]
    home_rad: tuple[float, ...]
    pose: Channel = Channel(name="current_pose", type=POSE)
    twist: Channel | None = Channel(name="current_twist", type=TWIST)
    wrench: Channel | None = Channel(name="wrench", type=WRENCH)
    wrench_frame: Literal["base", "tool"] = "base"
    wrench_reversed: bool = False
    twist_frames: tuple[FrameName, ...] = ()
    wrench_frames: tuple[FrameName, ...] = ()
    joint_states: Channel = Channel(name="joint_states", type=JOINTS)
    target: Channel = Channel(name="target_pose", type=POSE)
    target_wrench: Channel | None = None
    trajectory: Channel | None = None
    gripper: GripperProfile | None
    controller: ControllerProfile
    payload: Payload
    yield_m: float | None = Field(None, ge=0, le=0.05)
    fault: Channel | None = None
    recover: Channel | None = None
    workspace: Workspace | None = None
    cameras: dict[CameraName, CellCamera] = Field({})
    setup: dict[str, SetupResult] = Field({})
    reset: ResetConfig | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.target.type not in (POSE, TWIST):
            raise ValueError(f"target.type {self.target.type}: expected {POSE} or {TWIST}")
        if self.target_wrench is not None and self.target_wrench.type != WRENCH:
            raise ValueError(f"target_wrench.type {self.target_wrench.type}: expected {WRENCH}")
        if self.trajectory is not None and self.trajectory.type != TRAJECTORY:
            raise ValueError(f"trajectory.type {self.trajectory.type}: expected {TRAJECTORY}")
        if self.fault is not None and self.fault.type not in FAULTS:
            raise ValueError(f"fault.type {self.fault.type}: expected one of {', '.join(FAULTS)}")
        if self.controller.hears_wrench and self.wrench is None:
            raise ValueError("controller.hears_wrench: true, but the arm has no wrench")
        rows = (self.joint_low_rad, self.home_rad, self.joint_high_rad)
        if any(len(row) != len(self.joints) for row in rows):
            raise ValueError(f"expected limits and home of {len(self.joints)} joints")
        for joint, low, home, high in zip(self.joints, *rows, strict=True):
            if not low < home < high:
                raise ValueError(f"{joint}: expected low {low} < home {home} < high {high}")
            if max(-low, high) > FARTHEST_RAD:
                raise ValueError(f"{joint}: from {low} to {high}: expected radians")
        return self

    @property
    def twist_headers(self) -> tuple[str, ...]:
        """The frame ids that headers of twist messages may have."""
        return self.twist_frames or (self.base_frame,)

    @property
    def wrench_headers(self) -> tuple[str, ...]:
        """The frame ids that headers of wrench messages may have."""
        return self.wrench_frames or (self.frame_name(self.wrench_frame),)

    def frame_name(self, frame: Literal["base", "tool"]) -> str:
        """Return the frame id of the base frame or the tool frame in message headers."""
        return self.tool_frame if frame == "tool" else self.base_frame

    @property
    def channels(self) -> tuple[Channel, ...]:
        """All topics, services and actions of the driver that serl uses."""
        gripper = (self.gripper.command, self.gripper.state) if self.gripper else ()
        maybe = (self.twist, self.wrench, self.target_wrench, self.trajectory)
        used = (each for each in (*maybe, self.fault, self.recover) if each is not None)
        return (self.pose, self.joint_states, self.target, *gripper, *used)

    @property
    def after_contact(self) -> str:
        """The stiffness of the arm after a stop by a contact, as text for people."""
        soft = self.controller.compliance
        if self.wrench is None:
            return "as stiff as before: it feels no contact"
        if soft is None:
            return f"as stiff as before: its controller takes no gains of {SOFT_N_M:g} N/m or less"
        return f"{soft.stiffness_n_m:g} N/m"

    def with_compliance(self, compliance: TaskCompliance) -> Self:
        """Return the profile whose controller has a task's compliance; see `ControllerProfile`."""
        try:
            controller = self.controller.with_compliance(compliance)
        except BadInput as error:
            raise BadInput(f"arm {self.name}: {error}") from None
        return self.model_copy(update={"controller": controller})

    def within(self, namespace: str) -> Self:
        """Return the profile with absolute names, for a driver that runs in a namespace."""
        base = f"/{namespace.strip('/')}/" if namespace.strip("/") else "/"

        def moved(name: str) -> str:
            return name if name.startswith("/") else f"{base}{name}"

        def channel(old: Channel | None) -> Channel | None:
            return old and old.model_copy(update={"name": moved(old.name)})

        measured = ("pose", "twist", "wrench", "joint_states", "fault")
        names = (*measured, "target", "target_wrench", "trajectory", "recover")
        update: dict[str, object] = {name: channel(getattr(self, name)) for name in names}
        node = moved(self.controller.node)
        update["controller"] = self.controller.model_copy(update={"node": node})
        if (gripper := self.gripper) is not None:
            both = {"command": channel(gripper.command), "state": channel(gripper.state)}
            update["gripper"] = gripper.model_copy(update=both)
        return self.model_copy(update=update)


def load_robot(robot: str) -> ArmProfile:
    """Load a profile by known name, or from a `.py` or `.yaml` file.

    Raises:
        BadInput: see `plugins.load` and `read_robot`; or the plug-in is not a profile.
    """
    if robot.endswith(".yaml"):
        return read_robot(Path(robot))
    profile = plugins.load("robot", robot)
    if not isinstance(profile, ArmProfile):
        raise BadInput(f"robot {robot}: expected an ArmProfile, got {type(profile).__name__}")
    return profile


def read_robot(path: Path) -> ArmProfile:
    """Read a profile from a YAML file.

    Raises:
        BadInput: the file is absent, damaged, or not a profile; one line with the name of the key.
    """
    try:
        values = read_yaml(path)
        if {"left", "right"} & values.keys():
            raise BadInput(f"{path}: two arms, where one is expected: give the file of one of them")
        return checked(ArmProfile, values)
    except BadInput as error:
        text = str(error)
        if not path.is_absolute() and not path.exists():
            text += f"; the path is relative to {Path.cwd()}"
        raise BadInput(text if text.startswith(str(path)) else f"{path}: {text}") from None


def write_robot(path: Path, profile: ArmProfile) -> None:
    """Write a profile to a YAML file, creating or replacing the file."""
    make_folder(path.absolute().parent)
    values = profile.model_dump(mode="json")
    write_atomic(path, yaml.safe_dump(values, sort_keys=False, default_flow_style=None).encode())


def latch_path(robot: str, profile: ArmProfile, namespace: str) -> Path:
    """Return the path of the arm's latch file, shared by all commands and runs that move this arm.

    The file lies beside the profile's file, or, for an arm given by name, in this user's state
    folder. If the profile's topics are relative, each namespace is another arm:
    `right.latch`, `franka.latch` at the root, `franka@left.latch` in /left.
    """
    place = "" if profile.target.name.startswith("/") else namespace.strip("/").replace("/", ".")
    name = f"@{place}.latch" if place else ".latch"
    if robot.endswith((".yaml", ".py")):
        file = Path(robot).resolve()
        return file.with_name(f"{file.stem}{name}")
    home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(home) / "serl" / f"{robot}{name}"
