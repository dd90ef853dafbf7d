from __future__ import annotations

import re
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from serl.cli.reward import reward_settings
from serl.datasets.recording_session import RecordingSession, write_session
from serl.datasets.reward_audit import tuned_reward
from serl.geometry import Vector
from serl.reward import RewardConfig
from serl.runs.config import resolve
from serl.runs.folder import RunFolder
from serl.runs.settings import run_settings

UP_M = (-1.0, -1.0, 0.15)
MODEL = Path("m.safetensors")


def make_run(root: Path, **settings: Any) -> RunFolder:
    run = RunFolder.create(root, resolve({"task": "pick_cube"}, settings), datetime.now())
    run.episodes("a").mkdir(parents=True)
    return run


def make_recording(root: Path, **settings: Any) -> RunFolder:
    run = make_run(root, **settings)
    write_session(run.path, RecordingSession(purpose="reward", wanted={"positives": 2}))
    return run


@pytest.mark.parametrize(
    ("task", "low_m"),
    [
        ("bin_relocation_backward", (-1.0, -1.0, 0.09)),
        ("bin_relocation_forward", (-1.0, -1.0, 0.09)),
        ("pick_cube", UP_M),
        ("pick_cube_of_somebody_else", None),
        ("reach", None),
        ("pick", None),
        ("", None),
    ],
)
def test_audit_uses_reward_settings_tuned_for_task(
    tmp_path: Path, task: str, low_m: Vector | None
) -> None:
    assert tuned_reward([tmp_path], task).tool_low_m == low_m
    audited = reward_settings(MODEL, [tmp_path], task, {})
    assert (audited.tool_low_m, audited.model) == (low_m, MODEL)


def test_run_settings_take_precedence_over_tuned_reward(tmp_path: Path) -> None:
    anywhere = make_run(tmp_path / "1", reward={"tool_low_m": None, "hold": [2, 3]})
    found = tuned_reward([anywhere.episodes("a")], "pick_cube")
    assert (found.tool_low_m, found.hold) == (None, (2, 3))
    lower = {"task_config": {"lift_m": 0.05}}
    run = RunFolder.create(tmp_path / "2", run_settings("pick_cube", {}, lower), datetime.now())
    found = tuned_reward([run.episodes("a")], "pick_cube")
    assert found.tool_low_m == pytest.approx((-1.0, -1.0, 0.1))


def test_recording_uses_tuned_reward_unless_configured_otherwise(tmp_path: Path) -> None:
    """A recording's default settings do not override the tuned settings of the task."""
    run = make_recording(tmp_path / "1")
    assert run.config.reward.tool_low_m is None
    assert reward_settings(MODEL, [run.episodes("a")], "pick_cube", {}).tool_low_m == UP_M
    lower = make_recording(tmp_path / "2", task_config={"lift_m": 0.05})
    found = tuned_reward([lower.episodes("a")], "pick_cube")
    assert found.tool_low_m == pytest.approx((-1.0, -1.0, 0.1)), "settings follow the task variant"
    own = make_recording(tmp_path / "3", reward={"tool_low_m": (-1.0, -1.0, 0.3)})
    assert tuned_reward([own.episodes("a")], "pick_cube").tool_low_m == (-1.0, -1.0, 0.3)
    arm = make_recording(tmp_path / "4", robot="franka", task_config={"lift_m": 0.05})
    for folder in (arm.episodes("a"), arm.path):  # a person's collection lies in the folder itself
        assert tuned_reward([folder], "pick_cube").tool_low_m is None, "a real arm has no height"


def test_collection_for_a_task_that_declares_a_classifier_has_no_place(tmp_path: Path) -> None:
    """The file of the classifier is trained from this collection."""
    text = (Path(__file__).parents[2] / "docs/examples/ram.yaml").read_text()
    task = tmp_path / "ram.yaml"
    task.write_text(re.sub(r"reward: \{.*\}", "reward: {kind: classifier, hold: [2, 3]}", text))
    run = make_recording(tmp_path / "1", task=str(task), robot="franka")
    assert tuned_reward([run.path], "ram") == RewardConfig(hold=(2, 3))
