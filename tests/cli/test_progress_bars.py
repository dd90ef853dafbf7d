"""Bars and messages of commands that take more than two seconds."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

import pytest
from rich.console import Console

from serl.cli import main as cli

from ..runs.test_deployment import trained
from .conftest import Serl

VIEWS = "--task_config.views={front: {width: 16, height: 16}, wrist: {width: 16, height: 16}}"
COLLECT = "reward collect pick_cube --positives 30 --negatives 30 --out images"
QUICK = "--epochs 2 --threads 1 --out"
SHOWN = {
    "export RUN --to onnx": "exporting the policy",
    "record reach --demos 6 --out demos": "demonstrations .* 6/6",
    "export demos --to lerobot --out set --push-to-hub lab/set": "uploading to lab/set",
    COLLECT: "labelled images .* 60/60",
    f"reward train images {QUICK} reward.safetensors": r"epochs, loss \d\.\d{4} .* 2/2",
    f"reward progress reach demos {QUICK} progress.safetensors": r"epochs, loss \d\.\d{4} .* 2/2",
    f"encoder pretrain pick_cube --samples 100 --channels [4] {QUICK} encoder.safetensors": (
        r"epochs, loss \d\.\d{4} .* 2/2"
    ),
}


def test_long_commands_show_bar_with_total_or_message_on_terminal(
    serl: Serl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = partial(Console, force_terminal=True, width=100, color_system=None)
    monkeypatch.setattr("serl.report.display.Console", terminal)
    monkeypatch.setattr("serl.datasets.export.check_token", lambda: None)
    monkeypatch.setattr("serl.datasets.export.push", lambda *given: "https://hub/lab/set")
    run = trained(tmp_path, 100)
    for command, shown in SHOWN.items():
        words = command.replace("RUN", str(run.path)).split()
        code, text, errors = serl(*words, *([VIEWS] if "pick_cube" in words else []))
        assert code == cli.DONE, errors
        assert re.search(shown, text), command
