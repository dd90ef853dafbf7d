"""Plug-in files in a working folder outside the tree, and a package that provides them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from serl import plugins

HERE = Path(__file__).parent
KINDS = {
    "task": ("near", "near"),
    "robot": ("my_arm", "my_arm"),
    "agent": ("td3", "td3:TD3"),
    "device": ("pad", "pad"),
    "person": ("lazy_person", "lazy_person:Lazy"),
    "transport": ("spool", "spool"),
    "reward": ("high_reward", "high_reward:High"),
}


def install(folder: Path, package: str, entries: str, **modules: str) -> None:
    """Create the files that `pip install --target` writes for a package, except RECORD."""
    info = folder / f"{package}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(entries)
    for name, text in modules.items():
        (folder / f"{name}.py").write_text(text)


@pytest.fixture
def outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a working folder that holds only the plug-in files, without a clone of serl."""
    for name, _ in KINDS.values():
        shutil.copy(HERE / f"{name}.py", tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def lab(outside: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Install these files as a package with one plug-in of each kind; return the folder."""
    monkeypatch.syspath_prepend(str(outside))
    entries = "".join(
        f"[{plugins.GROUPS[kind]}]\nlab_{name} = {value}\n"  # type: ignore[index]
        for kind, (name, value) in KINDS.items()
    )
    install(outside, "labrobots", entries)
    return outside
