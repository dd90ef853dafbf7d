"""The commands of docs/setup.md are understood; what they do is tested beside their code."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import yaml

from serl.arm_profile import ArmProfile, write_robot
from serl.cli import main as cli
from serl.cli.camera import _opener, _view
from serl.plugins import load
from serl.runs.config import parse_overrides
from serl.runs.guard_setup import guard_of, place_of
from serl.runs.settings import run_settings
from serl.system.settings_file import checked
from serl.workspace import Workspace

PAGE = (Path(__file__).parents[1] / "docs/setup.md").read_text(encoding="utf-8")
PLACE = {
    "workspace": Workspace(
        low_m=(0.3, -0.2, 0), high_m=(0.7, 0.2, 0.4), home_m=(0.5, 0, 0.2), reference=(1, 0, 0, 0)
    )
}
COMMANDS = [
    shlex.split(line, comments=True)[1:]
    for block in re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL)
    for line in block.splitlines()
    if line.startswith("serl ")
]


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_command_is_understood(words: list[str], tmp_path: Path) -> None:
    options = cli.parse(words)
    if options.command == "train":
        taught = str(tmp_path / "right.yaml")  # by `serl setup`
        write_robot(tmp_path / "right.yaml", load("robot", "franka").model_copy(update=PLACE))
        settings = {**parse_overrides(options.overrides), "robot": taught}
        assert run_settings(options.task, {}, settings).robot == taught
    else:
        assert options.overrides == []
    if options.command == "camera":
        assert _opener(options) is not None
        assert (_view(options) is not None) == (options.resize is not None)
    if options.command == "setup":
        place_of(load("robot", "sim"), options.namespace)


def test_the_workspace_of_the_page_is_one_that_a_guard_takes() -> None:
    (text,) = re.findall(r"```yaml\n(workspace:.*?)```", PAGE, re.DOTALL)
    taught = checked(ArmProfile, {**load("robot", "franka").model_dump(), **yaml.safe_load(text)})
    assert guard_of(taught).motion.box_high_m == (0.65, 0.25, 0.35)


def test_the_page_names_every_step() -> None:
    pytest.importorskip("rclpy")
    from serl.ros.setup.steps import STEPS

    for step in STEPS:
        assert f"| {step.name} |" in PAGE


def test_there_are_commands() -> None:
    assert {words[0] for words in COMMANDS} == {"sim", "setup", "guard", "camera", "train"}
