"""Test which imported episodes a run learns from, and which data sets an import refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from serl.cli.main import main
from serl.runs.demonstrations import read_demonstrations
from serl.runs.settings import run_settings

from .test_exchange import FORMATS


@pytest.fixture(scope="module")
def expert_recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Record two demonstrations of the scripted expert."""
    folder = tmp_path_factory.mktemp("expert") / "recording"
    assert main(["record", "reach", "--demos", "2", "--out", str(folder)]) == 0
    return folder


@pytest.mark.parametrize("name", FORMATS)
def test_exported_and_imported_demonstrations_of_expert_demonstrate(
    expert_recording: Path, tmp_path: Path, name: str
) -> None:
    out = tmp_path / "imported"
    assert main(["export", str(expert_recording), "--to", name, "--out", str(tmp_path / name)]) == 0
    words = ["demos", "import", str(tmp_path / name), "--task", "reach", "--out", str(out)]
    assert main(words) == 0
    config = run_settings("reach", {}, {"demo_paths": [out]})
    lengths = [len(each.steps) for each in read_demonstrations(expert_recording, config)]
    assert len(lengths) == 2
    assert [len(each.steps) for each in read_demonstrations(out, config)] == lengths
