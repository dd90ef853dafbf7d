"""Test which imported episodes a run learns from, and which data sets an import refuses."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import h5py
import numpy as np
import pandas as pd
import pytest

import serl
from serl.cli.export import format_module
from serl.cli.main import main
from serl.datasets import lerobot_format
from serl.datasets.exchange import without_last
from serl.datasets.export import recorded
from serl.log.episode_log import EpisodeLog
from serl.log.episode_reader import episode_paths, read_episode, read_records, read_spec
from serl.runs.config import resolve
from serl.runs.demonstrations import read_demonstrations
from serl.runs.folder import RunFolder
from serl.runs.settings import run_settings
from serl.runs.task_setup import make_spec, make_task
from serl.testing.samples import random_observation, random_step
from serl.types import UNJUDGED, ActionSource, End, EndReason, Key, Step

from .test_exchange import (
    FORMATS,
    Recording,
    copy_as_foreign,
    exported,
    import_pixels,
    pixel_spec,
    record,
    recording,
)

__all__ = ["exported", "recording"]


@pytest.fixture(scope="module")
def expert_recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Record two demonstrations of the scripted expert."""
    folder = tmp_path_factory.mktemp("expert") / "recording"
    assert main(["record", "reach", "--demos", "2", "--out", str(folder)]) == 0
    return folder


@pytest.mark.parametrize("name", FORMATS)
def test_exported_and_imported_demonstrations_of_expert_demonstrate(
    expert_recording: Path, tmp_path: Path, name: str
) -> None:
    out = tmp_path / "imported"
    assert main(["export", str(expert_recording), "--to", name, "--out", str(tmp_path / name)]) == 0
    words = ["demos", "import", str(tmp_path / name), "--task", "reach", "--out", str(out)]
    assert main(words) == 0
    config = run_settings("reach", {}, {"demo_paths": [out]})
    lengths = [len(each.steps) for each in read_demonstrations(expert_recording, config)]
    assert len(lengths) == 2
    assert [len(each.steps) for each in read_demonstrations(out, config)] == lengths


def test_recording_of_person_is_exported(expert_recording: Path, tmp_path: Path) -> None:
    """It has the settings of a run, but its episodes are beside them."""
    run = RunFolder.create_at(tmp_path / "demos", resolve({"task": "reach"}), datetime.now())
    for path in episode_paths(expert_recording):
        shutil.copy(path, run.path)
    run.episodes("person").mkdir(parents=True)
    out = str(tmp_path / "out")
    assert main(["export", str(run.path), "--to", "lerobot", "--out", out]) == 0
    assert len(serl.open_run(run.path).episodes) == len([*recorded(run.path).episodes()]) == 2


def test_recording_that_defines_a_task_is_exported_and_imported(tmp_path: Path) -> None:
    """The course of `racing_car` follows from the poses of a recorded lap."""
    lap, out = tmp_path / "lap", tmp_path / "out"
    assert main(["record", "racing_car", "--demos", "1", "--out", str(lap)]) == 0
    assert main(["export", str(lap), "--to", "robomimic", "--out", str(tmp_path / "data")]) == 0
    words = ["demos", "import", str(tmp_path / "data"), "--task", "racing_car", "--out", str(out)]
    assert main(words) == 0
    config = run_settings("racing_car", {}, {"demo_paths": [out]})
    (recorded_lap,) = read_demonstrations(out, config)
    assert recorded_lap.success
    assert config.task_config["checkpoints"]


def test_export_leaves_out_scripted_resets_and_prints_their_number(
    expert_recording: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = episode_paths(expert_recording)[0]
    spec = read_spec(first)
    assert spec is not None
    folder, out = tmp_path / "actor0", tmp_path / "out"
    with EpisodeLog(folder, spec, "run", "actor0", 1) as log:
        for number, source in enumerate((ActionSource.SCRIPT, ActionSource.POLICY)):
            for record in read_records([first], spec):
                moved = replace(record, key=Key("run", "actor0", 1, number, record.key.index))
                log.append(replace(moved, source=source) if isinstance(moved, Step) else moved)
    assert main(["export", str(folder), "--to", "lerobot", "--out", str(out), "--successes"]) == 0
    printed = capsys.readouterr().out
    assert f"{out}: 1 episode of reach for lerobot\nleft out: 1 scripted reset" in printed
    assert len([*recorded(folder).episodes()]) == 1
    assert len([*recorded(folder, for_viewing=True).episodes()]) == 2


def record_end(folder: Path, count: int, reason: EndReason, fault: str = "") -> list[Step]:
    """Record a success, then an episode of `count` steps with an end; return its steps.

    As in a run, the last step of a fault is unjudged, and ends with the observation before it.
    """
    spec, rng = make_spec(make_task(resolve({"task": "reach"}))), np.random.default_rng(0)
    with EpisodeLog(folder, spec, "run", "actor0", 1) as log:
        for number, (length, why) in enumerate([(2, EndReason.SUCCESS), (count, reason)]):
            key, solved = Key("run", "actor0", 1, number, 0), why is EndReason.SUCCESS
            steps = [random_step(replace(key, index=n), spec, rng) for n in range(length)]
            steps = [replace(each, terminated=False, source=ActionSource.POLICY) for each in steps]
            if steps:
                judged = UNJUDGED if fault and not solved else "truth"
                last = replace(steps[-1], reward=float(solved), reward_provenance=judged)
                steps[-1] = replace(last, terminated=solved, truncated=not solved)
            seen = steps[-1].observation if steps else random_observation(spec.observation, rng)
            end = End(replace(key, index=length), seen, solved, why, 0.1, 1763715250.0, fault)
            for each in steps:
                log.append(each)
            log.append(end)
    return steps


def test_export_leaves_out_discarded_episodes_and_prints_their_number(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, out = tmp_path / "actor0", tmp_path / "out"
    record_end(folder, 3, EndReason.DISCARDED)
    assert main(["export", str(folder), "--to", "robomimic", "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert f"{out}: 1 episode of reach for robomimic\nleft out: 1 episode that a pers" in printed
    assert len([*recorded(folder, for_viewing=True).episodes()]) == 2


@pytest.mark.parametrize("count", [3, 1, 0])
def test_export_leaves_out_last_step_of_fault(tmp_path: Path, count: int) -> None:
    folder = tmp_path / "actor0"
    steps = record_end(folder, count, EndReason.FAULT, "camera: silent")
    _, *found = recorded(folder).episodes()
    assert len(found) == (count > 1)  # else nothing remains
    for episode in found:
        assert (len(episode), episode.terminated, episode.reason) == (2, False, "camera: silent")
        for name, rows in episode.observations.items():
            expected = np.stack([step.observation.state[name] for step in steps])
            np.testing.assert_array_equal(rows, expected)
        assert episode.reward.tolist() == [step.reward for step in steps[:2]]
        assert episode.ends[1].tolist() == [False, True]
    _, *seen = recorded(folder, for_viewing=True).episodes()
    assert [len(episode) for episode in seen] == [count] * (count > 0)


@pytest.mark.parametrize(
    ("name", "reason", "count", "option", "line"),
    [
        ("lerobot", EndReason.FAULT, 0, (), "expected complete episodes, found none"),
        ("minari", EndReason.TIME_LIMIT, 2, ("--successes",), "(--successes), found none"),
        ("robomimic", EndReason.DISCARDED, 2, (), "left out: 1 episode that a person discarded"),
    ],
)
def test_export_without_episodes_to_export_is_refused_in_one_line(
    tmp_path: Path,
    name: str,
    reason: EndReason,
    count: int,
    option: tuple[str, ...],
    line: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = tmp_path / "actor0"
    record_end(folder, count, reason, "x" if reason.is_fault else "")
    episode_paths(folder)[0].unlink()  # the success
    words = ["export", str(folder), "--to", name, "--out", str(tmp_path / "out"), *option]
    assert main(words) == 2
    error = capsys.readouterr().err
    assert error.endswith(f"{line}\n")
    assert error.count("\n") == 1


def test_import_of_foreign_lerobot_ends_at_last_observation(
    recording: Recording, exported: Path, tmp_path: Path
) -> None:
    folder, out = tmp_path / "other", tmp_path / "new"
    copy_as_foreign(exported / "lerobot", folder, {}, "next.success")
    assert import_pixels(folder, out) == 0
    episode = read_episode(episode_paths(out)[0], pixel_spec())
    before = recording[1][0]
    assert episode.end is not None
    assert len(episode.steps) == len(before.steps) - 1
    read = next(lerobot_format.read(folder).episodes)
    assert read.info is not None
    assert read.info["success"].tolist() == [False, True], "of the last frame, which is left out"
    last = before.steps[-1].observation.state
    np.testing.assert_array_equal(
        episode.end.observation.state["tcp_from_start"], last["tcp_from_start"]
    )


@pytest.mark.parametrize(
    ("rewards", "judged", "last"),
    [
        ([0.0, 2.0, 1.0], None, 2.0),
        (None, [False, False, True], 1.0),
        (None, None, 1.0),
        ([0.0, 0.5, 1.0], [False, False, False], None),
    ],
)
def test_reward_of_last_frame_of_foreign_lerobot_decides_success(
    exported: Path,
    tmp_path: Path,
    rewards: list[float] | None,
    judged: list[bool] | None,
    last: float | None,
) -> None:
    folder, out = tmp_path / "other", tmp_path / "new"
    table = copy_as_foreign(exported / "lerobot", folder, {})
    rest = len(table) - 3  # frames of the other episodes
    if rewards is not None:
        table["next.reward"] = rewards + [0.0] * rest
    if judged is not None:
        table["next.success"] = judged + [False] * rest
    table.to_parquet(folder / "data/chunk-000/file-000.parquet")
    assert import_pixels(folder, out) == 0
    home = out / "failures" if last is None else out
    found = read_episode(episode_paths(home)[0], pixel_spec())
    assert found.success is (last is not None)
    first, final = found.steps
    assert (first.reward, first.terminated) == (0.0, False)
    assert (final.terminated, final.truncated) == (last is not None, last is None)
    own = rewards[1] if rewards else 0.0
    assert final.reward == (own if last is None else last)


def test_import_map_reorders_action_entries(
    recording: Recording, exported: Path, tmp_path: Path
) -> None:
    folder, out, mapping = tmp_path / "other", tmp_path / "new", tmp_path / "map.yaml"
    copy_as_foreign(exported / "lerobot", folder, {"names": ["y", "x", "gripper", "z", "yaw"]})
    mapping.write_text("action: [1, 0, 3, 4, 2]\n")
    assert import_pixels(folder, out, "--map", str(mapping)) == 0
    step = read_episode(episode_paths(out)[0], pixel_spec()).steps[0]
    before = recording[1][0].steps[0].action
    np.testing.assert_array_equal(step.action, before[[1, 0, 3, 4, 2]])


def test_import_into_another_task_names_difference(
    exported: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in FORMATS:
        words = ["demos", "import", str(exported / name), "--task", "reach"]
        assert main([*words, "--out", str(tmp_path / "new")]) == 2
        assert "data of the task pick_cube, not reach: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("sentence", "lengths"), [("reach", [2]), ("fold the towel", [3]), (None, None), ("x", None)]
)
def test_import_of_several_lerobot_tasks_needs_sentence(
    exported: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    sentence: str | None,
    lengths: list[int] | None,
) -> None:
    folder, out = tmp_path / "other", tmp_path / "new"
    copy_as_foreign(exported / "lerobot", folder, {})
    path = folder / "meta/episodes/chunk-000/file-000.parquet"
    table = pd.read_parquet(path)
    table["tasks"] = [["reach"], ["fold the towel"], ["a", "b", "c", "d"]]
    table.to_parquet(path)
    options = ["--sentence", sentence] if sentence else []
    assert import_pixels(folder, out, *options) == (0 if lengths else 2)
    if lengths:
        found = [read_episode(path, pixel_spec()) for path in episode_paths(out)]
        assert [len(episode.steps) for episode in found] == lengths
        return
    error = capsys.readouterr().err
    expected = "expected --sentence TEXT with one of 6: 'a', 'b', 'c', 'd', 'fold the towel', ...\n"
    assert error.endswith(f"tasks of the episodes: {expected}")
    assert error.count("\n") == 1
    assert not out.exists()


def test_import_refuses_sentence_for_other_formats(
    exported: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["demos", "import", str(exported / "minari"), "--task", "pick_cube", "--sentence", "x"]
    assert main([*words, "--out", str(tmp_path / "new")]) == 2
    line = "demos: --sentence selects episodes of a LeRobotDataset, got minari\n"
    assert capsys.readouterr().err.endswith(line)


def test_import_lists_differences_of_rate_names_and_states_together(
    exported: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "so100"
    copy_as_foreign(exported / "lerobot", folder, {"fps": 30, "names": ["shoulder", "elbow"]})
    path = folder / "data/chunk-000/file-000.parquet"
    table = pd.read_parquet(path)
    table["observation.state"] = [[0.0] * 6] * len(table)
    table.to_parquet(path)
    words = ["demos", "import", str(folder), "--task", "pick_cube", "--out", str(tmp_path / "new")]
    assert main(words) == 2
    line = capsys.readouterr().err
    assert "(so100): rate 30 Hz != 10 Hz; action shoulder elbow != x y z yaw gripper; " in line
    assert "state tcp_from_start [3]: nothing to take" in line
    assert "the file has state [6], front [" in line
    for film in folder.rglob("*.mp4"):
        film.write_bytes(b"damaged")
    assert main(words) == 2
    assert "rate 30 Hz != 10 Hz; action shoulder elbow !=" in capsys.readouterr().err


def test_import_lists_size_of_actions_of_robomimic_with_other_differences(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "lift.hdf5"
    with h5py.File(path, "w") as file:
        kwargs = {"robots": ["Panda"], "control_freq": 20}
        env = {"env_name": "Lift", "type": 1, "env_kwargs": kwargs}
        file.create_group("data").attrs["env_args"] = json.dumps(env)
        demo = file.create_group("data/demo_0")
        demo["actions"], demo["obs/object"] = np.zeros((4, 7)), np.zeros((4, 10))
        demo["rewards"], demo["dones"] = np.zeros(4), np.zeros(4)
    words = ["demos", "import", str(path), "--task", "pick_cube", "--out", str(tmp_path / "new")]
    assert main(words) == 2
    line = capsys.readouterr().err
    assert "(Panda): rate 20 Hz != 10 Hz; actions: 7 entries != 5 (x y z yaw gripper); " in line
    assert "state tcp_from_start [3]: nothing to take" in line
    assert "the file has object [10]" in line


def test_import_of_unnamed_actions_names_robot(
    exported: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, mapping = tmp_path / "so100", tmp_path / "map.yaml"
    copy_as_foreign(exported / "lerobot", folder, {"names": None})
    assert import_pixels(folder, tmp_path / "new") == 0
    assert "the data, of so100, do not name the entries of an action" in capsys.readouterr().out
    mapping.write_text("action: [0, 1, 2, 3, 4]\n")
    assert import_pixels(folder, tmp_path / "other", "--map", str(mapping)) == 0
    assert "so100, do not name" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("rewards", "judged", "last", "success"),
    [
        ([0.0, 1.0], None, 1.0, True),
        ([2.0, 1.0], None, 2.0, True),
        ([0.0, 0.0], None, 0.0, False),
        ([0.5, 1.0], False, 0.5, False),
        ([0.0, 1.0], True, 1.0, True),
        ([0.0, np.nan], True, 0.0, True),
        ([1.0, np.inf], None, 1.0, True),
        ([0.0, np.nan], None, 0.0, False),
    ],
)
def test_last_reward_is_used_in_success_if_finite(
    rewards: list[float], judged: bool | None, last: float, success: bool
) -> None:
    reward, found = without_last(np.array([0.0, *rewards]), judged)
    assert (reward.tolist(), found) == ([0.0, last], success)


@pytest.mark.parametrize("name", ["robomimic", "minari"])
def test_import_of_damaged_hdf5_names_the_data(
    exported: Path, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, out = tmp_path / "damaged", tmp_path / "new"
    shutil.copytree(exported / name, folder)
    (file,) = folder.rglob("*.hdf5")
    root, *groups = file.read_bytes().split(b"HEAP")  # HDF5's heaps of names, by group
    file.write_bytes(b"HEAP".join((root, b"HEAD".join(groups))))
    assert import_pixels(folder, out) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"serl: {folder}/")
    assert "bad local heap signature" in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("name", "value"), [("policy_version", np.nan), ("wall_s", 1e300), ("rewards", [0.0, 1.0])]
)
def test_import_refuses_numbers_that_no_log_holds(
    exported: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, value: object
) -> None:
    path = tmp_path / "demo.hdf5"
    shutil.copy(exported / "robomimic/demo.hdf5", path)
    with h5py.File(path, "r+") as file:
        demo = file["data/demo_0"]
        del demo[name]
        demo[name] = np.array([value] * 3, np.float64)
    assert import_pixels(path, tmp_path / "new") == 2
    error = capsys.readouterr().err
    assert f"episode 0: {name.replace('rewards', 'reward')}: expected " in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("name", FORMATS)
def test_episodes_of_images_alone_are_exported(tmp_path: Path, name: str) -> None:
    spec = pixel_spec()
    seen = spec.observation.model_copy(update={"state": {}})
    (before, *_) = record(tmp_path / "run", spec.model_copy(update={"observation": seen}))
    out = tmp_path / name
    assert main(["export", str(tmp_path / "run"), "--to", name, "--out", str(out)]) == 0
    first = next(format_module(name).read(out).episodes)
    assert {n: len(rows) for n, rows in first.observations.items()} == {"front": 4, "wrist": 4}
    np.testing.assert_array_equal(first.action, [step.action for step in before.steps])
    assert serl.open_run(tmp_path / "run").transitions().state.shape == (8, 0)


def test_export_refuses_view_with_name_of_state_array(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = pixel_spec()
    views = {"gripper": spec.observation.images["front"]}
    seen = spec.observation.model_copy(update={"images": views})
    record(tmp_path / "run", spec.model_copy(update={"observation": seen}))
    words = ["export", str(tmp_path / "run"), "--to", "minari", "--out", str(tmp_path / "out")]
    assert main(words) == 2
    assert "gripper names both a state array and a camera's view" in capsys.readouterr().err
