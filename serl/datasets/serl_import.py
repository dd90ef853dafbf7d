"""Makes episodes of ours of another suite's transitions, or says what does not fit."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from serl.datasets.recording_session import FAILURES
from serl.errors import BadInput, CorruptData, SpecMismatch
from serl.geometry import from_rotation_vector, multiply
from serl.log.episode_log import EpisodeLog, LogConfig
from serl.specs import ObservationSpec, Spec, check_reward
from serl.system.json_fields import short
from serl.system.pickles import read_pickle
from serl.types import Action, ActionSource, Array, End, Image, Key, Observation, Record, Step

Values = np.ndarray[Any, Any]

_NEEDED = {"observations", "actions", "next_observations", "rewards", "dones"}


class Transition(NamedTuple):
    """One of them.

    Attributes:
        observation: arrays by path, such as "state" or "images/wrist".
        action: what was executed.
        reward: of the step.
        done: the episode ended.
        mask: 0 says that nothing is to be expected after it.
        successor: the next observation.
    """

    observation: Mapping[str, Values]
    action: Values
    reward: float
    done: bool
    mask: float
    successor: Mapping[str, Values]


class Run(NamedTuple):
    """Transitions that follow each other.

    Attributes:
        transitions: at least one.
        terminated: the task ended with the last one; else the episode was cut after it.
        reason: why it ended.
    """

    transitions: Sequence[Transition]
    terminated: bool
    reason: str

    @property
    def success(self) -> bool:
        """The task was solved: rewards of both are 0 until it is."""
        return self.transitions[-1].done and self.transitions[-1].reward > 0


def read_transitions(path: Path) -> list[Transition]:
    """All transitions of a file; one that cannot be meant is refused.

    Raises:
        BadInput: the file cannot be read.
        CorruptData: it is no pickle of arrays alone, or holds no list of transitions.
    """
    tree = read_pickle(path)
    if not isinstance(tree, list | tuple) or not tree:
        raise CorruptData(f"{path}: expected a list of transitions, found {type(tree).__name__}")
    return [_transition(item, f"{path}: transition {index}") for index, item in enumerate(tree)]


def runs(transitions: Sequence[Transition]) -> Iterator[Run]:
    """Cut at each end, and where an observation does not follow from the one before.

    SERL marks a time limit as it marks a failure, `done` with mask 0. Its tasks know no failure
    that ends them: without a reward the end is taken for the time limit, so that nobody learns
    that the world ends there.
    """
    begin = 0
    for index, item in enumerate(transitions):
        last = index + 1 == len(transitions)
        if item.done:
            won = item.reward > 0
            reason = "success" if won else "time limit"
            yield Run(transitions[begin : index + 1], won and item.mask == 0, reason)
        elif last or not _same(item.successor, transitions[index + 1].observation):
            reason = "cut: the file ends" if last else "cut: transitions are missing after it"
            yield Run(transitions[begin : index + 1], False, reason)
        else:
            continue
        begin = index + 1


def _transition(item: Any, where: str) -> Transition:
    if not isinstance(item, dict) or not item.keys() >= _NEEDED:
        found = sorted(map(str, item)) if isinstance(item, dict) else type(item).__name__
        raise CorruptData(f"{where}: expected {sorted(_NEEDED)}, found {found}")
    done = bool(_number(item["dones"], f"{where}: dones"))
    mask = _number(item.get("masks", 0.0 if done else 1.0), f"{where}: masks")
    if mask not in (0.0, 1.0) or (mask == 0.0 and not done):
        raise CorruptData(f"{where}: mask {mask:g} with done {done}, expected 1, or 0 at an end")
    action = np.asarray(item["actions"])
    if action.dtype.kind not in "fiu" or not np.isfinite(action).all():
        raise CorruptData(f"{where}: actions: expected numbers, found {short(action.tolist())}")
    return Transition(
        _arrays(item["observations"], f"{where}: observations"),
        action.reshape(-1),
        _number(item["rewards"], f"{where}: rewards"),
        done,
        mask,
        _arrays(item["next_observations"], f"{where}: next_observations"),
    )


def _number(value: Any, where: str) -> float:
    array = np.asarray(value)
    if array.size != 1 or array.dtype.kind not in "fiub" or not math.isfinite(array.item()):
        raise CorruptData(f"{where}: expected one finite number, found {short(array.tolist())}")
    return float(array.item())


def _arrays(tree: Any, where: str, prefix: str = "") -> dict[str, Values]:
    """The leaves of an observation by their path; a bare array is the state."""
    if isinstance(tree, dict):
        return {
            path: leaf
            for name, value in tree.items()
            for path, leaf in _arrays(value, where, f"{prefix}/{name}" if prefix else name).items()
        }
    array = np.asarray(tree)
    if array.dtype.kind not in "fiub":
        raise CorruptData(f"{where}: {prefix or 'state'}: expected an array of numbers")
    return {prefix or "state": array}


def _same(one: Mapping[str, Values], other: Mapping[str, Values]) -> bool:
    return one.keys() == other.keys() and all(
        np.array_equal(one[name], other[name]) for name in one
    )


ACTOR = "import"
_SLACK = 1e-4  # actions were clipped in float64 and stored in float32


class Piece(BaseModel):
    """Where values lie in an observation of the file.

    Attributes:
        key: path of the array, "state" or "state/tcp_pose".
        at: the first of its entries.
        size: how many; None for all that are needed.
        rotation: "euler" for three angles about fixed x, y, z after three of position, which become
            a quaternion.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    key: str = "state"
    at: int = Field(0, ge=0)
    size: int | None = Field(None, ge=1)
    rotation: Literal["euler"] | None = None


class ImportMap(BaseModel):
    """What of a file becomes what of a task's observation, where names do not say it.

    Attributes:
        state: for a state array of the task the pieces that it is put together of, in order.
        images: for a camera of the task the path of the image.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    state: dict[str, tuple[Piece, ...]] = {}
    images: dict[str, str] = {}


class Imported(NamedTuple):
    """What came of a file."""

    successes: int
    failures: int
    steps: int
    time_limits: int


class Mapper:
    """Turns observations into those of a spec.

    Args:
        spec: what is wanted.
        sample: an observation of the file.
        asked: as told by a person; names that are equal need not be told.

    Raises:
        SpecMismatch: something has no counterpart, or one of another size; one line says it all.
    """

    def __init__(
        self, spec: ObservationSpec, sample: Mapping[str, Values], asked: ImportMap
    ) -> None:
        self._spec = spec
        self._pieces = {**_in_order(spec, sample), **_by_name(spec, sample), **asked.state}
        self._images = {**_images_by_name(spec, sample), **asked.images}
        if unknown := (asked.state.keys() - spec.state) | (asked.images.keys() - spec.images):
            known = ", ".join((*spec.state, *spec.images))
            raise BadInput(f"map: {sorted(unknown)[0]!r} is none of the task's: {known}")
        if lines := self._misfits(sample):
            found = ", ".join(f"{name} {list(value.shape)}" for name, value in sample.items())
            raise SpecMismatch(f"{'; '.join(lines)}; the file has {found}")

    def __call__(self, seen: Mapping[str, Values], stamp_s: float) -> Observation:
        """An observation of the task."""
        state = {name: self._state(name, seen) for name in self._spec.state}
        images = {name: self._image(name, seen) for name in self._spec.images}
        return Observation(state, images, {name: stamp_s for name in ("robot", *images)})

    def _state(self, name: str, seen: Mapping[str, Values]) -> Array:
        shape = self._spec.state[name].shape
        total = int(np.prod(shape))
        parts: list[Values] = []
        for piece in self._pieces[name]:
            flat = np.asarray(seen[piece.key], np.float64).reshape(-1)
            left = total - sum(map(len, parts))
            size = piece.size or (left - (piece.rotation is not None))
            part = flat[piece.at : piece.at + size]
            parts.append(_with_quaternion(part) if piece.rotation else part)
        return np.concatenate(parts).astype(np.float32).reshape(shape)

    def _image(self, name: str, seen: Mapping[str, Values]) -> Image:
        image: Image = np.ascontiguousarray(_unstacked(seen[self._images[name]]))
        return image

    def _misfits(self, sample: Mapping[str, Values]) -> list[str]:
        lines = []
        for name, wanted in self._spec.state.items():
            pieces = self._pieces.get(name, ())
            absent = [piece.key for piece in pieces if piece.key not in sample]
            if not pieces or absent:
                lines.append(f"state {name} {list(wanted.shape)}: {absent or 'nothing'} to take")
                continue
            try:
                self._state(name, sample)
            except (ValueError, IndexError):
                keys = ", ".join(f"{piece.key}[{piece.at}:]" for piece in pieces)
                lines.append(f"state {name} {list(wanted.shape)}: too little in {keys}")
        for name, wanted in self._spec.images.items():
            key = self._images.get(name)
            found = _unstacked(sample[key]) if key is not None and key in sample else None
            if found is None or found.shape != wanted.shape or found.dtype != np.uint8:
                what = "absent" if found is None else f"{list(found.shape)} {found.dtype}"
                lines.append(f"image {name}: {list(wanted.shape)} uint8 != {what}")
        return lines


def import_runs(
    found: Sequence[Run],
    spec: Spec,
    asked: ImportMap,
    folder: Path,
    provenance: str,
    log_config: LogConfig | None = None,
) -> Imported:
    """Write successes into a new folder, failures apart.

    Args:
        found: of a file.
        spec: of the task.
        asked: see `Mapper`.
        folder: is made; holds no episodes.
        provenance: of the rewards.
        log_config: how episodes are logged; the defaults if None.

    Raises:
        SpecMismatch: the file does not fit the task; nothing was written.
    """
    mapper = Mapper(spec.observation, found[0].transitions[0].observation, asked)
    for number, run in enumerate(found):
        _check_run(run, spec, mapper, f"episode {number}")
    name, epoch, counts = folder.resolve().name, time.time_ns(), [0, 0]
    for kind, target in enumerate((folder, folder / FAILURES)):
        chosen = [run for run in found if run.success is (kind == 0)]
        with EpisodeLog(target, spec, name, ACTOR, epoch, log_config) as log:
            for number, run in enumerate(chosen):
                key = Key(name, ACTOR, epoch, number, 0)
                for record in _records(run, key, spec, mapper, provenance):
                    log.append(record)
        counts[kind] = len(chosen)
    steps = sum(len(run.transitions) for run in found)
    limits = sum(run.reason == "time limit" for run in found)
    return Imported(counts[0], counts[1], steps, limits)


def _check_run(run: Run, spec: Spec, mapper: Mapper, where: str) -> None:
    (size,) = spec.action.shape
    for item in run.transitions:
        if item.action.shape != (size,):
            names = " ".join(spec.action_names)
            raise SpecMismatch(
                f"{where}: actions: {len(item.action)} entries != {size} of the task ({names})"
            )
        if np.abs(item.action).max() > 1.0 + _SLACK:
            raise SpecMismatch(f"{where}: an action of {np.abs(item.action).max():g}, allowed 1")
        check_reward(item.reward)
        try:
            spec.observation.validate_observation(mapper(item.observation, 0.0))
            spec.observation.validate_observation(mapper(item.successor, 0.0))
        except (KeyError, ValueError) as error:
            raise SpecMismatch(f"{where}: its observations change their shape: {error}") from error


def _records(run: Run, key: Key, spec: Spec, mapper: Mapper, provenance: str) -> list[Record]:
    now_s, records = time.time(), list[Record]()
    for index, item in enumerate(run.transitions):
        last = index + 1 == len(run.transitions)
        action = _action(item)
        records.append(
            Step(
                key=replace(key, index=index),
                observation=mapper(item.observation, index / spec.rate_hz),
                requested=action,
                action=action,
                reward=item.reward,
                reward_provenance=provenance,
                terminated=last and run.terminated,
                truncated=last and not run.terminated,
                source=ActionSource.HUMAN,
                policy_version=0,
                monotonic_s=index / spec.rate_hz,
                wall_s=now_s,
            )
        )
    count = len(run.transitions)
    final = mapper(run.transitions[-1].successor, count / spec.rate_hz)
    return [
        *records,
        End(replace(key, index=count), final, run.success, run.reason, count / spec.rate_hz, now_s),
    ]


def _action(item: Transition) -> Action:
    return np.clip(item.action, -1.0, 1.0).astype(np.float32)


def _in_order(spec: ObservationSpec, sample: Mapping[str, Values]) -> dict[str, tuple[Piece, ...]]:
    """A flat state of just the size of the task's is split in its order."""
    if "state" not in sample or sample["state"].size != spec.state_size:
        return {}
    pieces: dict[str, tuple[Piece, ...]] = {}
    at = 0
    for name, array in spec.state.items():
        size = int(np.prod(array.shape))
        pieces[name] = (Piece(key="state", at=at, size=size),)
        at += size
    return pieces


def _by_name(spec: ObservationSpec, sample: Mapping[str, Values]) -> dict[str, tuple[Piece, ...]]:
    """Arrays that are called as the task calls them."""
    return {
        name: (Piece(key=key),)
        for key, value in sample.items()
        for name, array in spec.state.items()
        if key.rpartition("/")[2] == name and value.size == int(np.prod(array.shape))
    }


def _images_by_name(spec: ObservationSpec, sample: Mapping[str, Values]) -> dict[str, str]:
    return {name: key for key in sample for name in spec.images if key.rpartition("/")[2] == name}


def _unstacked(array: Values) -> Values:
    """Without the axis of a history of one, which both suites put first."""
    return array[0] if array.ndim == 4 and len(array) == 1 else array


def _with_quaternion(pose: Values) -> Values:
    """Position and angles about fixed x, y, z (6,) to position and quaternion xyzw (7,)."""
    x, y, z, roll, pitch, yaw = pose.tolist()
    about_x, about_y, about_z = (
        from_rotation_vector(axis)
        for axis in ((roll, 0.0, 0.0), (0.0, pitch, 0.0), (0.0, 0.0, yaw))
    )
    return np.array([x, y, z, *multiply(about_z, multiply(about_y, about_x))])
