"""Operators at devices: takeover, handing back, and holding the robot when a device is silent."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from enum import StrEnum

import numpy as np
from pydantic import Field

from serl.bimanual import LEFT, RIGHT
from serl.errors import BadInput
from serl.geometry import Vector, conjugate, normalize, rotate
from serl.intervention import Event
from serl.specs import ArraySpec
from serl.teleop.device import Device, DeviceLost, RemoteDevice, read_device
from serl.teleop.mapping import AXES, Axis, MappingConfig, Wish, events_of, read_wish
from serl.types import Action, Array, FrozenModel, Observation


class OperatorConfig(FrozenModel):
    """Settings that decide when an operator is in control, and when a device has timed out.

    Attributes:
        hold_over_s: time for which the operator keeps control after the last input; the robot holds
            meanwhile.
        stale_s: age above which a report is ignored and the device counts as silent. At least three
            periods of the device: `serl teleop` and the console send at 50 and 40 Hz.
        lost_s: silence while the operator is in control after which the episode is cut.
        stuck_s: time of constant motion input, but for jitter of 2 %, after which the device counts
            as silent: no operator holds a device that still.
        drives: axes that the operator takes over, the policy keeps the others; None for all.
    """

    hold_over_s: float = Field(0.3, ge=0, le=5)
    stale_s: float = Field(0.1, gt=0, le=0.5)
    lost_s: float = Field(1.0, gt=0, le=10)
    stuck_s: float = Field(60.0, gt=0, le=86_400)
    drives: tuple[Axis, ...] | None = Field(None, min_length=1)


def arm_count(spec: ArraySpec) -> int:
    """Return the number of arms that actions move: 2 for a `Pair`, otherwise 1."""
    return 2 if spec.unit.startswith(LEFT) else 1


class Hands(StrEnum):
    """State of an operator's control."""

    OFF = "off"
    ON = "on"
    SILENT = "silent"
    """The operator was in control when the device timed out: the robot holds."""


class Operator:
    """A `Teleop` that reads one device, or one device for each of the two arms of a `Pair`.

    Input that was active before the first report is ignored: a stuck deadman has to be released
    once, or be seen going down. When the device times out while the operator is in control, the
    robot holds; the policy regains control only after the operator takes over again and hands back,
    or by `release`. A silence of `lost_s` cuts the episode.

    With two devices, either takes over both arms, and both arms hold when either device is silent.
    A console's page counts as one device for each arm.

    Devices move an arm along the axes of its base. Where actions are in the frame of the tool, the
    motion is turned into it by the newest reading, unless the robot has no tool.

    Args:
        device: the device; or the devices of the left and the right arm.
        mapping: mapping of the reports, the same for both devices.
        config: takeover and timeout settings.
        spec: spec of the actions; its unit names the axes.
        now_s: monotonic clock in seconds, the same as that of the device's stamps.
        name: name shown for devices that are parts of one, such as a page; empty for names by arm.
        in_tool_frame: actions are in the frame of the tool, and the motion of the devices is not.

    Attributes:
        hands: state of the operator's control.
        trouble: reason why the robot holds, while `hands` is silent.

    Raises:
        BadInput: the actions have an axis that no device can move, or none that `drives` allows;
            or the number of devices differs from the number of arms.
    """

    def __init__(
        self,
        device: Device | tuple[Device, ...],
        mapping: MappingConfig,
        config: OperatorConfig,
        spec: ArraySpec,
        now_s: Callable[[], float] = time.monotonic,
        name: str = "",
        in_tool_frame: bool = False,
    ) -> None:
        names = spec.unit.split()
        self._devices = device if isinstance(device, tuple) else (device,)
        arms = (LEFT, RIGHT) if len(self._devices) == 2 else ("",)
        moved = [f"{arm}{axis}" for arm in arms for axis in AXES]
        if unknown := [name for name in names if name not in moved]:
            raise BadInput(_objection(unknown[0], len(arms)))
        self._sides = ["" if name else arm.replace("_", " ") for arm in arms]
        first = self._devices[0].name
        self.name = name or (first if len(arms) == 1 else f"the pair of {first}s")
        self.hands = Hands.OFF
        self._mapping, self._config, self._now_s = mapping, config, now_s
        self._order = [moved.index(name) for name in names]
        self._at_rest = (0.0,) * len(moved)
        self._targets = [f"{arm}target_pose" for arm in arms] if in_tool_frame else []
        self._poses: list[Array | None] = []
        drives = config.drives
        axes = [name.removeprefix(LEFT).removeprefix(RIGHT) for name in names]
        if drives is not None and not set(drives) & set(axes):
            raise BadInput(f"teleop.operator.drives {drives}: the actions move {', '.join(names)}")
        self._others = np.array([drives is not None and axis not in drives for axis in axes])
        self.trouble = ""
        self._pushes = [_Push() for _ in self._devices]
        self._free = False  # the device was seen without operator input
        self._last_s = self._silent_s = 0.0
        self._events: list[Event] = []
        self._is_lost = False

    def on_reading(self, reading: Observation) -> None:
        """Note the orientations of the tools' targets, if actions are in their frames."""
        self._poses = [reading.state.get(name) for name in self._targets]

    def begin(self) -> None:
        """Start an episode; the control state is kept, and a silence continues."""
        if self._is_lost:
            self._is_lost, self._silent_s = False, self._now_s()

    def __call__(self) -> Action | None:
        """Return the operator's action; zeros while the robot holds; None while not in control.

        Entries that are left to the policy are NaN.
        """
        now_s, wish = self._now_s(), self._wish()
        if self.hands is not Hands.SILENT:
            self._update(wish, now_s)
        elif wish is not None and wish.hands and self._free:
            self.hands, self._last_s = Hands.ON, now_s
        elif not self._is_lost and now_s - self._silent_s >= self._config.lost_s:
            self._is_lost, self._free = True, False
            self._events.append(Event.LOST)
        self._free |= wish is not None and not wish.hands
        if self.hands is Hands.OFF:
            return None
        on = wish is not None and wish.hands and self.hands is Hands.ON
        motion = self._along_tools(wish.motion) if on and wish else self._at_rest
        action = np.array([motion[place] for place in self._order], np.float32)
        if self.hands is Hands.ON:
            action[self._others] = np.nan
        return action

    @property
    def silence_s(self) -> float:
        """Silence in seconds of the device in control; grows between two calls.

        Infinite while the robot holds for a silent device, 0 for a device read in this process.
        """
        if self.hands is not Hands.ON:
            return 0.0 if self.hands is Hands.OFF else math.inf
        remote = (device for device in self._devices if isinstance(device, RemoteDevice))
        return max((device.silence_s for device in remote), default=0.0)

    def events(self) -> tuple[Event, ...]:
        """Return the events since the last call."""
        events, self._events = tuple(self._events), []
        return events

    def release(self) -> None:
        """Stop holding the robot for this device, as requested by an operator elsewhere."""
        if self.hands is Hands.SILENT:
            self.hands, self._free = Hands.OFF, False

    def let_go(self) -> None:
        """End the control; input that is active now has to be released before it takes over."""
        if self.hands is Hands.ON:
            self.hands, self._free = Hands.OFF, False

    def _along_tools(self, motion: tuple[float, ...]) -> tuple[float, ...]:
        """Turn motion along the axes of the base into the frame of the actions."""
        turned = list(motion)
        for arm, pose in enumerate(self._poses):
            if pose is None:
                continue
            base_q_tool, first = normalize(pose[3:].tolist()), arm * len(AXES)
            for at in (first, first + 3):  # translation, rotation
                x, y, z = motion[at : at + 3]
                moved: Vector = rotate(conjugate(base_q_tool), (x, y, z))
                largest = max(1.0, *map(abs, moved))
                turned[at : at + 3] = [value / largest for value in moved]
        return tuple(turned)

    def _update(self, wish: Wish | None, now_s: float) -> None:
        """Update the control state from the newest input, unless it is silent."""
        if wish is None:
            if self.hands is Hands.ON:
                self.hands, self._silent_s, self._is_lost = Hands.SILENT, now_s, False
        elif wish.hands and (self._free or self.hands is Hands.ON):
            self.hands, self._last_s = Hands.ON, now_s
        elif now_s - self._last_s >= self._config.hold_over_s:
            self.hands = Hands.OFF

    def _wish(self) -> Wish | None:
        """Return the operator's input, None when it is unknown; events are collected either way."""
        wishes = [self._wish_at(number) for number in range(len(self._devices))]
        known = [wish for wish in wishes if wish is not None]
        if len(known) < len(wishes):
            return None
        motion = [value * wish.hands for wish in known for value in wish.motion]
        return Wish(tuple(motion), any(wish.hands for wish in known), ())

    def _wish_at(self, number: int) -> Wish | None:
        """Return the input at one device."""
        device = self._devices[number]
        name = f"{self._sides[number]}{device.name}"
        try:
            report = read_device(device)
        except DeviceLost as error:
            hint = " (is it plugged in?)" if isinstance(error.__cause__, OSError) else ""
            self.trouble = f"{self._sides[number]}{error}{hint}"
            return None
        self._events += events_of(report, self._mapping) if report else ()
        wish = read_wish(report, self._mapping) if report else None
        if report is None or wish is None:
            self.trouble = f"{name} fell silent"
            return None
        if abs(self._now_s() - report.stamp_s) > self._config.stale_s:
            self.trouble = f"{name} fell silent"
            return None
        self._free |= self._mapping.deadman in report.presses  # so it was up before
        if self._pushes[number].lasts_s(wish, self._now_s()) >= self._config.stuck_s:
            self.trouble = f"{name} pushed the same way for {self._config.stuck_s:g} s"
            return None
        return wish


class _Push:
    """Detector of constant input that lasts longer than an operator could hold it: a stuck axis.

    Sensors jitter; operator input varies by more than that.
    """

    _JITTER = 0.02

    def __init__(self) -> None:
        self._motion: tuple[float, ...] = ()
        self._since_s = 0.0

    def lasts_s(self, wish: Wish, now_s: float) -> float:
        """Return the seconds for which a device has pushed the same way; 0 without a push."""
        motion = wish.motion if wish.hands and any(wish.motion) else ()
        same = len(motion) == len(self._motion) and all(
            abs(now - then) < self._JITTER for now, then in zip(motion, self._motion, strict=True)
        )
        if not same:
            self._motion, self._since_s = motion, now_s
        return now_s - self._since_s if motion else 0.0


def _objection(name: str, arms: int) -> str:
    """Explain why no device can move an axis of an action."""
    if arms == 1 and name.startswith((LEFT, RIGHT)):
        return f"teleoperation: the actions move two arms ({name}): give a device for each"
    if arms == 2 and name in AXES:
        return f"teleoperation: the actions move one arm ({name}): give one device"
    return f"teleoperation: no axis {name!r}; there are: {', '.join(AXES)}"
