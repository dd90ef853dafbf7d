"""`serl teleop` and `serl console`, as far as they need neither devices nor ROS."""

from __future__ import annotations

import builtins
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from serl import cli, teleop_commands
from serl.errors import BadInput
from serl.teleop.mapping import Wish


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["teleop"], "give the folder of a run, or --check"),
        (
            ["teleop", "--check", "--device", "keyboard", "--path", "nothing"],
            "nothing" if find_spec("evdev") else "needs the package evdev",
        ),
        (["teleop", "--check", "--device", "spacemouse"], "no SpaceMouse found"),
        (["console", "nothing"], "found no folder"),
        (["teleop", "nothing", "--device", "spacemouse"], "no SpaceMouse found"),
    ],
)
def test_what_is_not_there_is_one_line(
    words: list[str], line: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("serl.teleop.spacemouse.FOLDER", Path("/nowhere"))
    monkeypatch.setattr("serl.teleop.spacemouse._find", lambda: [])
    assert cli.main(words) == cli.BAD_INPUT
    error = capsys.readouterr().err
    assert line in error
    assert error.count("\n") == 1


def test_without_its_package_the_console_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any, **more: Any) -> Any:
        if name == "aiohttp":
            raise ImportError
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(BadInput, match=r'pip install "serl\[console\]"'):
        teleop_commands.require_console()


def test_a_check_shows_axes_and_hands() -> None:
    console = Console(width=80, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    wish = Wish((1.0, -0.5, 0, 0, 0, 0, 0), True, ())
    console.print(teleop_commands.picture("pad", wish, ["south"]))
    lines = console.export_text().splitlines()
    assert "hands on" in lines[0]
    assert lines[1].split()[-1] == "+1.00"
    assert lines[1].rstrip(" +1.0").endswith("●")
    assert lines[2].split()[-1] == "-0.50"
    assert "south" in lines[8]
