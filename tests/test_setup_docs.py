"""The commands of docs/setup.md are understood; what they do is tested beside their code."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from serl import cli
from serl.camera_command import _opener, _view
from serl.config import parse_overrides
from serl.guard_command import place_of
from serl.plugins import load
from serl.settings import run_settings

PAGE = (Path(__file__).parents[1] / "docs/setup.md").read_text(encoding="utf-8")
COMMANDS = [
    shlex.split(line, comments=True)[1:]
    for block in re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL)
    for line in block.splitlines()
    if line.startswith("serl ")
]


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_command_is_understood(words: list[str]) -> None:
    options, rest = cli._parser().parse_known_args(words)
    if options.command == "train":
        settings = {**parse_overrides(rest), "robot": "franka"}
        assert run_settings(options.task, {}, settings).robot == "franka"
    else:
        assert rest == []
    if options.command == "camera":
        assert _opener(options) is not None
        assert (_view(options) is not None) == (options.resize is not None)
    if options.command == "setup":
        place_of(load("robot", "sim"), options.namespace)


def test_the_page_names_every_step() -> None:
    pytest.importorskip("rclpy")
    from serl.ros.setup_steps import STEPS

    for step in STEPS:
        assert f"| {step.name} |" in PAGE


def test_there_are_commands() -> None:
    assert {words[0] for words in COMMANDS} == {"sim", "setup", "guard", "camera", "train"}
