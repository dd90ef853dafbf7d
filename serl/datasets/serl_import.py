"""Makes episodes of ours of another suite's transitions, or says what does not fit."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from serl.errors import BadInput, SpecMismatch
from serl.datasets.recording_session import FAILURES
from serl.log.episode_log import EpisodeLog, LogConfig
from serl.geometry import from_rotation_vector, multiply
from serl.specs import ObservationSpec, Spec, check_reward
from serl.datasets.transitions import Run, Transition, Values
from serl.types import Action, Array, End, Image, Key, Observation, Record, Source, Step

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
                source=Source.HUMAN,
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
