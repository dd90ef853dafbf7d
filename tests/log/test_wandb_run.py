"""Metrics for Weights & Biases, written by its own package without a server."""

from __future__ import annotations

from pathlib import Path

import pytest

from serl.errors import BadInput
from serl.log import wandb_run
from serl.log.metrics import EpisodeRow, MetricsWriter
from serl.runs.settings import run_settings


def test_without_the_package_a_run_is_refused_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(wandb_run, "find_spec", lambda name: None)
    with pytest.raises(BadInput, match=r"pip install 'serl\[wandb\]'"):
        run_settings("reach", {}, {"log": {"wandb": "offline"}})


@pytest.mark.slow
def test_the_metrics_of_a_run_are_in_its_file(tmp_path: Path) -> None:
    pytest.importorskip("wandb", reason="pip install 'serl[wandb]'")
    row = EpisodeRow("actor0", 0, 10, True, False, 1.0, 0, 0, "success", 1.0, 0)
    with MetricsWriter(tmp_path / "reach" / "one", wandb="offline") as metrics:
        metrics.write(10, row)
        metrics.write(25, row)
    (file,) = tmp_path.rglob("*.wandb")
    content = file.read_bytes()  # records of protobuf, not compressed
    for name in (b"episode/reward", b"episode/length", b"steps", b"reach-one"):
        assert name in content
