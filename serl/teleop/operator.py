"""A person at a device: takes over, hands back by rule, and holds the robot when out of hearing."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from enum import StrEnum

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from serl.bimanual import LEFT, RIGHT
from serl.errors import BadInput
from serl.intervention import Event
from serl.specs import ArraySpec
from serl.teleop.device import Device, DeviceLost, RemoteDevice
from serl.teleop.mapping import AXES, Axis, MappingConfig, Wish, read_wish
from serl.types import Action


class OperatorConfig(BaseModel):
    """When hands count as on.

    Attributes:
        hold_over_s: they still do for so long after their last sign; the robot holds meanwhile.
        stale_s: a report older than this says nothing: the device is silent. Three beats of a
            device, at least: `serl teleop` and the console send 50 and 40 a second.
        lost_s: a silence of this length while a person drives cuts the episode.
        stuck_s: nobody pushes the same way, but for a jitter of 2 %, for so long: the device counts
            as silent.
        drives: axes that hands take over, the policy keeps the others; None for all.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    hold_over_s: float = Field(0.3, ge=0, le=5)
    stale_s: float = Field(0.1, gt=0, le=0.5)
    lost_s: float = Field(1.0, gt=0, le=10)
    stuck_s: float = Field(60.0, gt=0, le=86_400)
    drives: tuple[Axis, ...] | None = Field(None, min_length=1)


def arm_count(spec: ArraySpec) -> int:
    """How many arms actions move: 2 of a `Pair`, else 1."""
    return 2 if spec.unit.startswith(LEFT) else 1


class Hands(StrEnum):
    """Where a person's hands are."""

    OFF = "off"
    ON = "on"
    SILENT = "silent"
    """They were on when the device fell silent: the robot holds."""


class Operator:
    """A `Teleop` around a device, or around one in each hand for the two arms of a `Pair`.

    Hands that were on before the first report are not believed: a deadman that is stuck must be let
    go of once, or be seen going down. When the device falls silent while hands are on, the robot
    holds, and the policy gets it back only if a person takes over once more and lets go, or by
    `release`. A silence of `lost_s` cuts the episode.

    Of two devices either takes over both arms, and both hold when either falls silent.

    Args:
        device: what reports; or the left arm's and the right one's.
        mapping: what its reports mean, those of both alike.
        config: when hands are on.
        spec: of actions; its unit names the axes.
        now_s: monotonic seconds, as the device's stamps.

    Attributes:
        hands: where they are.
        trouble: why the robot holds, while hands are silent.

    Raises:
        BadInput: the actions have an axis that no device can move, or none that hands may, or they
            move two arms and there is one device, or the reverse.
    """

    def __init__(
        self,
        device: Device | tuple[Device, ...],
        mapping: MappingConfig,
        config: OperatorConfig,
        spec: ArraySpec,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        names = spec.unit.split()
        self._devices = device if isinstance(device, tuple) else (device,)
        arms = (LEFT, RIGHT) if len(self._devices) == 2 else ("",)
        moved = [f"{arm}{axis}" for arm in arms for axis in AXES]
        if unknown := [name for name in names if name not in moved]:
            raise BadInput(_objection(unknown[0], len(arms)))
        self._sides = [arm.replace("_", " ") for arm in arms]
        self.name = self._devices[0].name if len(arms) == 1 else "the pair of devices"
        self.hands = Hands.OFF
        self._mapping, self._config, self._now_s = mapping, config, now_s
        self._order = [moved.index(name) for name in names]
        self._at_rest = (0.0,) * len(moved)
        drives = config.drives
        axes = [name.removeprefix(LEFT).removeprefix(RIGHT) for name in names]
        if drives is not None and not set(drives) & set(axes):
            raise BadInput(f"teleop.operator.drives {drives}: the actions move {', '.join(names)}")
        self._others = np.array([drives is not None and axis not in drives for axis in axes])
        self.trouble = ""
        self._pushes = [_Push() for _ in self._devices]
        self._free = False  # were seen off
        self._last_s = self._silent_s = 0.0
        self._said: list[Event] = []
        self._told = False

    def begin(self) -> None:
        """An episode starts; hands stay where they are, and a silence goes on."""
        if self._told:
            self._told, self._silent_s = False, self._now_s()

    def __call__(self) -> Action | None:
        """What the person wants; zeros while the robot is to hold; None while hands are off.

        Entries that are left to the policy are not a number.
        """
        now_s, wish = self._now_s(), self._wish()
        if self.hands is not Hands.SILENT:
            self._hear(wish, now_s)
        elif wish is not None and wish.hands and self._free:
            self.hands, self._last_s = Hands.ON, now_s
        elif not self._told and now_s - self._silent_s >= self._config.lost_s:
            self._told, self._free = True, False
            self._said.append(Event.LOST)
        self._free |= wish is not None and not wish.hands
        if self.hands is Hands.OFF:
            return None
        on = wish is not None and wish.hands and self.hands is Hands.ON
        motion = wish.motion if on and wish else self._at_rest
        action = np.array([motion[place] for place in self._order], np.float32)
        if self.hands is Hands.ON:
            action[self._others] = np.nan
        return action

    @property
    def silence_s(self) -> float:
        """How long a device in whose hand the robot is has been silent; grows between two calls.

        Infinite while the robot holds for it, 0 for one that this process reads itself.
        """
        if self.hands is not Hands.ON:
            return 0.0 if self.hands is Hands.OFF else math.inf
        remote = (device for device in self._devices if isinstance(device, RemoteDevice))
        return max((device.silence_s for device in remote), default=0.0)

    def events(self) -> tuple[Event, ...]:
        """What was said since the last call."""
        said, self._said = tuple(self._said), []
        return said

    def release(self) -> None:
        """A person elsewhere says that the robot need not hold for this device any longer."""
        if self.hands is Hands.SILENT:
            self.hands, self._free = Hands.OFF, False

    def _hear(self, wish: Wish | None, now_s: float) -> None:
        """Whether hands are on now, if they were on or off."""
        if wish is None:
            if self.hands is Hands.ON:
                self.hands, self._silent_s, self._told = Hands.SILENT, now_s, False
        elif wish.hands and (self._free or self.hands is Hands.ON):
            self.hands, self._last_s = Hands.ON, now_s
        elif now_s - self._last_s >= self._config.hold_over_s:
            self.hands = Hands.OFF

    def _wish(self) -> Wish | None:
        """What the person wants, None when that is not known; what was said counts either way."""
        wishes = [self._wish_at(number) for number in range(len(self._devices))]
        known = [wish for wish in wishes if wish is not None]
        if len(known) < len(wishes):
            return None
        motion = [value * wish.hands for wish in known for value in wish.motion]
        return Wish(tuple(motion), any(wish.hands for wish in known), ())

    def _wish_at(self, number: int) -> Wish | None:
        """What is wanted at one device."""
        device = self._devices[number]
        name = f"{self._sides[number]}{device.name}"
        try:
            report = device.read()
        except DeviceLost as error:
            self.trouble = f"{self._sides[number]}{error} (is it plugged in?)"
            return None
        wish = read_wish(report, self._mapping) if report else None
        if report is None or wish is None:
            self.trouble = f"{name} fell silent"
            return None
        self._said += wish.events
        if abs(self._now_s() - report.stamp_s) > self._config.stale_s:
            self.trouble = f"{name} fell silent"
            return None
        self._free |= self._mapping.deadman in report.presses  # so it was up before
        if self._pushes[number].lasts_s(wish, self._now_s()) >= self._config.stuck_s:
            self.trouble = f"{name} pushed the same way for {self._config.stuck_s:g} s"
            return None
        return wish


class _Push:
    """The same one for longer than a hand can hold it: an axis or a key that is stuck.

    Sensors jitter; a hand moves by more.
    """

    _JITTER = 0.02

    def __init__(self) -> None:
        self._motion: tuple[float, ...] = ()
        self._since_s = 0.0

    def lasts_s(self, wish: Wish, now_s: float) -> float:
        """For how long a device has pushed the same way; 0 when it does not push."""
        motion = wish.motion if wish.hands and any(wish.motion) else ()
        same = len(motion) == len(self._motion) and all(
            abs(now - then) < self._JITTER for now, then in zip(motion, self._motion, strict=True)
        )
        if not same:
            self._motion, self._since_s = motion, now_s
        return now_s - self._since_s if motion else 0.0


def _objection(name: str, arms: int) -> str:
    """Why nobody can move an axis of an action."""
    if arms == 1 and name.startswith((LEFT, RIGHT)):
        return f"teleoperation: the actions move two arms ({name}): give a device for each"
    if arms == 2 and name in AXES:
        return f"teleoperation: the actions move one arm ({name}): give one device"
    return f"teleoperation: no axis {name!r}; there are: {', '.join(AXES)}"
