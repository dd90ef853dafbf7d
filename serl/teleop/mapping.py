"""Mappings from the axes and buttons of a device to motion and events."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, ClassVar, Literal, NamedTuple, Protocol

from pydantic import Field

from serl.intervention import Event
from serl.teleop.device import Device, DeviceReport
from serl.types import FrozenModel

AXES = ("x", "y", "z", "roll", "pitch", "yaw", "gripper")
"""Axes of an operator's motion, in the order of its numbers."""
Axis = Literal["x", "y", "z", "roll", "pitch", "yaw", "gripper"]
Scale = Annotated[float, Field(ge=-1, le=1)]


class MappingConfig(FrozenModel):
    """The mapping of a device; the operator stands behind the robot and looks forward.

    A plug-in device declares a subclass as `Config`, with its own mapping as defaults and with
    fields for its own settings.

    Attributes:
        axes: motion axis and scale for each device axis; a negative scale reverses it. x is
            forward, y to the left, z up; +1 of the gripper opens it.
        pushes: motion axis and scale for each button held down.
        dead_zone: positions up to this count as rest; motion starts at 0 beyond it.
        deadman: the button that has to be held to drive; None without one.
        threshold: motion of at least this size takes over without a deadman; None never does.
        events: event of each button press.
    """

    axes: dict[str, tuple[Axis, Scale]] = Field({})
    pushes: dict[str, tuple[Axis, Scale]] = Field({})
    dead_zone: float = Field(0.1, ge=0, lt=1)
    deadman: str | None = None
    threshold: float | None = Field(None, gt=0, lt=1)
    events: dict[str, Event] = Field({})


class DeviceKind(Protocol):
    """Interface of the `device` of a plug-in module; a class implements `open` as a class method.

    Attributes:
        Config: settings and mapping of the device, `teleop.device.*`.
    """

    Config: ClassVar[type[MappingConfig]]

    def open(self, path: Path | None, config: MappingConfig) -> Device:
        """Open the first device of this kind, or the one at `path`.

        Raises:
            BadInput: the device was not found.
        """
        ...


class Wish(NamedTuple):
    """Operator input decoded from a device report.

    Attributes:
        motion: commands in [-1, 1] along `AXES`; of two arms, those of the left arm come first.
        hands: True while the operator takes over: the deadman is held, or the motion suffices.
        events: events of the buttons pressed.
    """

    motion: tuple[float, ...]
    hands: bool
    events: tuple[Event, ...]


def read_wish(report: DeviceReport, config: MappingConfig) -> Wish | None:
    """Decode a report by its mapping; return None if it holds a number that is not finite."""
    if not all(map(math.isfinite, report.axes.values())):
        return None
    motion = dict.fromkeys(AXES, 0.0)
    for name, (axis, scale) in config.axes.items():
        motion[axis] += scale * _beyond(report.axes.get(name, 0.0), config.dead_zone)
    for name, (axis, scale) in config.pushes.items():
        motion[axis] += scale * (name in report.buttons)
    wanted = tuple(min(1.0, max(-1.0, value)) for value in motion.values())
    hands = config.deadman is not None and config.deadman in report.buttons
    if config.threshold is not None:
        hands |= max(map(abs, wanted)) >= config.threshold
    return Wish(wanted, hands, events_of(report, config))


def events_of(report: DeviceReport, config: MappingConfig) -> tuple[Event, ...]:
    """Return the events of the buttons pressed, whatever the axes report."""
    return tuple(config.events[name] for name in report.presses if name in config.events)


def _beyond(position: float, dead_zone: float) -> float:
    """Remove the dead zone, so that motion begins at 0; the result is within [-1, 1]."""
    way = min(1.0, max(0.0, (abs(position) - dead_zone) / (1.0 - dead_zone)))
    return math.copysign(way, position)


BUTTONS = ("hands", "success", "failure", "discard", "reset", "stop", "reward", "penalty")
"""Buttons of `sensor_msgs/Joy` messages, in the order of the message."""

MAPPING = MappingConfig(
    axes={name: (name, 1.0) for name in ("x", "y", "z", "roll", "pitch", "yaw", "gripper")},
    dead_zone=0.0,
    deadman="hands",
    events={name: Event(name) for name in BUTTONS[1:]},
)
"""Mapping of a device whose axes and buttons have the names of motions and events."""


def split_wish(wish: Wish, arms: int) -> list[Wish]:
    """Return the input for each arm; without motion if it was made for another number of arms."""
    count = len(AXES)
    motion = wish.motion if len(wish.motion) == arms * count else (0.0,) * (arms * count)
    return [wish._replace(motion=motion[at : at + count]) for at in range(0, arms * count, count)]


def to_joystick(wish: Wish) -> tuple[list[float], list[int]]:
    """Return the positions along `AXES` and the state of `BUTTONS`."""
    names = {event.value for event in wish.events}
    held = [int(name in names) for name in BUTTONS[1:]]
    return list(wish.motion[: len(AXES)]), [int(wish.hands), *held]


def describe_control(status: Mapping[str, str], records: bool = False) -> str:
    """Describe an actor's active controller in words, for operators without a web page.

    Args:
        status: status published by the actor.
        records: the operator records demonstrations: the robot holds while it is not driven.
    """
    if reason := status.get("stopped") or status.get("paused") or status.get("silent"):
        return f"it holds: {reason}"
    off = "it holds: no operator input"
    drivers = {
        "human": f"{status['owner']} drives" if status.get("owner") else off,
        "policy": "the policy drives",
        "script": off if records else "the scene is being reset",
    }
    return drivers.get(status.get("driver", ""), "it rests between two episodes")
