"""Description of an arm's driver: what its sources say that it publishes, takes and does.

It is written from the sources of the driver and its controller, not from the profile that it
checks. Every row cites its `source`: file, line, and the commit in a comment of the file.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal, Self, get_args

from pydantic import Field

from serl.arm_profile import ArmProfile, Channel
from serl.ros.testing.laws import LAWS, Law, load_law
from serl.system.settings_file import checked, read_yaml
from serl.types import FrozenModel

Role = Literal[
    "target",
    "target_wrench",
    "trajectory",
    "pose",
    "twist",
    "joint_states",
    "wrench",
    "fault",
    "recover",
]
Number = bool | int | float | str


class Fact(FrozenModel):
    """A statement about a driver, with the place in its sources that shows it."""

    source: str = Field(min_length=1)


class NamedFact(Fact):
    """A name in the sources."""

    name: str


class DriverChannel(Fact):
    """A topic, service or action of the driver.

    Attributes:
        name: name, relative to the arm's namespace unless it begins with a slash.
        type: message type, as in `ros2 interface`.
        depth: queue depth of the subscription to a command.
        best_effort: the publisher is not reliable.
        latched: published on changes only, transient local.
        frame: frame id of the headers; None for the driver's base frame.
        reversed: a wrench that the tool exerts, not its surroundings.
        unused: the reason why the profile leaves it out; None if the profile uses it.
    """

    name: str
    type: str
    depth: int = 10
    best_effort: bool = False
    latched: bool = False
    frame: str | None = None
    reversed: bool = False
    unused: str | None = None


class DriverJoints(Fact):
    """The joints of the arm in their order, and their positions in the suite's start pose."""

    names: Annotated[tuple[str, ...], Field(min_length=1)]
    rest_rad: tuple[float, ...]


class DriverGripper(FrozenModel):
    """The gripper: its command, its joint, and the positions when closed and open."""

    command: DriverChannel
    state: DriverChannel
    joint: str
    closed: float
    open: float


class DriverParameters(Fact):
    """The parameters of the controller's node at its start."""

    values: dict[str, Number]


class Driver(FrozenModel):
    """The driver and the controller of an arm.

    Attributes:
        law: a name in `serl.ros.testing.LAWS`, or `FILE.py:CLASS`, a subclass of `Law`.
        node: name of the controller's node.
        frame: base frame of the poses.
        joints: joints of the arm.
        channels: topics and services by their role in the profile.
        gripper: the gripper; None without one.
        parameters: parameters of the controller.
        hears_wrench: the controller subscribes to the force sensor; None if it does not.
    """

    law: NamedFact
    node: NamedFact
    frame: NamedFact
    joints: DriverJoints
    channels: dict[Role, DriverChannel]
    gripper: DriverGripper | None = None
    parameters: DriverParameters
    hears_wrench: Fact | None = None

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a description from a YAML file; a law's file is relative to its folder.

        Raises:
            BadInput: the file is absent or damaged; one line with the name of the key.
        """
        driver = checked(cls, read_yaml(path))
        if driver.law.name in LAWS:
            return driver
        law = driver.law.model_copy(update={"name": str(path.absolute().parent / driver.law.name)})
        return driver.model_copy(update={"law": law})

    @property
    def law_kind(self) -> type[Law]:
        """The class of the law."""
        return load_law(self.law.name)

    def mismatches(self, profile: ArmProfile) -> Iterator[str]:
        """Yield how a profile differs from this driver in names, types and frames."""
        yield from self._wrong_channels(profile)
        yield from self._wrong_gripper(profile)
        yield from self._wrong_frames(profile)
        yield from self._wrong_parameters(profile)

    def _wrong_channels(self, profile: ArmProfile) -> Iterator[str]:
        for role in get_args(Role):
            row, channel = self.channels.get(role), getattr(profile, role)
            if row is None or row.unused is not None:
                why = "the driver has none" if row is None else row.unused
                if channel is not None:
                    yield f"{role}: the profile has {channel.name}, but {why}"
            elif channel is None:
                yield f"{role}: the profile has none; the driver has {row.name} ({row.source})"
            else:
                yield from _wrong_channel(role, channel, row)

    def _wrong_gripper(self, profile: ArmProfile) -> Iterator[str]:
        ours, row = profile.gripper, self.gripper
        if ours is None or row is None:
            if ours is not None or row is not None:
                yield f"gripper: the {'driver' if row is None else 'profile'} has none"
            return
        yield from _wrong_channel("gripper.command", ours.command, row.command)
        yield from _wrong_channel("gripper.state", ours.state, row.state)
        for name in ("closed", "open"):
            found, expected = getattr(ours, name), getattr(row, name)
            if found != expected:
                yield f"gripper.{name}: {found}, expected {expected} ({row.command.source})"
        if ours.joint not in (None, row.joint):
            yield f"gripper.joint: {ours.joint}, expected {row.joint}"

    def _wrong_frames(self, profile: ArmProfile) -> Iterator[str]:
        if profile.base_frame != self.frame.name:
            yield f"base_frame: {profile.base_frame}, expected {self.frame.name}"
        for role, frames in (("twist", profile.twist_headers), ("wrench", profile.wrench_headers)):
            row = self.channels.get(role)  # type: ignore[call-overload]
            if row is not None and (row.frame or self.frame.name) not in frames:
                yield f"{role}: {row.frame or self.frame.name} is not in {role}_frames {frames}"
        wrench = self.channels.get("wrench")
        if wrench is not None and wrench.reversed != profile.wrench_reversed:
            yield f"wrench_reversed: {profile.wrench_reversed}, unlike the driver ({wrench.source})"
        if profile.joints != self.joints.names:
            yield f"joints: {profile.joints}, expected {self.joints.names}"
        rows = zip(
            profile.joint_low_rad, self.joints.rest_rad, profile.joint_high_rad, strict=False
        )
        if len(self.joints.rest_rad) != len(profile.joints) or not all(
            low < rest < high for low, rest, high in rows
        ):
            yield f"joints.rest_rad: {self.joints.rest_rad}: not within the profile's joint limits"

    def _wrong_parameters(self, profile: ArmProfile) -> Iterator[str]:
        controller, known = profile.controller, self.parameters.values
        if controller.node != self.node.name:
            yield f"controller.node: {controller.node}, expected {self.node.name}"
        if controller.hears_wrench != (self.hears_wrench is not None):
            yield f"controller.hears_wrench: {controller.hears_wrench}, unlike the driver"
        used = {**controller.parameters, **controller.expected}
        for mode in controller.modes.values():
            used |= mode.parameters
        for name, value in used.items():
            if name not in known:
                yield f"controller: the driver has no parameter {name} ({self.parameters.source})"
                continue
            counted = name in controller.expected and type(known[name]) is int
            if not counted and type(known[name]) is not type(value):
                yield f"controller: {name} is a {type(known[name]).__name__}, not {value!r}"


def _wrong_channel(role: str, ours: Channel, row: DriverChannel) -> Iterator[str]:
    if (ours.name, ours.type) != (row.name, row.type):
        yield f"{role}: {ours.name} ({ours.type}), expected {row.name} ({row.type}): {row.source}"
