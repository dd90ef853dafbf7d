"""Checkpoints: one folder each, written atomically and verified in full before use.

`<step>/` holds one safetensors file for each group of arrays, `info.json`, and `MANIFEST.json`
with the size and sha256 of each, written last. `latest` and `best` name one of the folders.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import safetensors.numpy
from safetensors import SafetensorError

from serl.errors import BadInput, CorruptData, SerlError
from serl.system.files import (
    checked_name,
    disk_full,
    read_bounded,
    sha256_of,
    sync,
    write_atomic,
    write_synced,
)
from serl.system.json_fields import MAX_JSON_BYTES, check_fields, dump_object, parse_object, short

Arrays = Mapping[str, np.ndarray[Any, Any]]

FORMAT = 1
LATEST, BEST = "latest", "best"
_MANIFEST, _INFO, _TENSORS = "MANIFEST.json", "info.json", ".safetensors"
_MAX_POINTER_BYTES = 64
_MAX_TENSOR_BYTES = 8 << 30
_MANIFEST_FIELDS = {"format": int, "step": int, "files": dict}
_FILE_FIELDS = {"bytes": int, "sha256": str}


class Checkpoint(NamedTuple):
    """The content of a saved checkpoint, and its folder.

    Attributes:
        path: folder of the checkpoint.
        step: environment steps at which it was saved.
        arrays: arrays by group ("agent", "replay", ...) and name.
        info: counters, generator states, names: any values that JSON can hold.
    """

    path: Path
    step: int
    arrays: dict[str, dict[str, np.ndarray[Any, Any]]]
    info: dict[str, Any]


def save(
    folder: Path, step: int, arrays: Mapping[str, Arrays], info: Mapping[str, Any], keep: int = 3
) -> Path:
    """Save a checkpoint as `folder/<step>`, point `latest` to it, and remove older checkpoints.

    An existing checkpoint of the same step is replaced.

    Args:
        folder: the checkpoints of a run.
        step: environment steps so far.
        arrays: arrays by group and name.
        info: values that JSON can hold; every number finite.
        keep: number of newest checkpoints to keep, besides the best and that of step 0.

    Returns:
        The folder of the checkpoint.

    Raises:
        BadInput: `info` or a group cannot be saved.
        SerlError: writing failed; older checkpoints are untouched.
    """
    if not folder.exists():
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        sync(folder.parent)
    _undo_replacements(folder)
    path = folder / f"{step:08d}"
    scratch = folder / f".{path.name}.new"
    try:
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir(mode=0o700)
        _write(scratch, step, arrays, info)
        if path.exists():
            path.rename(folder / f".{path.name}.{time.time_ns()}.old")
        scratch.rename(path)
        sync(folder)
        write_atomic(folder / LATEST, path.name.encode())
    except (OSError, SafetensorError) as error:
        raise SerlError(f"checkpoint {path}: {disk_full(path.parent) or error}") from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    _prune(folder, path, keep)
    return path


def mark_best(path: Path) -> None:
    """Point `best` to a checkpoint, which is then not removed as an old one."""
    write_atomic(path.parent / BEST, path.name.encode())


def best(folder: Path) -> Path | None:
    """Return the checkpoint that `mark_best` named last, or None."""
    return _read_pointer(folder, BEST)


def latest(folder: Path) -> Path | None:
    """Return the checkpoint that was saved last; None without a valid `latest` pointer."""
    return _read_pointer(folder, LATEST)


def checkpoint_paths(folder: Path) -> list[Path]:
    """Return all checkpoints, sorted by step; empty before the first one."""
    return sorted(
        (path for path in folder.glob("[0-9]*") if path.name.isdecimal() and path.is_dir()),
        key=lambda path: int(path.name),
    )


def candidates(folder: Path, last: int) -> list[Path]:
    """Return the `last` newest checkpoints, before them that of step 0 if there is one.

    The checkpoint of step 0 holds the policy after the warm-up on demonstrations, so that training
    does not end below it, as far as the trials of the candidates show.
    """
    paths = checkpoint_paths(folder)
    start = [path for path in paths[:-last] if int(path.name) == 0]
    return [*start, *paths[-last:]]


def pick(folder: Path, step: int | None = None) -> Path:
    """Return the checkpoint of a step; without a step the best, else the newest.

    Raises:
        BadInput: the checkpoint does not exist; the message lists the existing ones.
    """
    paths = {int(path.name): path for path in checkpoint_paths(folder)}
    default = best(folder) or max(paths.values(), default=None)
    path = default if step is None else paths.get(step)
    if path is None:
        known = ", ".join(map(str, paths)) or "none"
        asked = "checkpoint" if step is None else f"checkpoint {step}"
        raise BadInput(f"{folder.parent}: no {asked}; there are: {known}")
    return path


def load(path: Path) -> Checkpoint:
    """Load one checkpoint; every hash is verified before any array is built.

    Raises:
        CorruptData: the checkpoint is incomplete, damaged or of another format; the message names
            the file and the cause.
    """
    try:
        manifest = _verify_manifest(path)
        info = _read_object(path / _INFO)
        arrays = {
            name.removesuffix(_TENSORS): safetensors.numpy.load_file(path / name)
            for name in manifest["files"]
            if name.endswith(_TENSORS)
        }
    except OSError as error:
        raise CorruptData(f"{error.filename or path}: {error.strerror}") from error
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise CorruptData(f"checkpoint {path}: {short(str(error))}") from error
    return Checkpoint(path, manifest["step"], arrays, info)


def has_saved(folder: Path) -> bool:
    """Return whether a checkpoint exists or ever did; if so, the run must not start afresh."""
    _undo_replacements(folder)
    return bool(checkpoint_paths(folder)) or (folder / LATEST).exists()


def load_latest(folder: Path) -> tuple[Checkpoint, str]:
    """Load the newest sound checkpoint.

    Returns:
        The checkpoint, and a warning with the reasons why newer ones were passed over, else "".

    Raises:
        BadInput: the run never had a checkpoint (see `has_saved`).
        CorruptData: no checkpoint is sound; the message names the fault of each.
    """
    if not has_saved(folder):
        raise BadInput(f"{folder}: no checkpoint")
    pointed = latest(folder)
    refused = [] if pointed else [f"{folder / LATEST} does not name a checkpoint"]
    newest_first = checkpoint_paths(folder)[::-1]
    for path in sorted(newest_first, key=lambda path: path != pointed):
        try:
            checkpoint = load(path)
        except CorruptData as error:
            refused.append(str(error))
            continue
        note = f"; going on from {path.name}" if refused else ""
        return checkpoint, "; ".join(refused) + note
    raise CorruptData(f"no sound checkpoint: {'; '.join(refused)}")


def _undo_replacements(folder: Path) -> None:
    """Restore the old checkpoint where a crash interrupted its replacement at the same step."""
    for old in folder.glob(".*.old"):
        path = folder / old.name.split(".")[1]
        if not path.exists():
            old.rename(path)


def _write(folder: Path, step: int, arrays: Mapping[str, Arrays], info: Mapping[str, Any]) -> None:
    """Write the files of a checkpoint into a new folder, the manifest last."""
    try:
        text = dump_object(info)
    except (TypeError, ValueError) as error:
        raise BadInput(f"checkpoint info: {error}") from error
    write_synced(folder / _INFO, text)
    for group, named in arrays.items():
        path = folder / f"{checked_name(group, 'checkpoint group')}{_TENSORS}"
        contiguous = {name: np.asarray(array, order="C") for name, array in named.items()}
        safetensors.numpy.save_file(contiguous, path)
        path.chmod(0o600)
        sync(path)
    files = {
        path.name: {"bytes": path.stat().st_size, "sha256": sha256_of(path)}
        for path in sorted(folder.iterdir())
    }
    manifest = {"format": FORMAT, "step": step, "files": files}
    write_synced(folder / _MANIFEST, json.dumps(manifest, indent=2).encode())
    sync(folder)


def _read_object(path: Path) -> dict[str, Any]:
    return parse_object(read_bounded(path, MAX_JSON_BYTES), str(path))


def _verify_manifest(path: Path) -> dict[str, Any]:
    """Return the manifest after comparing every file with it; raise `CorruptData` on a mismatch."""
    manifest = _read_object(path / _MANIFEST)
    check_fields(manifest, _MANIFEST_FIELDS, str(path / _MANIFEST))
    if manifest["format"] != FORMAT:
        raise CorruptData(f"{path}: format {manifest['format']}, this version reads {FORMAT}")
    found = {file.name for file in path.iterdir()} - {_MANIFEST}
    if found != manifest["files"].keys() or _INFO not in found:
        expected = short(sorted(manifest["files"]))
        raise CorruptData(f"{path}: expected {expected}, found {short(sorted(found))}")
    for name, entry in manifest["files"].items():
        check_fields(entry, _FILE_FIELDS, f"{path / _MANIFEST} {short(name)}")
        size = (path / name).stat().st_size
        if size > _MAX_TENSOR_BYTES:
            raise CorruptData(f"{path / name}: {size} bytes, allowed {_MAX_TENSOR_BYTES}")
        if size != entry["bytes"]:
            raise CorruptData(f"{path / name}: {size} bytes, expected {entry['bytes']}")
        if sha256_of(path / name) != entry["sha256"]:
            raise CorruptData(f"{path / name}: the sha256 does not match")
    return manifest


def _prune(folder: Path, saved: Path, keep: int) -> None:
    """Remove checkpoints beyond the newest `keep`, and partial folders left behind by crashes."""
    kept = (saved, best(folder), folder / f"{0:08d}")
    old = [path for path in checkpoint_paths(folder) if path not in kept]
    for path in [
        *old[: max(0, len(old) - keep + 1)],
        *folder.glob(".*.old"),
        *folder.glob(".*.new"),
    ]:
        shutil.rmtree(path, ignore_errors=True)
    for scratch in folder.glob(f".{LATEST}.*.tmp"):
        scratch.unlink(missing_ok=True)


def _read_pointer(folder: Path, pointer: str) -> Path | None:
    try:
        name = read_bounded(folder / pointer, _MAX_POINTER_BYTES).decode()
    except (OSError, UnicodeDecodeError, CorruptData):
        return None
    path = folder / name
    return path if name.isdecimal() and path.is_dir() else None
