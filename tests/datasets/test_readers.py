"""LeRobot and robomimic read exports with their own readers, in an environment of their own."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest

from serl.cli.main import main
from serl.types import Episode

from .test_exchange import assert_near, pixel_spec, record, seen_in

PYTHON = Path(__file__).parents[2] / ".venv-bridges/bin/python"
READERS = Path(__file__).parent / "readers"

pytestmark = pytest.mark.bridges


def read(tmp_path: Path, name: str, file: str = "") -> tuple[list[Episode], dict[str, np.ndarray]]:
    """Record and export episodes; return them, and what the other program reads."""
    episodes = record(tmp_path / "recording", pixel_spec())
    out = tmp_path / name
    assert main(["export", str(tmp_path / "recording"), "--to", name, "--out", str(out)]) == 0
    saved = tmp_path / "read.npz"
    command = [PYTHON, READERS / f"{name}_reader.py", out / file, saved]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    with np.load(saved) as arrays:
        return episodes, dict(arrays)


def test_lerobot_reads_what_was_logged(tmp_path: Path) -> None:
    episodes, found = read(tmp_path, "lerobot")
    steps = [step for episode in episodes for step in episode.steps]
    assert found["totals"].tolist() == [3, 12, 10]
    flatten = pixel_spec().observation.flatten
    state = np.stack([flatten(step.observation) for step in steps])
    np.testing.assert_array_equal(found["observation.state"], state)
    actions = np.stack([step.action for step in steps])
    np.testing.assert_array_equal(found["action"], actions)
    rewards = [step.reward for step in steps]  # LeRobot makes float32 of each number
    np.testing.assert_allclose(found["next.reward"], rewards, atol=1e-6)
    assert found["next.terminated"].tolist() == [step.terminated for step in steps]
    assert found["next.truncated"].tolist() == [step.truncated for step in steps]
    assert found["source"].tolist() == [step.source.value for step in steps]
    assert set(found["task"].tolist()) == {"pick cube"}
    for camera in ("front", "wrist"):
        images = 255 * found[f"observation.images.{camera}"].transpose(0, 2, 3, 1)
        for image, step in zip(images, steps, strict=True):
            assert_near(image, step.observation.images[camera])
    np.testing.assert_allclose(found["stats/action"], actions.mean(0), atol=1e-6)


def test_robomimic_reads_what_was_logged(tmp_path: Path) -> None:
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
