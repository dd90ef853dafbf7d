"""Files of robomimic with ambiguous names, or made to exhaust or mislead the reader."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest

from serl.cli.main import main
from serl.datasets import robomimic_format
from serl.errors import CorruptData
from serl.log.episode_reader import episode_paths, read_episode
from serl.runs.config import resolve
from serl.runs.task_setup import make_spec, make_task

from .test_exchange import record


def test_robomimic_reader_separates_states_and_images_of_similar_names(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "demo.hdf5", "w") as file:
        group = file.create_group("data/demo_0")
        group["actions"], group["rewards"], group["dones"] = np.zeros((3, 2)), [0.0] * 3, [0] * 3
        group["obs/front"], group["obs/front_image"] = np.zeros((3, 4)), np.ones((3, 2, 2, 3))
        group["obs/in_image"], group["obs/side_image"] = np.zeros((3, 2)), np.ones((3, 2, 2, 3))
    (episode,) = robomimic_format.read(tmp_path / "demo.hdf5").episodes
    shapes = {name: rows.ndim for name, rows in episode.observations.items()}
    assert shapes == {"front": 2, "front_image": 4, "in_image": 2, "side": 4}


@pytest.mark.parametrize("kind", ["large", "foreign", "group"])
def test_hostile_robomimic_file_is_refused_in_one_line(tmp_path: Path, kind: str) -> None:
    path, other = tmp_path / "demo.hdf5", tmp_path / "other.hdf5"
    with h5py.File(other, "w") as file:
        file["x"] = np.zeros((6, 2))
    with h5py.File(path, "w") as file:
        group = file.create_group("data/demo_0")
        group["actions"], group["rewards"], group["dones"] = np.zeros((5, 2)), [0.0] * 5, [0] * 5
        seen = group.create_group("obs")
        if kind == "large":
            seen.create_dataset(
                "x", (10**12, 2), np.float32, chunks=(1024, 2)
            )  # takes no space on disk
        elif kind == "foreign":
            seen["x"] = h5py.ExternalLink(other.name, "/x")
        else:
            seen.create_group("x")
    with pytest.raises(CorruptData, match=r"demo\.hdf5: ") as refused:
        list(robomimic_format.read(path).episodes)
    assert str(refused.value).count("\n") == 0


@pytest.mark.parametrize("complete", [True, False])
@pytest.mark.parametrize(
    ("rewards", "last", "cut"),
    [
        ([0.0, 2.0, 1.0], 1.0, 2.0),
        ([0.0, 2.0, 0.0], None, 2.0),
        ([0.0] * 3, None, None),
    ],
)
def test_reward_of_last_row_of_foreign_robomimic_decides_success(
    tmp_path: Path, rewards: list[float], last: float | None, cut: float | None, complete: bool
) -> None:
    with h5py.File(tmp_path / "demo.hdf5", "w") as file:
        group = file.create_group("data/demo_0")
        group["actions"], group["rewards"], group["dones"] = np.zeros((3, 2)), rewards, [0, 0, 1]
        group["obs/x"] = np.zeros((3, 4))
        if complete:
            group["next_obs/x"] = np.zeros((3, 4))
    (episode,) = robomimic_format.read(tmp_path / "demo.hdf5").episodes
    expected = last if complete else cut
    assert len(episode) == len(episode.reward) == (3 if complete else 2)
    assert (episode.success, episode.reward[-1]) == (expected is not None, expected or 0.0)
    assert episode.terminated == (complete or expected is not None)  # a failure that was done


@pytest.mark.parametrize("given", ["demo.h5", "."])
def test_import_reads_robomimic_file_with_short_ending(tmp_path: Path, given: str) -> None:
    home, out = tmp_path / "robomimic", tmp_path / "imported"
    task = make_spec(make_task(resolve({"task": "reach"})))
    (before, *_) = record(tmp_path / "recording", task)
    words = ["export", str(tmp_path / "recording"), "--to", "robomimic", "--out", str(home)]
    assert main(words) == 0
    (home / "demo.hdf5").rename(home / "demo.h5")
    words = ["demos", "import", str(home / given), "--task", "reach", "--out", str(out)]
    assert main(words) == 0
    (path,) = episode_paths(out)
    after = read_episode(path, task)
    assert [step.reward for step in after.steps] == [step.reward for step in before.steps]
