"""Compliance of an arm: gains and clips of its controller, a task's tables of them, its wrench."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, field_validator, model_validator

from serl.errors import BadInput
from serl.types import FrozenModel


def _check_signs(bounds: tuple[float, float]) -> tuple[float, float]:
    low, high = bounds
    if not low < 0.0 < high:
        raise ValueError(f"{bounds}: expected a number below 0 and one above")
    return bounds


Signed = Annotated[tuple[float, float], AfterValidator(_check_signs)]
"""A negative lower bound and a positive upper bound."""

Value = bool | float | str
"""Value of a controller's parameter."""

SOFT_N_M = 200.0
"""Highest stiffness at which an arm stopped by a contact can be pushed away by hand."""

RESET = "reset"
"""Name of the mode with a task's gains for its resets."""

Axis = Literal["x", "y", "z", "rx", "ry", "rz"]
AXES: tuple[Axis, ...] = ("x", "y", "z", "rx", "ry", "rz")
"""Axes of translation, then of rotation, in the order of a wrench's numbers."""
Quantity = Literal["stiffness", "damping", "clip", "clip_neg"]
_GROUPS = {"translation": AXES[:3], "rotation": AXES[3:]}

Wrench = tuple[float, ...]
"""Force (N) and torque (Nm) along and about the axes of a frame: six numbers."""

NO_WRENCH: Wrench = (0.0,) * 6
"""A wrench without force and torque."""
_MOST_N, _MOST_NM = 15.0, 2.5
"""Hard bounds of a target wrench: the measured force that slows an arm, half of a stop's torque."""

_RAMP_TICKS = 50


class ComplianceTable(FrozenModel):
    """Gains and clips per axis of the controller, as HIL-SERL's COMPLIANCE_PARAM.

    The keys "translation" and "rotation" stand for three axes each; a later key of one axis
    overrides it. Values absent from a table are those of the arm's profile.

    Attributes:
        stiffness: stiffness of the springs by axis, N/m and Nm/rad.
        damping: damping by axis, N s/m and Nm s/rad.
        clip: limits on the pose error by axis, below and above 0, metres and radians.
    """

    stiffness: dict[Axis, Annotated[float, Field(gt=0, le=4000)]] = Field({})
    damping: dict[Axis, Annotated[float, Field(gt=0, le=1000)]] = Field({})
    clip: dict[Axis, Signed] = Field({})

    @field_validator("stiffness", "damping", "clip", mode="before")
    @classmethod
    def _by_axis(cls, values: Any) -> Any:
        if not isinstance(values, Mapping):
            return values
        return {axis: to for name, to in values.items() for axis in _GROUPS.get(name, (name,))}

    def rows(self) -> Iterator[tuple[Quantity, Axis, float]]:
        """Yield each number with its quantity and axis; clips are distances from 0."""
        for axis, value in self.stiffness.items():
            yield "stiffness", axis, value
        for axis, value in self.damping.items():
            yield "damping", axis, value
        for axis, (low, high) in self.clip.items():
            yield "clip", axis, high
            yield "clip_neg", axis, -low


class TaskCompliance(FrozenModel):
    """A task's tables for the controller of the arm.

    Attributes:
        task: table of episodes.
        reset: table of resets, which becomes the mode "reset" of the controller; see
            `ResetConfig.gains` for resets without one.
        wrench: wrench that the tool exerts in episodes beside the spring, by axis of the tool: N
            and Nm. It is zero while the arm holds, in stops and in resets.
    """

    task: ComplianceTable = ComplianceTable()
    reset: ComplianceTable = ComplianceTable()
    wrench: dict[Axis, float] = Field({})

    @field_validator("wrench")
    @classmethod
    def _within_bounds(cls, wrench: dict[Axis, float]) -> dict[Axis, float]:
        for axis, value in wrench.items():
            most, unit = (_MOST_N, "N") if axis in AXES[:3] else (_MOST_NM, "Nm")
            if not abs(value) <= most:
                raise ValueError(f"{axis}: {value:g} {unit}: expected {most:g} {unit} at most")
        return wrench

    @property
    def target_wrench(self) -> Wrench:
        """The wrench of episodes as six numbers, zeros without one."""
        return tuple(self.wrench.get(axis, 0.0) for axis in AXES)

    def check_wrench(self, most: Mapping[Axis, float]) -> None:
        """Raise `BadInput` if the wrench exceeds that of a controller; see `most_wrench`."""
        for axis, value in self.wrench.items():
            where, unit = f"compliance.wrench.{axis}", "N" if axis in AXES[:3] else "Nm"
            if axis not in most:
                raise BadInput(f"{where}: expected an axis whose spring has a known stiffness")
            if abs(value) > most[axis] * (1.0 + 1e-9):
                raise BadInput(
                    f"{where}: {value:g} {unit}: expected {most[axis]:g} {unit} at most, half of "
                    "what the controller's spring exerts within its clip and the lead"
                )


class WrenchRamp:
    """The target wrench over time: reached in half a second, and zero at once.

    Args:
        wrench: the wrench of a task.
    """

    def __init__(self, wrench: Wrench) -> None:
        self._wrench, self._ticks = wrench, 0

    def advance(self, exerts: bool) -> Wrench:
        """Return the wrench of the next 10 ms.

        Args:
            exerts: whether the arm is moved in an episode; otherwise the wrench is zero.
        """
        self._ticks = min(self._ticks + 1, _RAMP_TICKS) if exerts else 0
        return tuple(value * self._ticks / _RAMP_TICKS for value in self._wrench)


ParameterNames = dict[Quantity, dict[Axis, str]]
"""Names of a controller's parameters by quantity and axis.

`clip` is the limit of an error on both sides where `clip_neg` has no name for the side below 0.
Axes may share a parameter.
"""


def parameters_of(names: ParameterNames, table: ComplianceTable, where: str) -> dict[str, float]:
    """Return the parameters of a controller that a table sets.

    Args:
        names: names of the parameters.
        table: the table.
        where: setting of the table, for messages.

    Raises:
        BadInput: the controller has no such parameter, or one for two different numbers.
    """
    found: dict[str, float] = {}
    for quantity, axis, value in table.rows():
        own = names.get(quantity, {}).get(axis)
        if own is None and quantity == "clip_neg":
            own = names.get("clip", {}).get(axis)
        if own is None:
            offered = ", ".join(f"{each} {' '.join(names[each])}" for each in names) or "none"
            raise BadInput(
                f"{where}.{quantity.removesuffix('_neg')}.{axis}: its controller has no such "
                f"parameter: expected one of {offered}"
            )
        if found.setdefault(own, value) != value:
            raise BadInput(
                f"{where}.{quantity.removesuffix('_neg')}.{axis}: {value:g}: its controller has "
                f"one parameter, {own}, for this and for {found[own]:g}: expected equal numbers"
            )
    return found


class ErrorClip(FrozenModel):
    """The controller's limits on the pose error, per axis: they bound the force of its spring.

    Translations in metres, rotations in radians.
    """

    x: Signed
    y: Signed
    z: Signed
    rx: Signed
    ry: Signed
    rz: Signed


class Gains(FrozenModel):
    """Controller parameters that can be changed at run time, and the resulting stiffness.

    Attributes:
        parameters: values by parameter name.
        stiffness_n_m: stiffness of the controller's spring with these values; None for a
            controller that is not a spring.
    """

    parameters: Annotated[dict[str, float], Field(min_length=1)]
    stiffness_n_m: float | None = Field(None, gt=0, le=2000)


class ControllerProfile(FrozenModel):
    """The controller's parameters: set at the start, read back, and refused if they differ.

    Attributes:
        node: ROS node that has the parameters.
        parameters: values by name, including gains and clips.
        expected: values set elsewhere and never changed by serl; they are only compared, before
            the guard takes the arm and while it controls the arm.
        modes: gains to switch to at run time, by name ("compliance", "precision"); all modes
            set the same parameters.
        table_parameters: names of those `parameters` that a task's compliance tables may set, by
            quantity and axis; empty for a controller without such parameters.
        stiffness_n_m: stiffness of the controller's spring, to compute forces from a lead; None
            for a position controller, whose force is not bounded.
        error_clip: limits on the pose error set by the parameters; None for no clipping.
        hears_wrench: the stiffness bounds the force only while the controller subscribes to the
            profile's `wrench`; the guard refuses to take the arm unless it does.
        fastest_m_s: the controller scales faster commands down to this speed; None for no scaling.
        fastest_rad_s: the same limit for rotations.
    """

    node: str
    parameters: dict[str, Value] = Field({})
    expected: dict[str, Value] = Field({})
    modes: dict[str, Gains] = Field({})
    table_parameters: ParameterNames = Field({})
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
        named = {name for row in self.table_parameters.values() for name in row.values()}
        used = named.union(*changed.values()) if named else named
        if unset := sorted(n for n in used if not isinstance(self.parameters.get(n), float)):
            raise ValueError(
                f"table_parameters: {', '.join(unset)}: expected numbers among `parameters`, so "
                "that the next start restores them"
            )
        return self

    def with_compliance(self, compliance: TaskCompliance) -> Self:
        """Return the controller with a task's table from the start, and that of resets as a mode.

        A table may be softer than the profile, but no stiffer than the stiffest of its modes, and
        clip errors earlier, but not later. A parameter that a mode does not
        set has the profile's value in it, not that of episodes.

        Raises:
            BadInput: the controller lacks a parameter of a table, or a number is above its bound.
        """
        if compliance.task == compliance.reset == ComplianceTable():
            return self
        own = self._from_table(compliance.task, "compliance.task")
        resets = self._from_table(compliance.reset, "compliance.reset")
        modes = {name: mode.parameters for name, mode in self.modes.items()}
        if resets:
            modes[RESET] = resets
        changed = sorted(own.keys() | {name for values in modes.values() for name in values})
        whole: dict[str, Gains] = {}
        for name, values in modes.items():
            every = {each: float(values.get(each, self.parameters[each])) for each in changed}
            stiffness = self._stiffness_n_m(self.parameters | every)
            whole[name] = Gains(parameters=every, stiffness_n_m=stiffness)
        start = self.parameters | own
        update = {"parameters": start, "modes": whole}
        return self.model_copy(update={**update, "stiffness_n_m": self._stiffness_n_m(start)})

    def most_wrench(self, lead_m: float, lead_rad: float) -> dict[Axis, float]:
        """Return the largest target wrench along and about each axis, N and Nm.

        It is half of what the spring exerts at its clip, or at the lead of a setpoint if this is
        nearer: a greater one could push the tool away through the spring. Axes of unknown stiffness
        are left out.
        """
        found: dict[Axis, float] = {}
        for axis in AXES:
            lead, stiffness = (lead_m, self.stiffness_n_m) if axis in AXES[:3] else (lead_rad, None)
            named = {quantity: names.get(axis) for quantity, names in self.table_parameters.items()}
            if own := named.get("stiffness"):
                stiffness = float(self.parameters[own])
            clips = [named.get("clip"), named.get("clip_neg")]
            reach = [lead, *(float(self.parameters[name]) for name in clips if name)]
            if self.error_clip is not None and not clips[0]:
                reach += map(abs, getattr(self.error_clip, axis))
            if stiffness is not None:
                found[axis] = 0.5 * stiffness * min(reach)
        return found

    def _from_table(self, table: ComplianceTable, where: str) -> dict[str, float]:
        """Return the parameters that a table sets; raise `BadInput` if one is out of its bounds."""
        found = parameters_of(self.table_parameters, table, where)
        for quantity, names in self.table_parameters.items():
            bounded = found.keys() & names.values() if quantity != "damping" else ()
            for name in sorted(bounded):
                known: list[Mapping[str, Value]] = [self.parameters]
                known += [mode.parameters for mode in self.modes.values()]
                most = max(float(each[name]) for each in known if name in each)
                if found[name] > most:
                    raise BadInput(
                        f"{where}.{quantity.removesuffix('_neg')}: {name} {found[name]:g}: "
                        f"expected at most {most:g}, the largest of the arm's profile"
                    )
        return found

    def _stiffness_n_m(self, values: Mapping[str, Value]) -> float | None:
        """Return the largest stiffness of translations with these parameters."""
        names = self.table_parameters.get("stiffness", {})
        along = [float(values[names[axis]]) for axis in AXES[:3] if axis in names]
        return max(along, default=self.stiffness_n_m)

    @property
    def compliance(self) -> Gains | None:
        """The softest mode of 200 N/m or less, for an arm that was stopped by a contact."""
        soft = [
            each for each in self.modes.values() if (each.stiffness_n_m or math.inf) <= SOFT_N_M
        ]
        return min(soft, key=lambda each: each.stiffness_n_m or math.inf, default=None)

    def mismatch(self, found: Mapping[str, object]) -> str:
        """Return the differences of the controller's parameters `found` from the profile, or "".

        The gains must be those of the start or all those of one mode.
        """
        complaints = [differences(found, expected) for expected in self._settings]
        return "" if "" in complaints else complaints[0]

    def is_switching(self, found: Mapping[str, object]) -> bool:
        """Return whether `found` may be changing between modes: each gain within their range."""
        settings = self._settings
        gains = {name for mode in self.modes.values() for name in mode.parameters}
        fixed = {name: value for name, value in settings[0].items() if name not in gains}
        return not differences(found, fixed) and all(
            _is_among(found.get(name), [each[name] for each in settings if name in each])
            for name in gains
        )

    @property
    def _settings(self) -> list[dict[str, Value]]:
        """All complete parameter sets: the one at the start, then one per mode."""
        fixed = {**self.parameters, **self.expected}
        return [fixed, *({**fixed, **mode.parameters} for mode in self.modes.values())]


def differences(found: Mapping[str, object], expected: Mapping[str, Value]) -> str:
    """Return a description of the controller parameters that differ from `expected`, or ""."""
    return "; ".join(
        f"{name} is {found.get(name)}, expected {value}"
        for name, value in expected.items()
        if not is_value(found.get(name), value)
    )


def is_value(found: object, expected: Value) -> bool:
    """Return whether a controller's parameter has the expected value, to its storage precision."""
    if isinstance(expected, (bool, str)) or isinstance(found, bool):
        return type(found) is type(expected) and found == expected
    return isinstance(found, (int, float)) and math.isclose(found, expected, rel_tol=1e-9)


def _is_among(found: object, ends: Sequence[object]) -> bool:
    """Return whether a gain is a number between the smallest and the largest of `ends`."""
    numbers = [end for end in ends if isinstance(end, (int, float))]
    if not isinstance(found, (int, float)) or isinstance(found, bool):
        return False
    return min(numbers) <= found <= max(numbers)
