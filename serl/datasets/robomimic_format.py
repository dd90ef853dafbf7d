"""Robomimic's HDF5 files: a group `data/demo_N` for each episode, and masks that name subsets."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from serl.datasets.exchange import Dataset, EpisodeArrays, SourceRobot, success_reason, without_last
from serl.datasets.export import Recorded
from serl.datasets.serl_import import Values
from serl.errors import BadInput, CorruptData
from serl.specs import Spec

_IMAGE = "_image"  # ending of a camera's observations in robomimic
_GYM = 2  # robomimic's type of environments that gymnasium makes
_NUMBERS = ("requested", "policy_version", "wall_s")
_TEXTS = ("source", "provenance")


def write(data: Recorded, out: Path) -> int:
    """Write episodes to a new file `demo.hdf5` in a folder; return their number."""
    out.mkdir(parents=True, exist_ok=True)
    successes: list[str] = []
    count = total = 0
    with h5py.File(out / "demo.hdf5", "w") as file:
        home = file.create_group("data")
        for episode in data.episodes():
            name = f"demo_{count}"
            _write_episode(home.create_group(name), episode, data.spec)
            count, total = count + 1, total + len(episode)
            successes += [name] * episode.success
        if not count:
            raise data.none_found()
        names = [f"demo_{number}" for number in range(count)]
        for mask, chosen in (("all", names), ("success", successes)):
            file[f"mask/{mask}"] = np.array(chosen, "S")
        kwargs = {"task": data.spec.task, "rate_hz": data.spec.rate_hz, "robot": data.robot}
        env = {"env_name": data.spec.task, "type": _GYM, "env_kwargs": kwargs}
        home.attrs["env_args"] = json.dumps(env)
        home.attrs["total"] = total
        home.attrs["serl_spec"] = data.spec.model_dump_json()
    return count


def _write_episode(group: Any, episode: EpisodeArrays, spec: Spec) -> None:
    group.attrs["num_samples"] = len(episode)
    group.attrs["success"] = episode.success
    group.attrs["reason"] = episode.reason
    terminated, truncated = episode.ends
    for name in (*spec.observation.state, *spec.observation.images):
        array = episode.observations[name]
        key = name + _IMAGE if name in spec.observation.images else name
        if key != name and key in spec.observation.state:
            raise BadInput(f"robomimic: the state {key} has the name of the camera {name}'s images")
        packed = {"compression": "gzip", "compression_opts": 1} if array.ndim == 4 else {}
        group.create_dataset(f"obs/{key}", data=array[:-1], **packed)
        group.create_dataset(f"next_obs/{key}", data=array[1:], **packed)
    columns: dict[str, Values] = {
        "actions": np.asarray(episode.action, np.float32),
        "rewards": np.asarray(episode.reward, np.float64),
        "dones": (terminated | truncated).astype(np.int64),
        "terminated": terminated,
        "truncated": truncated,
        **{name: np.asarray(getattr(episode, name)) for name in _NUMBERS},
    }
    for name, rows in columns.items():
        group.create_dataset(name, data=rows)
    for name in _TEXTS:
        group.create_dataset(name, data=getattr(episode, name), dtype=h5py.string_dtype())


def read(path: Path) -> Dataset:
    """Open a file of robomimic, of serl or of others; or a folder that holds one.

    Without `next_obs`, the last observation of an episode is its final one, and the last action is
    left out; of a success its reward goes to the action before. A foreign episode counts as a
    success if its last reward is positive, or without `next_obs` one of its last two.

    Raises:
        BadInput: no such file, or a folder that holds none or several.
        CorruptData: the file is damaged, or of another layout.
    """
    found = [*path.glob("*.hdf5"), *path.glob("*.h5")] if path.is_dir() else [path]
    if len(found) != 1 or not found[0].is_file():
        count = len(found) if path.is_dir() else 0
        raise BadInput(f"{path}: expected one .hdf5 or .h5 file of robomimic, found {count}")
    try:
        with h5py.File(found[0], "r") as file:
            attributes = file["data"].attrs
            env = json.loads(attributes.get("env_args", "{}"))
            text = attributes.get("serl_spec")
            spec = Spec.model_validate_json(text) if text else None
            kwargs = env.get("env_kwargs") or {}
            robot = kwargs.get("robot") or kwargs.get("robots") or env.get("env_name", "")
            robot = " ".join(map(str, robot)) if isinstance(robot, list) else str(robot)
            rate_hz = kwargs.get("rate_hz", kwargs.get("control_freq"))
    except _DAMAGES as error:
        raise CorruptData(f"{found[0]}: {str(error).partition(chr(10))[0]}") from error
    return Dataset(SourceRobot(robot, rate_hz, spec=spec), _episodes(found[0]))


_MAX_BYTES = 4_000_000_000
"""Largest array of an episode: some 80,000 pictures of 128 px."""

_DAMAGES = (OSError, LookupError, ValueError, TypeError, AttributeError, MemoryError, RuntimeError)
"""Errors of a damaged file; HDF5 raises `RuntimeError` for many damages."""


def _episodes(path: Path) -> Iterator[EpisodeArrays]:
    try:
        with h5py.File(path, "r") as file:
            names = sorted(file["data"], key=lambda name: int(name.rpartition("_")[2]))
            for name in names:
                yield _episode(file["data"][name])
    except _DAMAGES as error:
        raise CorruptData(f"{path}: {str(error).partition(chr(10))[0]}") from error


def _check_arrays(group: Any) -> None:
    """Raise `ValueError` for an array that `check_array` refuses."""
    for rows in (*group.values(), *group["obs"].values(), *group.get("next_obs", {}).values()):
        if not isinstance(rows, h5py.Group):
            check_array(rows, group)


def check_array(rows: Any, group: Any) -> None:
    """Raise `ValueError` for an array that is too large or lies in another file than a group."""
    if rows.nbytes > _MAX_BYTES:
        raise ValueError(f"{rows.name}: {rows.nbytes} bytes, allowed {_MAX_BYTES}")
    if rows.external or rows.file.filename != group.file.filename:
        raise ValueError(f"{rows.name}: expected an array of the file itself")


def _episode(group: Any) -> EpisodeArrays:
    _check_arrays(group)
    follows = group.get("next_obs")
    seen: dict[str, Values] = {}
    for key, rows in group["obs"].items():
        final = [] if follows is None else [follows[key][-1:]]
        name = key.removesuffix(_IMAGE) if rows.ndim == 4 else key
        seen[key if name in group["obs"] else name] = np.concatenate([rows[()], *final])
    reward = group["rewards"][()].astype(np.float64)
    own = "reason" in group.attrs
    if own:
        return EpisodeArrays(
            seen,
            group["actions"][()],
            reward,
            bool(group["terminated"][-1]),
            bool(group.attrs["success"]),
            str(group.attrs["reason"]),
            **_more(group),
        )
    count = len(group["actions"]) - (follows is None)
    success = bool(count and reward[-1] > 0)
    if follows is None:
        reward, success = without_last(reward)
    terminated = success or bool(count and group["dones"][count - 1])
    reason = success_reason(success, terminated)
    return EpisodeArrays(seen, group["actions"][:count], reward, terminated, success, reason)


def _more(group: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of serl's own data."""
    texts = {name: [each.decode() for each in group[name][()]] for name in _TEXTS}
    return {name: group[name][()] for name in _NUMBERS} | texts
