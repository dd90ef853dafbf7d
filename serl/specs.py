"""Shapes, types, bounds and units of observations and actions, and the checks against them."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile
from math import isfinite
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from serl.errors import SpecMismatch
from serl.types import Array, FrozenModel, Observation

MAX_REWARD = 1e6
"""Largest absolute reward of one step; losses are squares of sums of rewards, in float32."""

MAX_STATE_SIZE = 60_000
"""Largest number of entries of a state vector that is logged; the text of a record has 1 MiB."""

_RESERVED = {"state", "robot", "outcome"}
"""Names that a reading uses itself."""

_UNITS = {"m", "rad", "m/s", "rad/s", "N", "Nm"}

_Size = Annotated[int, Field(ge=0, le=1 << 20)]


class ArraySpec(FrozenModel):
    """Shape, type, bounds and unit of one array.

    Attributes:
        shape: exact shape, without a batch axis; at most 8 axes of 2^20.
        dtype: "float32" for state and actions, "uint8" for images.
        low: smallest allowed value, or None.
        high: largest allowed value, or None.
        unit: unit as text for people ("m", "rad", "m xyzw").
    """

    shape: Annotated[tuple[_Size, ...], Field(max_length=8)]
    dtype: Literal["float32", "uint8"] = "float32"
    low: float | None = None
    high: float | None = None
    unit: str = ""

    def validate_array(self, value: np.ndarray[Any, Any], name: str) -> None:
        """Raise `SpecMismatch` unless `value` has this shape and type, is finite and in bounds."""
        if value.shape != self.shape or value.dtype != self.dtype:
            raise SpecMismatch(
                f"{name}: expected {self.dtype}{list(self.shape)}, "
                f"got {value.dtype}{list(value.shape)}"
            )
        low, high = self.low, self.high
        if self.dtype == "uint8" and low is None and high is None:
            return
        numbers = _extremes(value)
        if not isfinite(sum(numbers)):
            raise SpecMismatch(f"{name}: not finite: {value.tolist()}")
        if low is not None and numbers and min(numbers) < low:
            raise SpecMismatch(f"{name}: {min(numbers):g} is below {low:g}")
        if high is not None and numbers and max(numbers) > high:
            raise SpecMismatch(f"{name}: {max(numbers):g} is above {high:g}")


class ObservationSpec(FrozenModel):
    """Names, in their declared order, and specs of state arrays and images."""

    state: dict[str, ArraySpec]
    images: dict[str, ArraySpec] = Field({})

    @property
    def state_size(self) -> int:
        """Length D of the flat state vector."""
        return sum(int(np.prod(spec.shape)) for spec in self.state.values())

    @property
    def state_units(self) -> tuple[str, ...]:
        """The unit of each entry of the flat state vector, the first word of its array's unit.

        If units follow each other, as "N Nm" of a wrench, each one is that of an equal part.
        """
        return tuple(unit for spec in self.state.values() for unit in _units(spec))

    def validate_observation(self, observation: Observation) -> None:
        """Raise `SpecMismatch`, naming the key, unless the observation fits exactly."""
        _same_names("state", self.state, observation.state)
        _same_names("images", self.images, observation.images)
        for name, spec in self.state.items():
            spec.validate_array(observation.state[name], f"state {name}")
        for name, spec in self.images.items():
            spec.validate_array(observation.images[name], f"image {name}")

    def flatten(self, observation: Observation) -> Array:
        """Return the state arrays, in declared order, as one vector of shape (D,)."""
        return np.concatenate([observation.state[name].ravel() for name in self.state])


class Spec(FrozenModel):
    """The interface that an actor and a learner must agree on before any step is sent.

    Attributes:
        task: name of the task.
        observation: spec of a policy's observations.
        action: spec of a policy's actions.
        rate_hz: control rate.
        motion: scale and frame of an action of 1, as text (`Motion.meaning`).
    """

    task: str
    observation: ObservationSpec
    action: ArraySpec
    rate_hz: float = Field(gt=0)
    motion: str = ""

    @property
    def digest(self) -> str:
        """Sixteen hex digits that differ when any name, order, shape, type or unit differs."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()[:16]

    def with_images(self, images: Iterable[str]) -> Spec:
        """Return this spec with only the named images."""
        kept = {name: self.observation.images[name] for name in images}
        return self.model_copy(
            update={"observation": self.observation.model_copy(update={"images": kept})}
        )

    @property
    def action_names(self) -> list[str]:
        """The names of an action's entries: the words of its unit, or numbers."""
        names, (size,) = self.action.unit.split(), self.action.shape
        return names if len(names) == size else [f"action[{index}]" for index in range(size)]

    def difference(self, other: Spec) -> str:
        """Return one readable line with the differences from `other`, or "".

        For different tasks only the task names are given, as all else differs too. An array that
        one spec lacks is given by its shape alone.
        """
        if self.task != other.task:
            return f'task: "{self.task}" != "{other.task}"'
        mine, theirs = _leaves(self.model_dump()), _leaves(other.model_dump())
        lines = [
            f"{name}: {mine.get(name, 'absent')} != {theirs.get(name, 'absent')}"
            for name in sorted(mine.keys() | theirs.keys())
            if mine.get(name) != theirs.get(name) and not _is_detail(name, mine, theirs)
        ]
        if not lines and self.digest != other.digest:
            lines = ["the order of the state arrays differs"]
        return "; ".join(lines)


def array_name(keys: Sequence[str], default: str = "observation") -> str:
    """Return the name of an array or image of a nested observation: its keys, joined by "_".

    Args:
        keys: keys of the observation down to the array; empty for an observation that is one array.
        default: name without keys, and prefix of a name that a reading uses itself.
    """
    joined = re.sub(r"[^a-z0-9_]", "_", "_".join(keys).lower()) or default
    return f"{default}_{joined}" if joined in _RESERVED else joined


def _units(spec: ArraySpec) -> list[str]:
    """Return the unit of each entry of an array."""
    words, size = re.split("[,;]", spec.unit)[0].split(), int(np.prod(spec.shape))
    units = [*takewhile(_UNITS.__contains__, words)]
    if not units or size % len(units):
        units = (words or [""])[:1]
    return [unit for unit in units for _ in range(size // len(units))]


def _extremes(value: np.ndarray[Any, Any]) -> list[float]:
    """Return the smallest and largest number of an array, or all numbers of a small one.

    For small arrays this takes a third of the time of any single numpy reduction.
    """
    return value.ravel().tolist() if value.size <= 64 else [float(value.min()), float(value.max())]


def check_reward(reward: float) -> None:
    """Raise `SpecMismatch` if a step's reward is NaN or beyond `MAX_REWARD`."""
    if not abs(reward) <= MAX_REWARD:  # rejects NaN as well
        raise SpecMismatch(f"reward {reward}: expected at most {MAX_REWARD:g} either way")


def _same_names(kind: str, expected: Mapping[str, Any], found: Mapping[str, Any]) -> None:
    if expected.keys() != found.keys():
        raise SpecMismatch(f"{kind}: expected {sorted(expected)}, got {sorted(found)}")


def _is_detail(name: str, *specs: Mapping[str, str]) -> bool:
    """Return whether a leaf belongs to an array that a spec lacks, and is not its shape."""
    shape = f"{name.rpartition('.')[0]}.shape"
    return name != shape and sum(shape in leaves for leaves in specs) == 1


def _leaves(tree: Any, prefix: str = "") -> dict[str, str]:
    if isinstance(tree, dict) and tree:
        return {
            name: leaf
            for key, value in tree.items()
            for name, leaf in _leaves(value, f"{prefix}.{key}" if prefix else key).items()
        }
    return {prefix: json.dumps(tree)}
