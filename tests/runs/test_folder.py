from __future__ import annotations

import errno
import os
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest
import yaml

from serl.errors import BadInput, CorruptData
from serl.report.review import recordings
from serl.runs import folder
from serl.runs.config import TrainConfig
from serl.runs.folder import RunFolder
from serl.runs.verify import verify
from serl.system.files import checked_name, write_atomic
from serl.testing.samples import SPEC
from serl.training.link import announce

NOW = datetime(2026, 11, 21, 10, 0, 5)
CONFIG = TrainConfig(task="reach", seed=7, demo_paths=(Path("a/b"),))


def test_run_folder_round_trips(tmp_path: Path) -> None:
    made = RunFolder.create(tmp_path, CONFIG, NOW)
    assert made.path == tmp_path / "reach" / "2026-11-21_10-00-05"
    opened = RunFolder.open(made.path)
    assert opened.config == CONFIG
    assert opened.info == made.info
    assert opened.name == "2026-11-21_10-00-05"
    assert {"serl", "python", "numpy", "torch", "mujoco"} <= opened.info.versions.keys()
    assert yaml.safe_load((made.path / "config.yaml").read_text())["config"]["seed"] == 7


def test_runs_created_in_one_second_get_separate_names(tmp_path: Path) -> None:
    other = CONFIG.model_copy(update={"task": "drawer"})
    names = {RunFolder.create(tmp_path, each, NOW).name for each in (CONFIG, CONFIG, other)}
    assert names == {f"2026-11-21_10-00-05{number}" for number in ("", "-2", "-3")}


def test_task_file_name_names_the_folder(tmp_path: Path) -> None:
    config = CONFIG.model_copy(update={"task": "some/where/my_task.py"})
    assert RunFolder.create(tmp_path, config, NOW).path.parent == tmp_path / "my_task"


def test_unwritable_location_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match="cannot make a run"):
        RunFolder.create(tmp_path / "file", CONFIG, NOW)


def test_run_on_full_disk_is_refused_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, data: bytes) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(folder, "write_atomic", refuse)
    with pytest.raises(BadInput, match=r"cannot make a run in .*/reach: No space left on device"):
        RunFolder.create(tmp_path, CONFIG, NOW)
    assert list((tmp_path / "reach").iterdir()) == []


def test_run_in_folder_that_is_not_utf8_is_refused_before_it_is_made(tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"bad\xff")
    (tmp_path / "link").symlink_to(folder)
    for parent in (folder, tmp_path / "link"):
        with pytest.raises(BadInput, match=r"bad\\udcff.*: names .* must be UTF-8"):
            RunFolder.create(parent, CONFIG, NOW)
    assert not folder.exists()


def test_foreign_folders_are_refused_with_reason(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"expected the folder of a run.* no folder"):
        RunFolder.open(tmp_path / "nowhere")
    with pytest.raises(BadInput, match=r"found no config\.yaml"):
        RunFolder.open(tmp_path)
    with pytest.raises(BadInput, match="found a file"):
        RunFolder.open(Path(__file__))
    runs = [RunFolder.create(tmp_path, CONFIG, NOW) for _ in range(2)]
    with pytest.raises(BadInput, match=rf"; the newest in {tmp_path} is {runs[1].path}"):
        RunFolder.open(tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected a YAML mapping, found nothing"),
        ("- 1\n- 2", "expected a YAML mapping, found list"),
        ("format: [", "not YAML"),
        ("task: reach\nseed: 3", "expected format 1, found None"),
        ("format: 2", "expected format 1, found 2"),
        ("format: 1", "created: Field required"),
        ("!!python/object/apply:os.getcwd []", "not YAML"),
        ("a: " + "[" * 600, "not YAML: maximum recursion depth"),
        ("a: " + "x" * (1 << 20), "1048579 bytes, allowed 65536"),
    ],
    ids=range(9),
)
def test_damaged_config_is_refused_in_one_line(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(CorruptData, match=message) as refusal:
        RunFolder.open(tmp_path)
    assert "\n" not in str(refusal.value)


def test_unknown_setting_in_config_is_named(tmp_path: Path) -> None:
    path = RunFolder.create(tmp_path, CONFIG, NOW).path / "config.yaml"
    path.write_text(path.read_text().replace("seed: 7", "sead: 7"))
    with pytest.raises(CorruptData, match=r"config\.sead"):
        RunFolder.open(path.parent)


@pytest.mark.parametrize("name", ["", "..", "a/b", ".hidden", "a b", "ä", "x" * 65, "a\n"])
def test_invalid_actor_name_is_refused(tmp_path: Path, name: str) -> None:
    run = RunFolder.create(tmp_path, CONFIG, NOW)
    with pytest.raises(BadInput, match="actor"):
        run.episodes(name)
    with pytest.raises(BadInput, match="actor"):
        run.link(name)
    assert checked_name("actor-0_b.1", "actor") == "actor-0_b.1"


def test_actors_are_listed_from_episode_folders(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, CONFIG, NOW)
    assert run.actors() == []
    for name in ("b", "a"):
        run.episodes(name).mkdir(parents=True)
    assert run.actors() == ["a", "b"]


def test_unwritable_run_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = RunFolder.create(tmp_path, TrainConfig(), NOW)
    assert run.writable() is run
    # Patched because root can write to a read-only folder.
    monkeypatch.setattr("os.access", lambda path, mode: False)
    with pytest.raises(BadInput, match=f"{run.path}: cannot be written; .*copy it as a whole"):
        run.writable()


def test_renamed_run_with_episodes_is_refused(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, CONFIG, NOW)
    announce(run.path / "link/actor0", run.name, "actor0", 1, SPEC)
    assert run.writable() is run
    renamed = RunFolder.open(run.path.rename(tmp_path / "renamed"))
    with pytest.raises(BadInput, match=f"renamed: its episodes are those of the run '{run.name}'"):
        renamed.writable()


def test_checkpoints_needed_for_selection_are_kept(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, CONFIG, NOW)
    for step in range(CONFIG.selection_checkpoints + 3):
        run.save_checkpoint(step, {"agent": {"w": np.zeros(2)}}, {})
    kept = sorted(int(path.name) for path in run.checkpoints.glob("0*"))
    assert kept == [0, *range(3, CONFIG.selection_checkpoints + 3)]


def test_failed_atomic_write_keeps_old_content(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomic(path, b"old")
    path.with_name(f".file.{os.getpid()}.tmp").mkdir()
    with pytest.raises(OSError, match="directory"):
        write_atomic(path, b"new")
    assert path.read_bytes() == b"old"


def test_new_run_is_synced_to_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        synced.append(os.fstat(descriptor).st_ino)
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    run = RunFolder.create(tmp_path / "runs", TrainConfig(), datetime(2026, 11, 21))
    parent = run.path.parent
    assert synced[:2] == [tmp_path.stat().st_ino, parent.parent.stat().st_ino]
    assert synced[-1] == parent.stat().st_ino


@pytest.mark.parametrize(
    "named",
    [
        {"intervention": "evil.py"},
        {"agent": {"algorithm": "evil.py", "own": 1}},
        {"reward": {"kind": "evil.py"}},
        {"transport": {"kind": "evil.py"}},
    ],
)
def test_foreign_run_is_verified_and_replayed_without_executing_its_code(
    tmp_path: Path, named: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "evil.py").write_text("open('executed', 'w').close()")
    run = RunFolder.create(tmp_path, TrainConfig(), datetime(2026, 11, 23))
    values = yaml.safe_load((run.path / "config.yaml").read_text())
    values["config"] |= named
    (run.path / "config.yaml").write_text(yaml.safe_dump(values))
    for part in RunFolder.open(run.path, data_only=True).parts().values():
        assert verify(part.path).sound
    with pytest.raises(BadInput, match="no episode was recorded yet"):
        recordings(run.path)
    assert not (tmp_path / "executed").exists()
    with pytest.raises(BadInput, match=r"evil\.py: expected a module with the attribute"):
        RunFolder.open(run.path)
    assert (tmp_path / "executed").exists()


def test_run_without_trials_is_finished_once_it_is_trained(tmp_path: Path) -> None:
    arm = TrainConfig(task="reach", robot="franka", intervention="none", steps=100, trials=0)
    run = RunFolder.create(tmp_path, arm, NOW)
    assert not run.is_finished()
    for step, finished in ((50, False), (100, True)):
        run.save_checkpoint(step, {"actor": {"w": np.ones(1)}}, {})
        assert run.is_finished() is finished
