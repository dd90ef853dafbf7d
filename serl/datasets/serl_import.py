"""Import of transitions of SERL and HIL-SERL as episodes, with an error for each mismatch."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from pydantic import Field

from serl.datasets.recording_session import FAILURES
from serl.errors import BadInput, CorruptData, SpecMismatch
from serl.geometry import from_rotation_vector, multiply
from serl.log.episode_log import EpisodeLog, LogConfig
from serl.runs.demonstrations import IMPORT
from serl.specs import ObservationSpec, Spec, check_reward
from serl.system.json_fields import short
from serl.system.pickles import read_pickle
from serl.types import (
    Action,
    ActionSource,
    Array,
    End,
    EndReason,
    FrozenModel,
    Image,
    Key,
    Observation,
    Record,
    Step,
)

Values = np.ndarray[Any, Any]

_NEEDED = {"observations", "actions", "next_observations", "rewards", "dones"}


class Transition(NamedTuple):
    """One transition of an imported file.

    Attributes:
        observation: arrays by path, such as "state" or "images/wrist".
        done: whether the episode ended.
        mask: discount mask; 0 for no bootstrap from the next observation.
        successor: next observation.
    """

    observation: Mapping[str, Values]
    action: Values
    reward: float
    done: bool
    mask: float
    successor: Mapping[str, Values]


class Segment(NamedTuple):
    """Consecutive transitions.

    Attributes:
        transitions: at least one.
        terminated: whether the task ended with the last one; otherwise the episode was truncated.
        fault: description of the gap in the file that cut the episode.
    """

    transitions: Sequence[Transition]
    terminated: bool
    reason: EndReason
    fault: str = ""

    @property
    def success(self) -> bool:
        """Whether the task was solved: in both suites, rewards are 0 until then."""
        return self.transitions[-1].done and self.transitions[-1].reward > 0


def read_transitions(path: Path) -> list[Transition]:
    """Read all transitions of a file and check each of them.

    Raises:
        BadInput: the file cannot be read.
        CorruptData: the file is not a pickle of arrays only, or not a list of valid transitions.
    """
    tree = read_pickle(path)
    if not isinstance(tree, list | tuple) or not tree:
        raise CorruptData(f"{path}: expected a list of transitions, found {type(tree).__name__}")
    return [_transition(item, f"{path}: transition {index}") for index, item in enumerate(tree)]


def runs(transitions: Sequence[Transition]) -> Iterator[Segment]:
    """Split transitions at each end, and where an observation does not continue the last one.

    SERL marks a time limit and a failure alike, as `done` with mask 0. No failure ends its tasks,
    so an end without reward is taken for the time limit (truncation) and not learned as terminal.
    """
    begin = 0
    for index, item in enumerate(transitions):
        last = index + 1 == len(transitions)
        if item.done:
            won = item.reward > 0
            reason = EndReason.SUCCESS if won else EndReason.TIME_LIMIT
            yield Segment(transitions[begin : index + 1], won and item.mask == 0, reason)
        elif last or not _same(item.successor, transitions[index + 1].observation):
            fault = "cut: the file ends" if last else "cut: transitions are missing after it"
            yield Segment(transitions[begin : index + 1], False, EndReason.FAULT, fault)
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
    action = _array(item["actions"], f"{where}: actions")
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


def _array(value: Any, where: str) -> Values:
    try:
        return np.asarray(value)
    except ValueError as error:
        raise CorruptData(f"{where}: expected numbers, found lists of different lengths") from error


def _number(value: Any, where: str) -> float:
    array = _array(value, where)
    if array.size != 1 or array.dtype.kind not in "fiub" or not math.isfinite(array.item()):
        raise CorruptData(f"{where}: expected one finite number, found {short(array.tolist())}")
    return float(array.item())


def _arrays(tree: Any, where: str, prefix: str = "") -> dict[str, Values]:
    """Return the arrays of an observation by path; a bare array is the state."""
    if isinstance(tree, dict):
        return {
            path: leaf
            for name, value in tree.items()
            for path, leaf in _arrays(value, where, f"{prefix}/{name}" if prefix else name).items()
        }
    array = _array(tree, f"{where}: {prefix or 'state'}")
    if array.dtype.kind not in "fiub":
        raise CorruptData(f"{where}: {prefix or 'state'}: expected an array of numbers")
    return {prefix or "state": array}


def _same(one: Mapping[str, Values], other: Mapping[str, Values]) -> bool:
    return one.keys() == other.keys() and all(
        np.array_equal(one[name], other[name]) for name in one
    )


_SLACK = 1e-4  # actions were clipped in float64 and stored in float32


class Piece(FrozenModel):
    """A range of values in an observation of the file.

    Attributes:
        key: path of the array, "state" or "state/tcp_pose".
        at: index of the first entry.
        size: number of entries; None for all that are needed.
        rotation: "euler" for a position and three angles about fixed x, y, z, which are converted
            to a quaternion.
    """

    key: str = "state"
    at: int = Field(0, ge=0)
    size: int | None = Field(None, ge=1)
    rotation: Literal["euler"] | None = None


class ImportMap(FrozenModel):
    """Mapping from a file's observation to the task's, where the names differ.

    Attributes:
        state: pieces that are concatenated, in order, for each state array of the task.
        images: path of the image for each camera of the task.
        action: index in the file's action of each entry of the task's; empty if the order is equal.
    """

    state: dict[str, tuple[Piece, ...]] = Field({})
    images: dict[str, str] = Field({})
    action: tuple[Annotated[int, Field(ge=0)], ...] = ()


class ImportCounts(NamedTuple):
    """Numbers of imported episodes, steps and time limits of a file."""

    successes: int
    failures: int
    steps: int
    time_limits: int


class Mapper:
    """Converter of a file's observations to those of a spec.

    Args:
        spec: target of the conversion.
        sample: an observation of the file.
        mapping: the user's mapping; equal names are mapped without it.

    Raises:
        SpecMismatch: an entry has no counterpart, or one of another size; one line lists them all.
    """

    def __init__(
        self, spec: ObservationSpec, sample: Mapping[str, Values], mapping: ImportMap
    ) -> None:
        self._spec = spec
        self._pieces = {**_in_order(spec, sample), **_by_name(spec, sample), **mapping.state}
        self._images = {**_images_by_name(spec, sample), **mapping.images}
        if unknown := (mapping.state.keys() - spec.state) | (mapping.images.keys() - spec.images):
            known = ", ".join((*spec.state, *spec.images))
            raise BadInput(f"map: {sorted(unknown)[0]!r} is none of the task's: {known}")
        if lines := self._misfits(sample):
            found = ", ".join(f"{name} {list(value.shape)}" for name, value in sample.items())
            raise SpecMismatch(f"{'; '.join(lines)}; the file has {found}")

    def __call__(self, raw: Mapping[str, Values], stamp_s: float) -> Observation:
        """Return the observation of the task."""
        state = {name: self._state(name, raw) for name in self._spec.state}
        images = {name: self._image(name, raw) for name in self._spec.images}
        return Observation(state, images, {name: stamp_s for name in ("robot", *images)})

    def _state(self, name: str, raw: Mapping[str, Values]) -> Array:
        shape = self._spec.state[name].shape
        total = int(np.prod(shape))
        parts: list[Values] = []
        for piece in self._pieces[name]:
            flat = np.asarray(raw[piece.key], np.float64).reshape(-1)
            left = total - sum(map(len, parts))
            size = piece.size or (left - (piece.rotation is not None))
            part = flat[piece.at : piece.at + size]
            parts.append(_with_quaternion(part) if piece.rotation else part)
        return np.concatenate(parts).astype(np.float32).reshape(shape)

    def _image(self, name: str, raw: Mapping[str, Values]) -> Image:
        image: Image = np.ascontiguousarray(_unstacked(raw[self._images[name]]))
        return image

    def _misfits(self, sample: Mapping[str, Values]) -> list[str]:
        lines = []
        for name, expected in self._spec.state.items():
            pieces = self._pieces.get(name, ())
            absent = [piece.key for piece in pieces if piece.key not in sample]
            if not pieces or absent:
                lines.append(f"state {name} {list(expected.shape)}: {absent or 'nothing'} to take")
                continue
            try:
                self._state(name, sample)
            except (ValueError, IndexError):
                keys = ", ".join(f"{piece.key}[{piece.at}:]" for piece in pieces)
                lines.append(f"state {name} {list(expected.shape)}: too little in {keys}")
        for name, expected in self._spec.images.items():
            key = self._images.get(name)
            found = _unstacked(sample[key]) if key is not None and key in sample else None
            if found is None or found.shape != expected.shape or found.dtype != np.uint8:
                actual = "absent" if found is None else f"{list(found.shape)} {found.dtype}"
                lines.append(f"image {name}: {list(expected.shape)} uint8 != {actual}")
        return lines


def import_runs(
    found: Sequence[Segment],
    spec: Spec,
    mapping: ImportMap,
    folder: Path,
    provenance: str,
    log_config: LogConfig | None = None,
    on_episode: Callable[[], object] = lambda: None,
) -> ImportCounts:
    """Write successes into a new folder, and failures into its subfolder.

    Args:
        found: episodes of a file.
        spec: spec of the task.
        mapping: see `Mapper`.
        folder: folder to create; must hold no episodes.
        provenance: provenance of the rewards.
        log_config: settings of the episode log; the defaults if None.
        on_episode: called after each episode.

    Raises:
        SpecMismatch: the file does not fit the task; nothing was written.
    """
    found = [_reordered(run, mapping) for run in found]
    mapper = Mapper(spec.observation, found[0].transitions[0].observation, mapping)
    for number, run in enumerate(found):
        _check_run(run, spec, mapper, f"episode {number}")
    name, epoch, counts = folder.resolve().name, time.time_ns(), [0, 0]
    for kind, target in enumerate((folder, folder / FAILURES)):
        chosen = [run for run in found if run.success is (kind == 0)]
        with EpisodeLog(target, spec, name, IMPORT, epoch, log_config) as log:
            for number, run in enumerate(chosen):
                key = Key(name, IMPORT, epoch, number, 0)
                for record in _records(run, key, spec, mapper, provenance):
                    log.append(record)
                on_episode()
        counts[kind] = len(chosen)
    steps = sum(len(run.transitions) for run in found)
    limits = sum(run.reason is EndReason.TIME_LIMIT for run in found)
    return ImportCounts(counts[0], counts[1], steps, limits)


def _reordered(run: Segment, mapping: ImportMap) -> Segment:
    """Return the run with the entries of its actions in the order of the task."""
    places = list(mapping.action)
    if not places:
        return run
    if max(places) >= (size := min(len(item.action) for item in run.transitions)):
        raise SpecMismatch(f"map: action {max(places)}: an action of the file has {size} entries")
    items = [item._replace(action=item.action[places]) for item in run.transitions]
    return run._replace(transitions=items)


def _check_run(run: Segment, spec: Spec, mapper: Mapper, where: str) -> None:
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


def _records(run: Segment, key: Key, spec: Spec, mapper: Mapper, provenance: str) -> list[Record]:
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
        End(
            replace(key, index=count),
            final,
            run.success,
            run.reason,
            count / spec.rate_hz,
            now_s,
            run.fault,
        ),
    ]


def _action(item: Transition) -> Action:
    return np.clip(item.action, -1.0, 1.0).astype(np.float32)


def by_last_part(arrays: Mapping[str, Values], prefix: str) -> dict[str, Values]:
    """Return arrays by the last part of their dotted names; if two share it, without the prefix."""
    lasts = Counter(name.rpartition(".")[2] for name in arrays)
    return {
        last if lasts[last := name.rpartition(".")[2]] == 1 else name.removeprefix(prefix): rows
        for name, rows in arrays.items()
    }


def _in_order(spec: ObservationSpec, sample: Mapping[str, Values]) -> dict[str, tuple[Piece, ...]]:
    """Split a flat state of exactly the task's size in the order of the task's arrays."""
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
    """Map arrays whose names and sizes equal the task's."""
    return {
        name: (Piece(key=key),)
        for key, value in sample.items()
        for name, array in spec.state.items()
        if key.rpartition("/")[2] == name and value.size == int(np.prod(array.shape))
    }


def _images_by_name(spec: ObservationSpec, sample: Mapping[str, Values]) -> dict[str, str]:
    return {name: key for key in sample for name in spec.images if key.rpartition("/")[2] == name}


def _unstacked(array: Values) -> Values:
    """Remove the leading axis of a history of one, which both suites add."""
    return array[0] if array.ndim == 4 and len(array) == 1 else array


def _with_quaternion(pose: Values) -> Values:
    """Convert position and angles about fixed x, y, z (6,) to position and quaternion xyzw (7,)."""
    x, y, z, roll, pitch, yaw = pose.tolist()
    about_x, about_y, about_z = (
        from_rotation_vector(axis)
        for axis in ((roll, 0.0, 0.0), (0.0, pitch, 0.0), (0.0, 0.0, yaw))
    )
    return np.array([x, y, z, *multiply(about_z, multiply(about_y, about_x))])
