"""An arm as its driver shows it to ROS 2: topics, types, frames, joints, gains. Only data.

Names are relative to the robot's namespace unless they begin with a slash.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, model_validator

from serl import plugins
from serl.errors import BadInput
from serl.geometry import Vector
from serl.motion import FARTHEST_RAD
from serl.system.files import make_folder, write_atomic
from serl.system.settings_file import checked, read_yaml
from serl.workspace import CameraName, CellCamera, SetupResult, Workspace

Signed = tuple[float, float]
"""The furthest below zero, and the furthest above."""

POSE = "geometry_msgs/msg/PoseStamped"
TWIST = "geometry_msgs/msg/TwistStamped"
WRENCH = "geometry_msgs/msg/WrenchStamped"
JOINTS = "sensor_msgs/msg/JointState"
NUMBERS = "std_msgs/msg/Float64MultiArray"
IMAGE = "sensor_msgs/msg/Image"
TRIGGER = "std_srvs/srv/Trigger"
GRIP = "control_msgs/action/GripperCommand"
RUNNING = "std_msgs/msg/Bool"
FRANKA_STATE = "franka_msgs/msg/FrankaRobotState"
XARM_STATE = "xarm_msgs/msg/RobotMsg"
FAULTS = (RUNNING, FRANKA_STATE, XARM_STATE)
"""Types of what tells errors of an arm: whether its program runs (latched), or its whole state."""

Value = bool | float | str
"""Of a controller's parameter."""

SOFT_N_M = 200.0
"""At this stiffness an arm that was stopped by a contact can be pushed away by hand."""

SIM = "sim"
"""The robot whose name stands for the simulated arm behind ROS 2."""


def is_real(robot: str | None) -> bool:
    """Whether a robot is neither that one nor, as None, a simulation in the actor's process."""
    return robot is not None and robot != SIM


def is_simulated_arm(robot: str | None) -> bool:
    """Whether a robot is the simulated arm behind ROS 2."""
    return robot == SIM


FrameName = Annotated[str, Field(min_length=1, max_length=128)]


class Channel(BaseModel):
    """A topic, service or action: its name, and its type as `ros2 interface` writes it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(pattern=r"^/?[A-Za-z][A-Za-z0-9_]*(/[A-Za-z][A-Za-z0-9_]*)*$")
    type: str = Field(pattern=r"^[a-z][a-z0-9_]*/(msg|srv|action)/[A-Z][A-Za-z0-9]*$")

    @property
    def package(self) -> str:
        """The package that defines the type."""
        return self.type.partition("/")[0]


class GripperProfile(BaseModel):
    """A gripper of one degree of freedom.

    Attributes:
        command: takes a position: one number on a topic, or the goal of an action.
        state: joint states that tell where it is ...
        joint: ... under this name; None where its first entry is the one.
        closed: the position when closed, in the driver's unit (m, rad, or a share).
        open: the position when open.
        effort: greatest effort of a command, where its type has one.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

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
        """How far open it is at a position of the driver: 0 closed, 1 open."""
        return (position - self.closed) / (self.open - self.closed)

    def position(self, opening: float) -> float:
        """The driver's position at an opening."""
        return self.closed + opening * (self.open - self.closed)


class ErrorClip(BaseModel):
    """How far the controller lets its target be ahead, per axis: bounds the force of a spring.

    Translations in metres, rotations in radians.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    x: Signed
    y: Signed
    z: Signed
    rx: Signed
    ry: Signed
    rz: Signed

    @model_validator(mode="after")
    def _check(self) -> Self:
        for axis, (low, high) in self:
            if not low < 0.0 < high:
                raise ValueError(f"{axis} {(low, high)}: expected a number below 0 and one above")
        return self


class Gains(BaseModel):
    """Parameters that a controller takes while it runs, and how stiff they make it.

    Attributes:
        parameters: by name.
        stiffness_n_m: of its spring with them; None for a controller that is none.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    parameters: Annotated[dict[str, float], Field(min_length=1)]
    stiffness_n_m: float | None = Field(None, gt=0, le=2000)


class ControllerProfile(BaseModel):
    """The controller's parameters: set at the start, read back, and refused if they differ.

    Attributes:
        node: whose parameters they are.
        parameters: by name; gains and clips among them.
        expected: what others have set, and nothing here changes: only compared, before the guard
            takes the arm and while it has it.
        modes: gains to switch to while it runs, by name, such as "compliance" and "precision";
            each changes all of the same parameters.
        stiffness_n_m: of its spring, for forces that follow from a lead; None for a controller
            of positions, whose force nothing bounds.
        error_clip: what its parameters clip; None where it clips nothing.
        hears_wrench: the stiffness bounds the force only while the controller listens to the
            profile's `wrench`; the guard does not take the arm unless it does.
        fastest_m_s: the controller scales a faster command down to this; None where it does not.
        fastest_rad_s: the same for rotations.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    node: str
    parameters: dict[str, Value] = {}
    expected: dict[str, Value] = {}
    modes: dict[str, Gains] = {}
    stiffness_n_m: float | None = Field(None, gt=0, le=2000)
    error_clip: ErrorClip | None = None
    hears_wrench: bool = False
    fastest_m_s: float | None = Field(None, gt=0)
    fastest_rad_s: float | None = Field(None, gt=0)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if both := sorted(self.parameters.keys() & self.expected.keys()):
            raise ValueError(f"expected: {', '.join(both)}: is set by `parameters`")
        changed = {name: sorted(mode.parameters) for name, mode in self.modes.items()}
        if len({tuple(names) for names in changed.values()}) > 1:
            raise ValueError(f"modes: expected each to change the same parameters, got {changed}")
        return self

    @property
    def compliance(self) -> Gains | None:
        """The softest mode of 200 N/m or less, for an arm that was stopped by a contact."""
        soft = [
            each for each in self.modes.values() if (each.stiffness_n_m or math.inf) <= SOFT_N_M
        ]
        return min(soft, key=lambda each: each.stiffness_n_m or math.inf, default=None)

    def wrong(self, found: Mapping[str, object]) -> str:
        """What of `found`, the parameters as the controller says, is not as here; empty if none.

        Gains may be those of the start or of a mode, but of one of them.
        """
        complaints = [differences(found, wanted) for wanted in self._settings]
        return "" if "" in complaints else complaints[0]

    def is_between(self, found: Mapping[str, object]) -> bool:
        """Whether `found` may be on its way from some gains to others: none beyond all of them."""
        settings = self._settings
        gains = {name for mode in self.modes.values() for name in mode.parameters}
        fixed = {name: value for name, value in settings[0].items() if name not in gains}
        return not differences(found, fixed) and all(
            _is_among(found.get(name), [each[name] for each in settings if name in each])
            for name in gains
        )

    @property
    def _settings(self) -> list[dict[str, Value]]:
        """All parameters: as at the start, and in each mode."""
        fixed = {**self.parameters, **self.expected}
        return [fixed, *({**fixed, **mode.parameters} for mode in self.modes.values())]


def differences(found: Mapping[str, object], wanted: Mapping[str, Value]) -> str:
    """Which of a controller's parameters are not as wanted, in words; empty if none."""
    return "; ".join(
        f"{name} is {found.get(name)}, expected {value}"
        for name, value in wanted.items()
        if not is_value(found.get(name), value)
    )


def is_value(found: object, wanted: Value) -> bool:
    """Whether a controller's parameter is what it should be, to the precision of its storage."""
    if isinstance(wanted, (bool, str)) or isinstance(found, bool):
        return type(found) is type(wanted) and found == wanted
    return isinstance(found, (int, float)) and math.isclose(found, wanted, rel_tol=1e-9)


def _is_among(found: object, ends: Sequence[object]) -> bool:
    """Whether a gain is a number from the least to the greatest of others."""
    numbers = [end for end in ends if isinstance(end, (int, float))]
    if not isinstance(found, (int, float)) or isinstance(found, bool):
        return False
    return min(numbers) <= found <= max(numbers)


class Payload(BaseModel):
    """What is mounted at the flange, as the robot has to be told: kg, and m in the flange frame."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    mass_kg: float = Field(ge=0, le=20)
    center_m: Vector = (0.0, 0.0, 0.0)


class ArmProfile(BaseModel):
    """What is particular to a family of arms.

    Attributes:
        name: of the family.
        summary: one line on which driver and which arm.
        base_frame: frame of poses, targets, twists and wrenches.
        tool_frame: whose pose is told and targeted.
        joints: names of the arm's joints, in the order of all joint numbers here.
        joint_low_rad: lower limits.
        joint_high_rad: upper limits.
        home_rad: where a person brings the arm before the first episode.
        pose: base_T_tcp as measured.
        twist: of the tool; None where the driver tells none: then it is worked out of poses.
        wrench: what the surroundings exert on the tool; None without a sensor: then zero ...
        wrench_frame: ... in the base frame or the tool's.
        twist_frames: what headers of the twist may call the base frame; empty: as it is called.
        wrench_frames: what headers of the wrench may call its frame; empty: as that is called.
        joint_states: of the arm, maybe among others.
        target: where the controller is to go, or for a type of TWIST how fast, in the base frame
            and about the tool; at 100 Hz. Only the guard publishes it.
        gripper: None without one.
        controller: its parameters.
        payload: of the gripper and what is fixed to it.
        yield_m: how far the arm gives way in a protective stop, in all; None: `Limits.yield_m`.
        fault: tells errors of the arm; None where no driver's topic does: then none is heard.
        recover: a service that clears a fault of the arm; called by a person, never by us.
        workspace: where it may go; None until a person taught it (`serl setup`).
        cameras: of the cell, by name.
        setup: what was tried on the first day, by step.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

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
    twist_frames: tuple[FrameName, ...] = ()
    wrench_frames: tuple[FrameName, ...] = ()
    joint_states: Channel = Channel(name="joint_states", type=JOINTS)
    target: Channel = Channel(name="target_pose", type=POSE)
    gripper: GripperProfile | None
    controller: ControllerProfile
    payload: Payload
    yield_m: float | None = Field(None, ge=0, le=0.05)
    fault: Channel | None = None
    recover: Channel | None = None
    workspace: Workspace | None = None
    cameras: dict[CameraName, CellCamera] = {}
    setup: dict[str, SetupResult] = {}

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.target.type not in (POSE, TWIST):
            raise ValueError(f"target.type {self.target.type}: expected {POSE} or {TWIST}")
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
        """The frames of which a twist may say that it is in them."""
        return self.twist_frames or (self.base_frame,)

    @property
    def wrench_headers(self) -> tuple[str, ...]:
        """And a wrench."""
        return self.wrench_frames or (self.frame_name(self.wrench_frame),)

    def frame_name(self, frame: Literal["base", "tool"]) -> str:
        """Return the name that headers give the base frame or the tool frame."""
        return self.tool_frame if frame == "tool" else self.base_frame

    @property
    def channels(self) -> tuple[Channel, ...]:
        """All that is used of the driver."""
        gripper = (self.gripper.command, self.gripper.state) if self.gripper else ()
        maybe = (self.twist, self.wrench, self.fault, self.recover)
        used = (channel for channel in maybe if channel is not None)
        return (self.pose, self.joint_states, self.target, *gripper, *used)

    @property
    def after_contact(self) -> str:
        """How stiff the arm is once a contact has stopped it, for people."""
        soft = self.controller.compliance
        if self.wrench is None:
            return "as stiff as before: it feels no contact"
        if soft is None:
            return f"as stiff as before: its controller takes no gains of {SOFT_N_M:g} N/m or less"
        return f"{soft.stiffness_n_m:g} N/m"

    def within(self, namespace: str) -> Self:
        """The profile of an arm whose driver runs in a namespace: all names from the root."""
        base = f"/{namespace.strip('/')}/" if namespace.strip("/") else "/"

        def moved(name: str) -> str:
            return name if name.startswith("/") else f"{base}{name}"

        def channel(old: Channel | None) -> Channel | None:
            return old and old.model_copy(update={"name": moved(old.name)})

        names = ("pose", "twist", "wrench", "joint_states", "target", "fault", "recover")
        update: dict[str, object] = {name: channel(getattr(self, name)) for name in names}
        node = moved(self.controller.node)
        update["controller"] = self.controller.model_copy(update={"node": node})
        if (gripper := self.gripper) is not None:
            both = {"command": channel(gripper.command), "state": channel(gripper.state)}
            update["gripper"] = gripper.model_copy(update=both)
        return self.model_copy(update=update)


def load_robot(robot: str) -> ArmProfile:
    """Load the profile of a known name, of a `.py` file or of a `.yaml` file.

    Raises:
        BadInput: as `plugins.load` and `read_robot`, or the plug-in is no profile.
    """
    if robot.endswith(".yaml"):
        return read_robot(Path(robot))
    profile = plugins.load("robot", robot)
    if not isinstance(profile, ArmProfile):
        raise BadInput(f"robot {robot}: expected an ArmProfile, got {type(profile).__name__}")
    return profile


def read_robot(path: Path) -> ArmProfile:
    """The profile of a file.

    Raises:
        BadInput: it is absent, damaged, or no profile; in one line with the name of the key.
    """
    try:
        return checked(ArmProfile, read_yaml(path))
    except BadInput as error:
        text = str(error)
        raise BadInput(text if text.startswith(str(path)) else f"{path}: {text}") from None


def write_robot(path: Path, profile: ArmProfile) -> None:
    """Replace the file, or make it."""
    make_folder(path.absolute().parent)
    values = profile.model_dump(mode="json")
    write_atomic(path, yaml.safe_dump(values, sort_keys=False, default_flow_style=None).encode())


def latch_path(robot: str, profile: ArmProfile, namespace: str) -> Path:
    """The file of an arm's latch, one for all commands and runs that move this arm.

    Beside the profile's file, or with the state of this user's programs for an arm by name. Where
    the profile does not name the arm's topics from the root, each namespace is another arm:
    `right.latch`, `franka.latch` at the root, `franka@left.latch` in /left.
    """
    place = "" if profile.target.name.startswith("/") else namespace.strip("/").replace("/", ".")
    name = f"@{place}.latch" if place else ".latch"
    if robot.endswith((".yaml", ".py")):
        file = Path(robot).resolve()
        return file.with_name(f"{file.stem}{name}")
    home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(home) / "serl" / f"{robot}{name}"
