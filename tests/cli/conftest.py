"""Fixtures that run `serl` commands in an empty folder."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from functools import partial
from pathlib import Path

import pytest
from rich.console import Console

from serl.cli import main as cli
from serl.runs.assembly import make_agent
from serl.runs.config import resolve
from serl.runs.folder import RunFolder
from serl.runs.task_setup import make_spec, make_task

TINY = {"hidden": [8, 8], "device": "cpu", "threads": 1}
Serl = Callable[..., tuple[int, str, str]]


@pytest.fixture
def serl(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Serl:
    """Return a function that runs a command in an empty folder: exit code, output, errors."""
    monkeypatch.chdir(tmp_path)

    def run(*words: object) -> tuple[int, str, str]:
        capfd.readouterr()
        code = cli.main([str(word) for word in words])
        captured = capfd.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Show bars and messages of long commands as on a terminal of 100 columns."""
    made = partial(Console, force_terminal=True, width=100, color_system=None)
    monkeypatch.setattr("serl.report.display.Console", made)


def refused(serl: Serl, *words: object) -> str:
    """Check that a command is refused with one line; return the line."""
    code, _, errors = serl(*words)
    assert code == cli.BAD_INPUT
    assert errors.count("\n") == 1, errors
    assert errors.startswith("serl: ")
    return errors


def make_run(root: Path, **settings: object) -> RunFolder:
    config = resolve({"task": "reach", "demos": 0, "agent": TINY}, settings)
    return RunFolder.create(root / "runs", config, datetime.now())


def save_checkpoint(run: RunFolder, step: int = 100) -> Path:
    agent = make_agent(run.config, make_spec(make_task(run.config)), 0)
    return run.save_checkpoint(step, {"actor": agent.actor_weights()}, {})
