"""Environments of Gymnasium: how they are made, and the arrays and images of their spaces."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import cache
from io import StringIO
from types import SimpleNamespace
from typing import Any, NamedTuple

import gymnasium
import mujoco
import numpy as np
from gymnasium import spaces

from serl.camera import MOST_PX
from serl.errors import BadInput, SerlError, described
from serl.specs import MAX_STATE_SIZE, ArraySpec, array_name
from serl.types import Action

SUCCESS_KEYS = ("is_success", "success", "succeed", "task_success")
"""Names of a success in `info`."""

_RATE_HZ = 10.0
_PACKAGES = ("gymnasium_robotics",)
"""Packages that register their environments only once they are imported."""

Space = spaces.Space[Any]


@dataclass(frozen=True)
class EnvironmentSpec:
    """The properties of an environment that a task needs.

    Attributes:
        state: specs of the flat state arrays of a reading, in order, without `outcome`.
        images: specs of the images of a reading.
        action_low: lowest action of the environment, flat.
        action_high: highest action of the environment, flat.
        rate_hz: control rate: that of the simulation, else the environment's `render_fps`, else 10.
        max_steps: registered time limit; None without one.
        info: `info` after the first step.
        is_single: an observation is one array or image, not a mapping.
    """

    state: Mapping[str, ArraySpec]
    images: Mapping[str, ArraySpec]
    action_low: tuple[float, ...]
    action_high: tuple[float, ...]
    rate_hz: float
    max_steps: int | None
    info: Mapping[str, Any]
    is_single: bool

    @property
    def reports_success(self) -> bool:
        """Whether `info` has one of `SUCCESS_KEYS` after a step."""
        return any(key in self.info for key in SUCCESS_KEYS)

    def to_unit(self, action: Any) -> Action:
        """Return an action of the environment in the scale of the robot, clipped to [-1, 1]."""
        values = np.asarray(action, np.float64).ravel()
        low, high = np.array(self.action_low), np.array(self.action_high)
        if values.shape != low.shape:
            raise BadInput(f"action: expected {low.size} numbers, got {values.size}")
        unit = 2.0 * (values - low) / (high - low) - 1.0
        scaled: Action = np.clip(unit, -1.0, 1.0).astype(np.float32)
        return scaled


class Part(NamedTuple):
    """One array or image of an observation: its name, its keys in the observation, its space."""

    name: str
    keys: tuple[str, ...]
    space: Space


def make_environment(name: str, arguments: Mapping[str, Any]) -> Any:
    """Make an environment without its time limit and without Gymnasium's checks.

    Args:
        name: id of `gymnasium.make`; `MODULE:ID` imports a module first.
        arguments: further arguments of `gymnasium.make`.

    Raises:
        BadInput: there is no such environment, or it cannot be made with these arguments.
    """
    with redirect_stdout(StringIO()), redirect_stderr(StringIO()):  # notices of packages
        _register(name)
        with failures_of(name, BadInput):
            drawn = {"render_mode": "rgb_array"} if "rgb_array" in _render_modes(name) else {}
            try:
                return _make(name, {**drawn, **arguments})
            except TypeError as error:
                if "render_mode" in arguments or "render_mode" not in str(error):
                    raise
            return _make(name, arguments)  # its class has render modes, but no such argument


def _make(name: str, arguments: Mapping[str, Any]) -> Any:
    return gymnasium.make(name, max_episode_steps=-1, disable_env_checker=True, **arguments)


@contextmanager
def failures_of(name: str, kind: type[SerlError] = SerlError) -> Iterator[None]:
    """Raise `kind`, with one line that names the environment, for any error inside."""
    try:
        yield
    except (Exception, SystemExit) as error:  # each environment fails in its own way
        line, prefix = described(error), f"gymnasium:{name}: "
        if isinstance(error, BadInput):
            line = str(error).removeprefix(prefix)
        raise kind(prefix + line) from error


def _register(name: str) -> None:
    """Import the packages that may register an environment, unless it is registered."""
    module, colon, environment = name.rpartition(":")
    if colon:
        _import(module, name)
    for package in _PACKAGES:
        if environment not in gymnasium.registry:
            try:
                gymnasium.register_envs(importlib.import_module(package))
            except ImportError:
                continue
    if "gymnasium_robotics" in sys.modules:  # imported here, or before by another package
        _accept_joint_types()
    if environment in gymnasium.registry or colon:
        return
    known = [each for each in gymnasium.registry if each.rpartition("-v")[0] == environment]
    raise BadInput(
        f"gymnasium:{name}: no installed package has this environment: expected an id of "
        "gymnasium.make, MODULE:ID for one whose module has to be imported, or "
        + (f"one of {', '.join(known)}" if known else "pip install 'serl[gymnasium]' for Fetch")
    )


class _IntegerJoints:
    """The module `mujoco` with joint types as integers."""

    mjtJoint = SimpleNamespace(  # noqa: N815 - the name of MuJoCo
        **{name: int(kind) for name, kind in mujoco.mjtJoint.__members__.items()}
    )

    def __getattr__(self, name: str) -> Any:
        return getattr(mujoco, name)


def _accept_joint_types() -> None:
    """Let gymnasium-robotics 1.4.2 recognise joints with the MuJoCo of this process.

    It compares joint types with integers of numpy. From MuJoCo 3.11 or later on they are not equal,
    and no environment of the Fetch or the Shadow hand can be made.
    """
    if np.int32(mujoco.mjtJoint.mjJNT_HINGE) not in (mujoco.mjtJoint.mjJNT_HINGE,):
        module = importlib.import_module("gymnasium_robotics.utils.mujoco_utils")
        module.mujoco = _IntegerJoints()  # type: ignore[attr-defined]


def _import(module: str, name: str) -> None:
    try:
        importlib.import_module(module)
    except ImportError as error:
        raise BadInput(f"gymnasium:{name}: pip install {module}: {described(error)}") from error


def _render_modes(name: str) -> tuple[str, ...]:
    """Return the render modes of an environment's class; it is not made."""
    creator: Any = gymnasium.spec(name.rpartition(":")[2]).entry_point
    if isinstance(creator, str):
        creator = gymnasium.envs.registration.load_env_creator(creator)
    metadata = getattr(creator, "metadata", {"render_modes": ("rgb_array",)})
    return tuple(metadata.get("render_modes", ()))


def describe(name: str, arguments: Mapping[str, Any]) -> EnvironmentSpec:
    """Return the properties of an environment; it is made once, and stepped once.

    Raises:
        BadInput: there is no such environment, it fails, or its spaces are not supported.
    """
    return _described(name, json.dumps(arguments, sort_keys=True))


@cache
def _described(name: str, arguments: str) -> EnvironmentSpec:
    env = make_environment(name, json.loads(arguments))
    try:
        parts = parts_of(env.observation_space, name)
        low, half = action_scale(env.action_space, name)
        with failures_of(name, BadInput):
            info = _first_info(env, low + half, parts)
        state = {
            part.name: ArraySpec(shape=(spaces.flatdim(part.space),))
            for part in parts
            if not is_image(part.space)
        }
        images = {
            part.name: ArraySpec(shape=(*size_of(part.space), 3), dtype="uint8", unit="RGB")
            for part in parts
            if is_image(part.space)
        }
        return EnvironmentSpec(
            state=state or {"last_action": ArraySpec(shape=(low.size,))},
            images=images,
            action_low=tuple(low.tolist()),
            action_high=tuple((low + 2.0 * half).tolist()),
            rate_hz=_rate_hz(env),
            max_steps=gymnasium.spec(name.rpartition(":")[2]).max_episode_steps,
            info=info,
            is_single=not isinstance(env.observation_space, spaces.Dict),
        )
    finally:
        env.close()


def _first_info(env: Any, action: Action, parts: Sequence[Part]) -> Mapping[str, Any]:
    """Return `info` after the first step of an environment; raise unless its values fit."""
    space = env.action_space
    seen, _ = env.reset(seed=0)
    arrays_of(parts, seen)
    returned = env.step(action.reshape(space.shape).astype(space.dtype))
    seen, reward, terminated, truncated, info = returned
    number_of("terminated", terminated)
    number_of("truncated", truncated)
    numbers = {**arrays_of(parts, seen), "reward": np.array(number_of("reward", reward))}
    for name, values in numbers.items():
        if not np.isfinite(values).all():
            raise BadInput(f"{name}: not finite: {values.tolist()}")
    return dict(info)


def number_of(name: str, value: Any) -> float:
    """Return a number or truth value that an environment returned; it may be an array of one.

    Raises:
        BadInput: it is anything else, such as text; the message begins with `name`.
    """
    array = np.asarray(value)
    if array.size != 1 or array.dtype.kind not in "biuf":
        found = " ".join(repr(value).split())[:80]
        raise BadInput(f"{name}: expected one number or truth value, got {found}")
    return float(array.item())


def arrays_of(parts: Sequence[Part], seen: Any) -> dict[str, np.ndarray[Any, Any]]:
    """Return the arrays and images of an observation by name, as new arrays.

    Raises:
        BadInput: an array or image is missing, or does not fit its space.
    """
    arrays = {}
    for part in parts:
        value, path = seen, ".".join(part.keys) or "observation"
        try:
            for key in part.keys:
                value = value[key]
        except (LookupError, TypeError):
            raise BadInput(f"observation: has no {path}") from None
        if is_image(part.space):
            value, expected = np.asarray(value), part.space.shape
            if value.shape != expected or value.dtype != np.uint8:
                got = f"{value.dtype}{list(value.shape)}"
                raise BadInput(f"{path}: expected uint8{list(expected or ())}, got {got}")
            arrays[part.name] = np.broadcast_to(value, (*size_of(part.space), 3)).copy()
        else:
            flat = np.array(spaces.flatten(part.space, value), np.float32)
            if flat.shape != (size := spaces.flatdim(part.space),):
                raise BadInput(f"{path}: expected {size} numbers, got {flat.size}")
            arrays[part.name] = flat
    return arrays


def _rate_hz(env: Any) -> float:
    period_s = getattr(env.unwrapped, "dt", None)
    if isinstance(period_s, int | float) and 0.002 <= period_s <= 10.0:
        return round(1.0 / period_s, 6)
    rate_hz = env.metadata.get("render_fps")
    return float(rate_hz) if rate_hz and 0.0 < rate_hz <= 500.0 else _RATE_HZ


def parts_of(space: Space, name: str) -> list[Part]:
    """Return the arrays and images of an observation space in order.

    Raises:
        BadInput: one cannot be made an array, two have the same name, or they are too large.
    """
    named: dict[str, Part] = {}
    for part in _parts(space, name, ()):
        if (other := named.setdefault(part.name, part)) is not part:
            both = " and ".join(".".join(each.keys) for each in (other, part))
            raise BadInput(
                f"gymnasium:{name}: observation: {both} would both be {part.name!r}: expected keys "
                "that differ when joined by _, in lower case, with _ for all but letters and digits"
            )
    arrays = [part.space for part in named.values() if not is_image(part.space)]
    if (size := sum(map(spaces.flatdim, arrays))) > MAX_STATE_SIZE:
        raise BadInput(
            f"gymnasium:{name}: observation: {size} numbers besides images, expected at most "
            f"{MAX_STATE_SIZE}"
        )
    return list(named.values())


def _parts(space: Space, name: str, keys: tuple[str, ...]) -> Iterator[Part]:
    if isinstance(space, spaces.Dict):
        for key, inner in space.spaces.items():
            yield from _parts(inner, name, (*keys, str(key)))
        return
    if not space.is_np_flattenable:
        raise BadInput(f"gymnasium:{name}: {'.'.join(keys)}: {space} cannot be made an array")
    if is_image(space) and max(size_of(space)) > MOST_PX:
        high, wide = size_of(space)
        raise BadInput(
            f"gymnasium:{name}: {'.'.join(keys) or 'observation'}: an image of {wide} x {high} "
            f"pixels: expected at most {MOST_PX} each way"
        )
    default = "pixels" if is_image(space) else "observation"
    yield Part(array_name(keys, default), keys, space)


def is_image(space: Space) -> bool:
    """Return whether a space is that of an RGB or grey image."""
    return (
        isinstance(space, spaces.Box)
        and space.dtype == np.uint8
        and len(space.shape) == 3
        and space.shape[2] in (1, 3)
        and min(space.shape[:2]) >= 8
    )


def size_of(image: Space) -> tuple[int, ...]:
    """Return height and width of the images of a space."""
    assert image.shape is not None
    return image.shape[:2]


def action_scale(space: Space, name: str) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return the lowest action of a space and half of its range, flat, in float64."""
    if not isinstance(space, spaces.Box):
        raise BadInput(f"gymnasium:{name}: actions {space}: expected a Box of numbers")
    low, high = (np.asarray(end, np.float64).ravel() for end in (space.low, space.high))
    if not (np.isfinite(low).all() and np.isfinite(high).all() and (low < high).all()):
        raise BadInput(f"gymnasium:{name}: actions {space}: expected finite bounds")
    return low, (high - low) / 2.0
