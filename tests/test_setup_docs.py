"""The commands of docs/setup.md and of a first lab are understood; other tests run their code."""

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
def taught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The profile that `serl setup` writes, in the current folder."""
    monkeypatch.chdir(tmp_path)
    write_robot(tmp_path / "right.yaml", load("robot", "franka").model_copy(update=PLACE))
    return tmp_path / "right.yaml"


def trained_by(options: argparse.Namespace, taught: Path, **others: Any) -> TrainConfig:
    settings = {**parse_overrides(options.overrides), "robot": str(taught), **others}
    return run_settings(options.task, {}, settings)


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_command_is_understood(words: list[str], taught: Path) -> None:
    options = cli.parse(words)
    if options.command == "train":
        assert trained_by(options, taught, demo_paths=(), demos=0).robot == str(taught)
    elif options.command == "record":
        assert persons_folder(options, {}).config.robot == str(taught)
    else:
        assert getattr(options, "overrides", []) == []
    if options.command == "camera":
        assert _opener(options) is not None
        assert (_view(options) is not None) == (options.resize is not None)
    if options.command == "setup":
        place_of(load("robot", "sim"), options.namespace)


def test_a_first_lab_trains_on_what_it_recorded(taught: Path) -> None:
    by_name = {words[0]: cli.parse(words) for words in COMMANDS if "demos" in words}
    recorded = persons_folder(by_name["record"], {})
    assert recorded.path.name == parse_overrides(by_name["train"].overrides)["demo_paths"][0]
    configs = recorded.config, trained_by(by_name["train"], taught, demo_paths=(), demos=0)
    before, now = (make_spec(make_rewarded_task(config)) for config in configs)
    assert (before.observation, before.action) == (now.observation, now.action)


def test_the_workspace_of_the_page_is_one_that_a_guard_takes() -> None:
    (text,) = re.findall(r"```yaml\n(workspace:.*?)```", PAGE, re.DOTALL)
    taught = checked(ArmProfile, {**load("robot", "franka").model_dump(), **yaml.safe_load(text)})
    assert workspace_guard(taught).motion.box_high_m == (0.65, 0.25, 0.35)


def test_the_page_names_every_step() -> None:
    pytest.importorskip("rclpy")
    from serl.ros.setup.steps import STEPS

    for step in STEPS:
        assert f"| {step.name} |" in PAGE


def test_there_are_commands() -> None:
    assert {words[0] for words in COMMANDS} == {
        *("setup", "guard", "camera", "train"),
        *("doctor", "record", "run", "verify"),
    }
