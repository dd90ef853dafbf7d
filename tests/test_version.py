from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from serl import version as module
from serl.runs.config import resolve
from serl.runs.folder import RunFolder
from serl.version import commit

from .report.test_stages import make_run


@pytest.fixture(autouse=True)
def _fresh() -> None:
    commit.cache_clear()


def place_module_in_repository(root: Path, monkeypatch: pytest.MonkeyPatch, *folders: str) -> None:
    """Pretend that the module lies in `folders` of a repository with one commit."""
    path = root.joinpath(*folders, "version.py")
    path.parent.mkdir(parents=True)
    path.write_text("x = 1\n")
    for words in (
        ("init", "-q"),
        ("add", "."),
        ("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "first"),
    ):
        subprocess.run(["git", "-C", str(root), *words], check=True)
    monkeypatch.setattr(module, "__file__", str(path))


def test_commit_of_checkout_is_marked_dirty_after_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place_module_in_repository(tmp_path, monkeypatch, "serl")
    assert re.fullmatch(r"[0-9a-f]{7,}", clean := commit())
    commit.cache_clear()
    (tmp_path / "serl/version.py").write_text("x = 2\n")
    assert commit() == f"{clean}-dirty"


def test_package_installed_inside_other_repository_has_no_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place_module_in_repository(tmp_path, monkeypatch, "env", "site-packages", "serl")
    assert commit() == ""


def test_commit_is_empty_without_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place_module_in_repository(tmp_path, monkeypatch, "serl")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert commit() == ""


def test_run_stores_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place_module_in_repository(tmp_path / "code", monkeypatch, "serl")
    run = RunFolder.open(make_run(tmp_path).path)
    assert run.info.versions["commit"] == commit()
    assert run.config == resolve(run.config.model_dump())
