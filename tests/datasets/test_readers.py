"""Test exchange with LeRobot and robomimic, which run in an environment of their own."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from serl.cli.main import main
from serl.log.episode_reader import episode_paths, read_episode
from serl.types import Episode

from .test_exchange import assert_near, import_pixels, pixel_spec, record, seen_in

PYTHON = Path(__file__).parents[2] / ".venv-bridges/bin/python"
READERS = Path(__file__).parent / "readers"

pytestmark = pytest.mark.bridges


def run(script: str, *arguments: Path) -> None:
    """Run a script with the Python of `.venv-bridges`."""
    command = [PYTHON, READERS / script, *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def read(tmp_path: Path, name: str, file: str = "") -> tuple[list[Episode], dict[str, np.ndarray]]:
    """Record and export episodes; return them with the arrays that the other program reads."""
    episodes = record(tmp_path / "recording", pixel_spec())
    out = tmp_path / name
    assert main(["export", str(tmp_path / "recording"), "--to", name, "--out", str(out)]) == 0
    saved = tmp_path / "read.npz"
    run(f"{name}_reader.py", out / file, saved)
    with np.load(saved) as arrays:
        return episodes, dict(arrays)


def test_lerobot_reads_exported_values(tmp_path: Path) -> None:
    episodes, found = read(tmp_path, "lerobot")
    steps = [step for episode in episodes for step in episode.steps]
    assert found["totals"].tolist() == [3, 12, 10]
    flatten = pixel_spec().observation.flatten
    state = np.stack([flatten(step.observation) for step in steps])
    np.testing.assert_array_equal(found["observation.state"], state)
    actions = np.stack([step.action for step in steps])
    np.testing.assert_array_equal(found["action"], actions)
    requested = np.stack([step.requested for step in steps])
    np.testing.assert_array_equal(found["requested_action"], requested)
    rewards = [step.reward for step in steps]  # LeRobot converts numbers to float32
    np.testing.assert_allclose(found["next.reward"], rewards, atol=1e-6)
    assert found["next.terminated"].tolist() == [step.terminated for step in steps]
    assert found["next.truncated"].tolist() == [step.truncated for step in steps]
    ends = [step is each.steps[-1] and each.success for each in episodes for step in each.steps]
    assert found["next.success"].tolist() == ends
    assert sum(ends) == 1
    assert found["source"].tolist() == [step.source.value for step in steps]
    assert set(found["task"].tolist()) == {"pick cube"}
    for camera in ("front", "wrist"):
        images = 255 * found[f"observation.images.{camera}"].transpose(0, 2, 3, 1)
        for image, step in zip(images, steps, strict=True):
            assert_near(image, step.observation.images[camera])
    np.testing.assert_allclose(found["stats/action"], actions.mean(0), atol=1e-6)


def test_robomimic_reads_exported_values(tmp_path: Path) -> None:
    episodes, found = read(tmp_path, "robomimic", "demo.hdf5")
    steps = [step for episode in episodes for step in episode.steps]
    assert (found["env"].item(), found["successes"].item()) == ("pick_cube", 3)
    np.testing.assert_array_equal(found["actions"], np.stack([step.action for step in steps]))
    rewards = np.array([step.reward for step in steps])
    np.testing.assert_allclose(found["rewards"].reshape(-1), rewards, atol=1e-6)
    dones = [step.terminated or step.truncated for step in steps]
    assert found["dones"].reshape(-1).astype(bool).tolist() == dones
    for group, part in (("obs", slice(-1)), ("next_obs", slice(1, None))):
        seen = [each for episode in episodes for each in seen_in(episode)[part]]
        pixels = np.stack([each.images["front"] for each in seen])
        np.testing.assert_array_equal(found[f"{group}/front_image"], pixels)
        state = np.stack([each.state["tcp_from_start"] for each in seen])
        np.testing.assert_array_equal(found[f"{group}/tcp_from_start"], state)


def test_import_reads_demonstrations_written_by_lerobot(tmp_path: Path) -> None:
    """LeRobot joins the videos of all episodes into one file, by default AV1."""
    spec = pixel_spec()
    episodes = record(tmp_path / "recording", spec)
    steps = [step for episode in episodes for step in episode.steps]
    rows: dict[str, Any] = {
        "observation.state": np.stack([spec.observation.flatten(s.observation) for s in steps]),
        "action": np.stack([step.action for step in steps]),
    }
    for name in spec.observation.images:
        images = np.stack([step.observation.images[name] for step in steps])
        rows[f"observation.images.{name}"] = images
    ends = np.cumsum([len(episode.steps) for episode in episodes])
    np.savez(tmp_path / "rows.npz", ends=ends, names=np.array(spec.action_names), **rows)
    run("lerobot_writer.py", tmp_path / "rows.npz", tmp_path / "cubes")
    assert len(list((tmp_path / "cubes").glob("videos/*front/*/*.mp4"))) == 1
    assert import_pixels(tmp_path / "cubes", tmp_path / "demos") == 0
    imported = [read_episode(path, spec) for path in episode_paths(tmp_path / "demos")]
    for before, after in zip(episodes, imported, strict=True):
        assert after.success
        assert len(after.steps) == len(before.steps) - 1  # the last frame is the final observation
        for mine, other in zip(before.steps, seen_in(after), strict=True):
            flatten = spec.observation.flatten
            np.testing.assert_array_equal(flatten(other), flatten(mine.observation))
            for name, image in mine.observation.images.items():
                assert_near(other.images[name], image)
        for mine, step in zip(before.steps, after.steps, strict=False):
            np.testing.assert_array_equal(step.action, mine.action)
