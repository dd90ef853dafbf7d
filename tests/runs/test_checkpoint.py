from __future__ import annotations

import json
import os
import shutil
import sys
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from serl.errors import BadInput, CorruptData, SerlError
from serl.runs.checkpoint import (
    best,
    candidates,
    checkpoint_paths,
    has_saved,
    load,
    load_latest,
    mark_best,
    save,
)
from serl.testing.samples import equal

from ..log.test_recording_disk import file_size_limit

INFO = {"updates": 3, "generator": 2**127, "by actor": {"actor0": 5}}


def arrays(seed: int = 0) -> dict[str, dict[str, np.ndarray[Any, Any]]]:
    rng = np.random.default_rng(seed)
    return {
        "agent": {
            "weight": rng.normal(size=(4, 5)).astype(np.float32).T,
            "generator": rng.integers(0, 256, 64, np.uint8),
            "log_temperature": np.array(-1.5),
            "step": np.array(7),
        },
        "replay": {"index": rng.integers(0, 9, 12), "flags": rng.random(5) < 0.5},
    }


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def test_checkpoint_round_trips_exactly(tmp_path: Path) -> None:
    path = save(tmp_path, 120, arrays(), INFO)
    loaded = load(path)
    assert (loaded.path, loaded.step, loaded.info) == (path, 120, INFO)
    assert loaded.arrays.keys() == arrays().keys()
    for group, expected in arrays().items():
        assert equal(loaded.arrays[group], expected)
        assert all(loaded.arrays[group][name].shape == expected[name].shape for name in expected)
    latest, warning = load_latest(tmp_path)
    assert (latest.path, warning) == (path, "")


def test_newest_and_best_checkpoints_are_kept(tmp_path: Path) -> None:
    for step in range(1, 8):
        path = save(tmp_path, step, arrays(step), INFO, keep=3)
        if step == 2:
            mark_best(path)
    assert [int(path.name) for path in checkpoint_paths(tmp_path)] == [2, 5, 6, 7]
    assert best(tmp_path) == checkpoint_paths(tmp_path)[0]
    assert load_latest(tmp_path)[0].step == 7


def test_initial_checkpoint_remains_candidate(tmp_path: Path) -> None:
    for step in range(0, 8):
        save(tmp_path, step, arrays(step), INFO, keep=3)
    assert [int(path.name) for path in checkpoint_paths(tmp_path)] == [0, 5, 6, 7]
    assert [int(path.name) for path in candidates(tmp_path, 2)] == [0, 6, 7]
    assert [int(path.name) for path in candidates(tmp_path, 5)] == [0, 5, 6, 7]


def test_checkpoint_saved_at_earlier_step_becomes_latest(tmp_path: Path) -> None:
    """After a return to an earlier checkpoint, later ones belong to another history."""
    for step in (10, 20, 30, 15):
        path = save(tmp_path, step, arrays(step), INFO, keep=2)
    assert path.exists()
    loaded, warning = load_latest(tmp_path)
    assert (loaded.step, warning) == (15, "")


def test_every_damaged_byte_of_checkpoint_is_detected(tmp_path: Path) -> None:
    path = save(tmp_path, 1, {"agent": {"w": np.arange(4.0)}}, {"a": 1})
    for file in path.iterdir():
        data = file.read_bytes()
        for place in range(len(data)):
            if file.name == "MANIFEST.json" and data[place : place + 1].isspace():
                continue
            damaged = bytearray(data)
            damaged[place] ^= 0x02
            file.write_bytes(damaged)
            try:
                loaded = load(path)
            except CorruptData:
                continue
            # Only the manifest holds the step, so its damage cannot be detected.
            assert file.name == "MANIFEST.json"
            assert loaded.step != 1
        file.write_bytes(data)
    assert load(path).step == 1


def test_checkpoint_with_unlisted_file_is_refused(tmp_path: Path) -> None:
    path = save(tmp_path, 1, arrays(), INFO)
    (path / "extra").write_bytes(b"")
    with pytest.raises(CorruptData, match="extra"):
        load(path)


def test_oversized_checkpoint_file_is_refused_unread(tmp_path: Path) -> None:
    path = save(tmp_path, 1, arrays(), INFO)
    # A sparse file, which takes no disk space.
    os.truncate(path / "agent.safetensors", (8 << 30) + 1)
    with pytest.raises(CorruptData, match=r"agent.safetensors: 8589934593 bytes, allowed 85899345"):
        load(path)


def test_only_damaged_checkpoints_raise_corrupt_data(tmp_path: Path) -> None:
    for step in (1, 2):
        truncate(save(tmp_path, step, arrays(), INFO) / "agent.safetensors")
    with pytest.raises(CorruptData, match=r"no sound checkpoint.*00000002.*00000001"):
        load_latest(tmp_path)


def test_missing_checkpoint_raises_bad_input(tmp_path: Path) -> None:
    assert checkpoint_paths(tmp_path / "checkpoints") == []
    assert not has_saved(tmp_path / "checkpoints")
    with pytest.raises(BadInput, match="no checkpoint"):
        load_latest(tmp_path / "checkpoints")


def test_deleted_checkpoints_are_not_treated_as_fresh_start(tmp_path: Path) -> None:
    shutil.rmtree(save(tmp_path, 1, arrays(), INFO))
    assert has_saved(tmp_path)
    with pytest.raises(CorruptData, match=r"no sound checkpoint: .*latest does not name"):
        load_latest(tmp_path)


@pytest.mark.parametrize(("before", "step"), [(0, 1), (1, 1), (1, 2)])
def test_save_killed_at_any_operation_keeps_one_whole_checkpoint(
    tmp_path: Path, before: int, step: int
) -> None:
    """Examine what a kill before each file operation in turn leaves on disk."""
    folder = tmp_path / "checkpoints"
    if before:
        save(folder, 1, arrays(0), INFO)
    last = 0 if before else None
    states = [*_states_during_save(folder, step, tmp_path / "states"), folder]
    assert len(states) > 15
    for state in states:
        if not has_saved(state):
            assert not before
        else:
            found, _ = load_latest(state)
            seed = 1 if equal(found.arrays["agent"], arrays(1)["agent"]) else 0
            assert equal(found.arrays["agent"], arrays(seed)["agent"])
            assert last is None or seed >= last
            assert seed or before
            last = seed
        save(state, 3, arrays(3), INFO)
        assert load_latest(state)[0].step == 3
        assert {child.name for child in state.iterdir()} <= {*map(name, range(4)), "latest"}
    assert last == 1


def name(step: int) -> str:
    return f"{step:08d}"


def _states_during_save(folder: Path, step: int, states: Path) -> list[Path]:
    """Save in a child that copies the folder before each file operation; return the copies."""
    operations = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.chmod"}
    seen, copying = count(), False

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal copying
        ours = event in operations and str(arguments[0]).startswith(str(folder))
        if ours and not copying and folder.exists():
            copying = True
            shutil.copytree(folder, states / name(next(seen)))
            copying = False

    child = os.fork()
    if child == 0:
        try:
            sys.addaudithook(hook)
            save(folder, step, arrays(1), INFO)
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    return sorted(states.iterdir())


@pytest.mark.parametrize("pointer", [b"", b"../..", b"00000009", b"\xff\xfe", b"0" * 300])
def test_damaged_latest_file_is_skipped_with_warning(tmp_path: Path, pointer: bytes) -> None:
    save(tmp_path, 1, arrays(), INFO)
    save(tmp_path, 2, arrays(), INFO)
    (tmp_path / "latest").write_bytes(pointer)
    loaded, warning = load_latest(tmp_path)
    assert loaded.step == 2
    assert "latest does not name a checkpoint" in warning


def test_leftover_files_of_same_step_are_not_included(tmp_path: Path) -> None:
    leftover = tmp_path / ".00000001.new"
    leftover.mkdir()
    (leftover / "extra.safetensors").write_bytes(b"?")
    assert load(save(tmp_path, 1, arrays(), INFO)).arrays.keys() == arrays().keys()


@pytest.mark.parametrize("info", [{"loss": float("nan")}, {"path": Path()}])
def test_info_that_json_cannot_hold_is_refused(tmp_path: Path, info: dict[str, object]) -> None:
    save(tmp_path, 1, arrays(), INFO)
    with pytest.raises(BadInput, match="checkpoint info"):
        save(tmp_path, 2, arrays(), info)
    assert load_latest(tmp_path)[0].step == 1
    assert {child.name for child in tmp_path.iterdir()} == {"00000001", "latest"}


def test_failed_save_keeps_previous_checkpoint(tmp_path: Path) -> None:
    save(tmp_path, 1, arrays(), INFO)
    with file_size_limit(300), pytest.raises(SerlError, match="00000002"):
        save(tmp_path, 2, arrays(), INFO)
    loaded, warning = load_latest(tmp_path)
    assert (loaded.step, warning) == (1, "")
    assert {child.name for child in tmp_path.iterdir()} == {"00000001", "latest"}


def test_manifest_of_another_format_is_named(tmp_path: Path) -> None:
    path = save(tmp_path, 1, arrays(), INFO)
    manifest = json.loads((path / "MANIFEST.json").read_text())
    (path / "MANIFEST.json").write_text(json.dumps(manifest | {"format": 2}))
    with pytest.raises(CorruptData, match="format 2, this version reads 1"):
        load(path)
