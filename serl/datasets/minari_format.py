"""Minari data sets, written and read through the package minari, as HDF5 with exact images."""

from __future__ import annotations

import json
import os
import re
import shlex
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gymnasium
import h5py
import minari
import numpy as np
from minari.data_collector import EpisodeBuffer
from PIL import EpsImagePlugin
from PIL.Image import DecompressionBombError

from serl.datasets.exchange import Dataset, EpisodeArrays, SourceRobot, success_reason
from serl.datasets.export import Recorded
from serl.datasets.robomimic_format import check_array
from serl.datasets.serl_import import Values
from serl.errors import BadInput, CorruptData
from serl.specs import ArraySpec, Spec, array_name
from serl.system.files import check_regular, read_bounded

_ROOT = "MINARI_DATASETS_PATH"
_SPEC, _ROBOT = "serl_spec", "serl_robot"
_TEXTS = ("source", "provenance")
_NUMBERS = ("requested", "policy_version", "wall_s")
_DAMAGES = (OSError, LookupError, ValueError, TypeError, AttributeError, AssertionError,
            MemoryError, RuntimeError, DecompressionBombError)  # fmt: skip
"""Errors of a damaged data set; HDF5 raises `RuntimeError` for many damages."""
EpsImagePlugin.gs_binary = False  # minari opens pictures of any format, and EPS is a program
_MAX_JSON_BYTES = 64 << 20
_MAX_FILE_BYTES = 1 << 44
_MAX_EPISODES = 1_000_000


def write(data: Recorded, out: Path) -> int:
    """Write episodes as the data set `serl/TASK-v0` below a folder; return their number.

    Raises:
        BadInput: there is no episode, or minari refuses the data set.
    """
    spec, episodes, count = data.spec, data.episodes(), 0
    name = dataset_id(spec.task)
    spaces = {**spec.observation.state, **spec.observation.images}
    with _datasets_in(out), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about authors and environments that there are not
        first = next(episodes, None)
        if first is None:
            raise data.none_found()
        try:
            made = minari.create_dataset_from_buffers(
                name,
                [_buffer(first, spec)],
                observation_space=gymnasium.spaces.Dict({n: _box(s) for n, s in spaces.items()}),
                action_space=_box(spec.action),
                algorithm_name="serl",
                description=f"{spec.task} by serl, {spec.rate_hz:g} Hz, {spec.motion}",
                data_format="hdf5",
                jpeg_encoding=False,
            )
        except ValueError as error:
            raise BadInput(f"minari: {name}: {str(error).partition(chr(10))[0]}") from error
        made.storage.update_metadata({_SPEC: spec.model_dump_json(), _ROBOT: data.robot})
        made.storage.update_episode_metadata([_result(first)], [0])
        for count, episode in enumerate(episodes, 1):
            made.storage.update_episodes([_buffer(episode, spec)])
            made.storage.update_episode_metadata([_result(episode)], [count])
    return count + 1


def dataset_id(task: str) -> str:
    """Return the id of a task's data set; characters that minari refuses become "-"."""
    name = re.sub(r"[^\w-]|_", "-", re.sub(r"-v\d+$", "", task)).strip("-")
    return f"serl/{name or 'task'}-v0"


@contextmanager
def _datasets_in(folder: Path) -> Iterator[None]:
    """Let minari keep its data sets in a folder, which is made."""
    folder.mkdir(parents=True, exist_ok=True)
    before = os.environ.get(_ROOT)
    os.environ[_ROOT] = str(folder.resolve())
    try:
        yield
    finally:
        del os.environ[_ROOT]
        if before is not None:
            os.environ[_ROOT] = before


def _box(array: ArraySpec) -> gymnasium.spaces.Box:
    if array.dtype == "uint8":
        return gymnasium.spaces.Box(0, 255, array.shape, np.uint8)
    low = -np.inf if array.low is None else array.low
    high = np.inf if array.high is None else array.high
    return gymnasium.spaces.Box(low, high, array.shape, np.float32)


def _result(episode: EpisodeArrays) -> dict[str, Any]:
    return {"success": episode.success, "reason": episode.reason}


def _buffer(episode: EpisodeArrays, spec: Spec) -> EpisodeBuffer:
    """Return an episode in minari's form; the infos begin with an empty one, of the reset."""
    terminated, truncated = episode.ends
    names = (*spec.observation.state, *spec.observation.images)
    infos: dict[str, Any] = {}
    for name in _NUMBERS:
        rows = np.asarray(getattr(episode, name))
        infos[name] = np.concatenate([np.zeros_like(rows[:1]), rows])
    infos |= {name: ["", *getattr(episode, name)] for name in _TEXTS}
    return EpisodeBuffer(
        observations={name: np.ascontiguousarray(episode.observations[name]) for name in names},
        actions=np.asarray(episode.action, np.float32),
        rewards=np.asarray(episode.reward, np.float64),
        terminations=terminated,
        truncations=truncated,
        infos=infos,
    )


def read(folder: Path) -> Dataset:
    """Open a data set of minari, of serl or of others: the folder itself or one above it.

    Foreign actions are mapped from the bounds of their space to [-1, 1]. A foreign episode counts
    as a success if it terminated with a positive reward, or if its info "success" or "is_success"
    was true after a step.

    Raises:
        BadInput: the folder holds no data set, or several.
        CorruptData: the data set is damaged.
    """
    found = sorted({path.parent for path in folder.rglob("data/metadata.json")})
    if (folder / "metadata.json").exists():
        found = [folder]
    if len(found) != 1:
        raise BadInput(f"{folder}: expected one Minari data set, found {len(found)}")
    try:
        _check_metadata(found[0] / "metadata.json")
        dataset = minari.MinariDataset(found[0])
        metadata = dataset.storage.metadata
        spec = Spec.model_validate_json(metadata[_SPEC]) if _SPEC in metadata else None
    except _DAMAGES as error:
        raise CorruptData(f"{folder}: {str(error).partition(chr(10))[0]}") from error
    robot = str(metadata.get(_ROBOT) or metadata.get("dataset_id", ""))
    return Dataset(SourceRobot(robot, spec=spec), _episodes(dataset, spec is not None))


def _check_metadata(path: Path) -> None:
    """Raise `ValueError` for metadata without both spaces, or with too many episodes.

    Without a space, minari makes the environment that the metadata describe, whose class may be
    any function of any Python module.
    """
    values = json.loads(read_bounded(path, _MAX_JSON_BYTES))
    for name in ("observation_space", "action_space"):
        if not isinstance(values.get(name), str):
            raise ValueError(f"metadata.json: expected {name}, the description of a space")
    if not 0 <= values["total_episodes"] <= _MAX_EPISODES:
        raise ValueError(f"metadata.json: total_episodes: expected 0 to {_MAX_EPISODES}")


def _check_arrays(group: Any, seen: set[int]) -> None:
    """Raise `ValueError` for an array that `check_array` refuses, or an object linked twice.

    Minari would read groups that contain each other without an end.
    """
    for each in group.values():
        place = h5py.h5o.get_info(each.id).addr
        if each.file.filename != group.file.filename or place in seen:
            raise ValueError(f"{each.name}: expected an object of the file itself, linked once")
        seen.add(place)
        if isinstance(each, h5py.Group):
            _check_arrays(each, seen)
        else:
            check_array(each, group)


def _episodes(dataset: Any, own: bool) -> Iterator[EpisodeArrays]:
    try:
        if dataset.storage.FORMAT == "hdf5":
            path = dataset.storage.data_path / "main_data.hdf5"
            check_regular(path, _MAX_FILE_BYTES)
            with h5py.File(path, "r") as file:
                _check_arrays(file, set())
        yield from _read_episodes(dataset, own)
    except _DAMAGES as error:
        line = str(error).partition("\n")[0]
        raise CorruptData(f"{dataset.storage.data_path}: {line}") from error


def _read_episodes(dataset: Any, own: bool) -> Iterator[EpisodeArrays]:
    results = dataset.storage.get_episode_metadata(range(dataset.total_episodes))
    for episode, result in zip(dataset.iterate_episodes(), results, strict=True):
        terminated = bool(episode.terminations[-1])
        seen, infos = _named(episode.observations), episode.infos or {}
        if own:
            actions = np.asarray(episode.actions)
            success, reason = bool(result["success"]), str(result["reason"])
        else:
            actions = _scaled(episode.actions, dataset.action_space)
            infos = _after_steps(infos, len(actions))
            judged = any(np.any(infos.get(name, False)) for name in ("success", "is_success"))
            success = bool(judged or (terminated and episode.rewards[-1] > 0))
            reason = success_reason(success, terminated)
        yield EpisodeArrays(
            seen,
            actions,
            np.asarray(episode.rewards, np.float64),
            terminated,
            success,
            reason,
            **_more(infos) if own else {"info": infos},
        )


def _scaled(actions: Values, space: Any) -> Values:
    """Map each entry of actions from the bounds of the space, where it has some, to [-1, 1]."""
    if not isinstance(space, gymnasium.spaces.Box):
        return np.asarray(actions)
    low, high = space.low.astype(np.float64), space.high.astype(np.float64)
    bounded = np.isfinite(low) & np.isfinite(high)
    free = np.isneginf(low) & np.isposinf(high)
    if wrong := np.flatnonzero(~free & ~(bounded & (low < high))).tolist():
        found = f"{low.flat[wrong[0]]:g} to {high.flat[wrong[0]]:g}"
        raise ValueError(
            f"action space: entry {wrong[0]}: {found}, expected low < high or no bounds"
        )
    low, high = np.where(free, -1.0, low), np.where(free, 1.0, high)
    return 2.0 * (np.asarray(actions) - low) / (high - low) - 1.0


def _after_steps(infos: Mapping[str, Any], count: int) -> dict[str, Values]:
    """Return the infos that have one number for each step, without that of a reset."""
    return {
        name: rows[-count:].reshape(count)
        for name, rows in infos.items()
        if isinstance(rows, np.ndarray) and rows.dtype.kind in "fiub"
        if rows.size in (count, count + 1) and len(rows) == rows.size
    }


def _named(observations: Any) -> dict[str, Values]:
    """Return the arrays of an observation by joined keys, and by a last key that only one has.

    A bare array is also the state.
    """
    joined, short = dict[str, Values](), dict[str, list[Values]]()
    for keys, rows in _leaves(observations):
        is_image = rows.dtype == np.uint8 and rows.ndim == 4
        name = array_name(keys, "pixels" if is_image else "observation")
        if name in joined:
            raise ValueError(f"observations: two arrays are named {name}")
        joined[name] = rows
        short.setdefault(keys[-1] if keys else "state", []).append(rows)
    return {name: found[0] for name, found in short.items() if len(found) == 1} | joined


def _leaves(tree: Any, keys: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Values]]:
    """Yield the arrays of an observation with their keys."""
    if not isinstance(tree, dict):
        yield keys, np.asarray(tree)
        return
    for name, value in tree.items():
        yield from _leaves(value, (*keys, name))


def _more(infos: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of serl's own data, which minari keeps as infos."""
    texts = {
        name: [each.decode() if isinstance(each, bytes) else str(each) for each in infos[name][1:]]
        for name in _TEXTS
    }
    return {name: np.asarray(infos[name])[1:] for name in _NUMBERS} | texts


def describe(out: Path) -> str:
    """Return how the written data set is loaded."""
    (metadata,) = out.rglob("data/metadata.json")
    name = json.loads(metadata.read_text())["dataset_id"]
    code = f'import minari; minari.load_dataset("{name}")'
    return f"{_ROOT}={shlex.quote(str(out.resolve()))} python -c {shlex.quote(code)}"
