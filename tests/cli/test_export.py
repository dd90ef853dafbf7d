"""Files that `serl export` does not replace, and options that do not apply to a format."""

from __future__ import annotations

from pathlib import Path

import pytest

from ..test_api import trained
from .conftest import Serl, refused


def test_export_of_policy_replaces_only_file_at_default_path(serl: Serl, tmp_path: Path) -> None:
    pytest.importorskip("onnx", reason="pip install 'serl[export]'")
    run = trained(tmp_path / "runs")
    notes = tmp_path / "keep.txt"
    notes.write_text("kept")
    line = refused(serl, "export", run.path, "--to", "onnx", "--out", notes)
    assert f"{notes}: exists; give another --out" in line
    assert notes.read_text() == "kept"
    (run.path / "policy.onnx").write_text("an older policy")
    code, _, errors = serl("export", run.path, "--to", "onnx")
    assert (code, errors) == (0, "")
    assert (run.path / "policy.onnx").stat().st_size > 1000


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("rerun", "--checkpoint=0"), "--checkpoint selects a policy; --to rerun exports episodes"),
        (("onnx", "--successes"), "--successes selects episodes; --to onnx exports the policy"),
    ],
)
def test_export_refuses_option_of_another_format(
    serl: Serl, tmp_path: Path, words: tuple[str, ...], line: str
) -> None:
    assert f"export: {line}" in refused(serl, "export", "RUN", "--to", *words, "--out", "new")
    assert not list(tmp_path.iterdir())
