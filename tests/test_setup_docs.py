"""Commands of docs/setup.md and docs/status.md are valid; other tests run their code."""

from __future__ import annotations

import argparse
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from serl.arm_profile import ArmProfile, write_robot
from serl.cli import main as cli
from serl.cli.camera import _opener, _view
from serl.cli.record import persons_folder
from serl.plugins import load
from serl.runs.config import TrainConfig, parse_overrides
from serl.runs.guard_setup import place_of, workspace_guard
from serl.runs.settings import run_settings
from serl.runs.task_setup import make_rewarded_task, make_spec
from serl.system.settings_file import checked
from serl.workspace import Workspace

DOCS = Path(__file__).parents[1] / "docs"
PAGE = (DOCS / "setup.md").read_text(encoding="utf-8")
LAB = (DOCS / "status.md").read_text(encoding="utf-8")
PLACE = {
    "workspace": Workspace(
        low_m=(0.3, -0.2, 0), high_m=(0.7, 0.2, 0.4), home_m=(0.5, 0, 0.2), reference=(1, 0, 0, 0)
    )
}
COMMANDS = [
    shlex.split(line, comments=True)[1:]
    for block in re.findall(r"```bash\n(.*?)```", PAGE + LAB, re.DOTALL)
    for line in block.splitlines()
    if line.startswith("serl ")
]


@pytest.fixture
def taught_profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write a profile as `serl setup` does, in the current folder."""
    monkeypatch.chdir(tmp_path)
    write_robot(tmp_path / "right.yaml", load("robot", "franka").model_copy(update=PLACE))
    return tmp_path / "right.yaml"


def config_of(options: argparse.Namespace, taught_profile: Path, **others: Any) -> TrainConfig:
    settings = {**parse_overrides(options.overrides), "robot": str(taught_profile), **others}
    return run_settings(options.task, {}, settings)


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_command_of_setup_pages_is_valid(words: list[str], taught_profile: Path) -> None:
    options = cli.parse(words)
    if options.command == "train":
        assert config_of(options, taught_profile, demo_paths=(), demos=0).robot == str(
            taught_profile
        )
    elif options.command == "record":
        assert persons_folder(options, {}).config.robot == str(taught_profile)
    else:
        assert getattr(options, "overrides", []) == []
    if options.command == "camera":
        assert _opener(options) is not None
        assert (_view(options) is not None) == (options.resize is not None)
    if options.command == "setup":
        place_of(load("robot", "sim"), options.namespace)


def test_training_of_first_lab_fits_its_recorded_demonstrations(taught_profile: Path) -> None:
    by_name = {words[0]: cli.parse(words) for words in COMMANDS if "demos" in words}
    recorded = persons_folder(by_name["record"], {})
    assert recorded.path.name == parse_overrides(by_name["train"].overrides)["demo_paths"][0]
    configs = recorded.config, config_of(by_name["train"], taught_profile, demo_paths=(), demos=0)
    before, now = (make_spec(make_rewarded_task(config)) for config in configs)
    assert (before.observation, before.action) == (now.observation, now.action)


def test_workspace_of_setup_page_is_accepted_by_guard() -> None:
    (text,) = re.findall(r"```yaml\n(workspace:.*?)```", PAGE, re.DOTALL)
    taught_profile = checked(
        ArmProfile, {**load("robot", "franka").model_dump(), **yaml.safe_load(text)}
    )
    assert workspace_guard(taught_profile).motion.box_high_m == (0.65, 0.25, 0.35)


def test_setup_page_names_every_step() -> None:
    pytest.importorskip("rclpy")
    from serl.ros.setup.steps import STEPS

    for step in STEPS:
        assert f"| {step.name} |" in PAGE


def test_setup_pages_contain_expected_commands() -> None:
    assert {words[0] for words in COMMANDS} == {
        *("setup", "guard", "camera", "train"),
        *("doctor", "order", "record", "run", "verify"),
    }
