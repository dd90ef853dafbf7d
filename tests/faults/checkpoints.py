"""Faults of checkpoints."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from serl.errors import CorruptData
from serl.runs.checkpoint import LATEST, checkpoint_paths, load, load_latest, save

from .refusal import refusal
from .registry import REGISTRY, Level, Recipe
from .strace import KILLED, inject

CALLS = ("write", "fsync", "rename")
DAMAGES = 100
MANY_DAMAGES = 1000


def arrays(step: int) -> dict[str, dict[str, np.ndarray[Any, Any]]]:
    """Return arrays whose values identify the step they were saved at."""
    return {group: {"value": np.full(300, step, np.float32)} for group in ("agent", "replay")}


def holds(path: Path, step: int) -> bool:
    """Return whether the checkpoint at `path` is complete and belongs to this step."""
    found = load(path)
    return found.step == step and all(
        (array == step).all() for group in found.arrays.values() for array in group.values()
    )


@REGISTRY.fault(
    2,
    "Learner killed while it writes a checkpoint",
    injected="strace: SIGKILL at the N-th write, fsync and rename, for every N",
    required="the previous checkpoint or the new one loads completely; never a part of one",
    level=Level.COMPONENT,
    needs=(Recipe.STRACE,),
)
def killed_while_saving(folder: Path) -> None:
    kills = sum(_kill_at_every(call, folder / call) for call in CALLS)
    assert kills > 10


def _kill_at_every(call: str, folder: Path) -> int:
    """Kill saves at the first call, then the second, and so on until one succeeds."""
    for number in range(1, 100):
        target = folder / str(number)
        save(target, 1, arrays(1), {})
        code = inject(call, f"signal=KILL:when={number}", "checkpoints", [target]).returncode
        found, warning = load_latest(target)
        assert holds(found.path, found.step)
        assert not warning
        save(target, 3, arrays(3), {})  # files left by the crash do not block the next save
        assert holds(load_latest(target)[0].path, 3)
        assert list(target.glob(".*")) == []
        if code != KILLED:
            assert (code, found.step) == (0, 2)
            return number - 1
    raise AssertionError(f"more than {number} calls of {call}")


@REGISTRY.fault(
    24,
    "Damaged checkpoint",
    injected=f"{DAMAGES} times: cut, flipped bit, empty, missing or foreign file or pointer",
    required="the previous intact checkpoint is used, with a warning; if there is none, the run is "
    "refused, and not started from the beginning",
    level=Level.UNIT,
)
def bad_checkpoint(folder: Path) -> None:
    _damage(folder, DAMAGES)


@REGISTRY.longer(bad_checkpoint, injected=f"{MANY_DAMAGES:,} times")
def bad_checkpoints(folder: Path) -> None:
    _damage(folder, MANY_DAMAGES)


def _damage(folder: Path, times: int) -> None:
    rng = Random(24)
    save(folder / "good", 1, arrays(1), {})
    save(folder / "good", 2, arrays(2), {})
    for number in range(times):
        shutil.copytree(folder / "good", target := folder / "target")
        damage = rng.choice(_DAMAGES)
        _damage_pointer(target / LATEST, damage, rng)
        newest = rng.choice(sorted(checkpoint_paths(target)[-1].iterdir()))
        damage(newest, rng)
        found, warning = load_latest(target)
        assert holds(found.path, found.step), (number, damage.__name__, newest.name)
        assert (found.step == 2) != bool(warning), (number, damage.__name__, newest.name, warning)
        damage(checkpoint_paths(target)[0] / newest.name, rng)
        if not refusal(partial(load_latest, target), CorruptData):
            found = load_latest(target)[0]
            assert holds(found.path, found.step), (number, damage.__name__, newest.name)
        shutil.rmtree(target)


def _damage_pointer(pointer: Path, damage: Callable[[Path, Random], None], rng: Random) -> None:
    """Damage the pointer file; the newest checkpoint must still be found."""
    before = pointer.read_bytes()
    damage(pointer, rng)
    found, warning = load_latest(pointer.parent)
    assert holds(found.path, 2), damage.__name__
    assert str(pointer) in warning, (damage.__name__, warning)
    pointer.write_bytes(before)


def _cut(file: Path, rng: Random) -> None:
    file.write_bytes(file.read_bytes()[: rng.randrange(max(1, file.stat().st_size))])


def _flip(file: Path, rng: Random) -> None:
    data = bytearray(file.read_bytes())
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    file.write_bytes(data)


def _empty(file: Path, rng: Random) -> None:
    file.write_bytes(b"")


def _remove(file: Path, rng: Random) -> None:
    file.unlink()


def _replace(file: Path, rng: Random) -> None:
    file.write_bytes(rng.choice((b"GIF89a", json.dumps({"format": 1}).encode(), bytes(4096))))


_DAMAGES: tuple[Callable[[Path, Random], None], ...] = (_cut, _flip, _empty, _remove, _replace)


if __name__ == "__main__":
    save(Path(sys.argv[1]), 2, arrays(2), {})
