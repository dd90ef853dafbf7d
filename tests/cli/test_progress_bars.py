"""Bars and messages of commands that take more than two seconds."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from serl.cli import main as cli
from serl.runs.config import parse_overrides
from serl.runs.settings import run_settings

from ..runs.test_deployment import trained
from .conftest import Serl

VIEWS = "{front: {width: 16, height: 16}, wrist: {width: 16, height: 16}}"
PRETRAIN = "encoder pretrain pick_cube --samples 100 --channels [4] --epochs 2 --threads 1"
SHOWN = {
    "export RUN --to onnx": "exporting the policy",
    "record reach --demos 2 --out demos": "demonstrations .* 2/2",
    "export demos --to lerobot --out set --push-to-hub lab/set": "uploading to lab/set",
    f"{PRETRAIN} --out encoder.safetensors": r"epochs, loss \d\.\d{4} .* 2/2",
}


@pytest.mark.usefixtures("terminal")
def test_long_commands_show_bar_with_total_or_message_on_terminal(
    serl: Serl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("serl.datasets.export.check_token", lambda: None)
    monkeypatch.setattr("serl.datasets.export.push", lambda *given: "https://hub/lab/set")
    run = trained(tmp_path, 100)
    for command, shown in SHOWN.items():
        words = command.replace("RUN", str(run.path)).split()
        views = [f"--task_config.views={VIEWS}"] if "pick_cube" in words else []
        code, text, errors = serl(*words, *views)
        assert code == cli.DONE, errors
        assert re.search(shown, text), command


def test_command_after_pretraining_trains_with_the_encoder(
    serl: Serl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Widths of the encoder differ from the agent's defaults."""
    monkeypatch.chdir(tmp_path)
    words = [*PRETRAIN.split(), "--latent=8", f"--task_config.views={VIEWS}"]
    code, text, errors = serl(*words, "--out", "encoder.safetensors")
    assert code == cli.DONE, errors
    _, _, task, *more = shlex.split(text.partition("next: ")[2])
    agent = run_settings(task, {}, parse_overrides(more)).agent
    assert (agent.encoder_channels, agent.latent) == ((4,), 8)
    assert agent.encoder_weights == tmp_path / "encoder.safetensors"
