"""Plug-ins of installed packages, found through entry points in package metadata."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from serl import plugins
from serl.cli import main as cli
from serl.errors import BadInput

from .conftest import KINDS, install


@pytest.mark.parametrize("kind", list(plugins.GROUPS))
def test_each_plugin_kind_loads_by_entry_point_name(kind: plugins.Kind, lab: Path) -> None:
    name, _ = KINDS[kind]
    made = plugins.load(kind, f"lab_{name}")
    assert getattr(made, "__module__", name) in (name, "serl.arm_profile")
    assert [each.package for each in plugins.installed(kind)] == ["labrobots"]


BROKEN = {
    "unmet": ("unmet", "import not_there\n", "ModuleNotFoundError: No module named 'not_there'"),
    "leaves": ("leaves", "raise SystemExit('bye')\n", "SystemExit: bye"),
    "empty": ("empty", "x = 1\n", "expected a module with the attribute 'agent'"),
    "missing": ("empty:Missing", "", "AttributeError: "),
    "wrong": ("empty:x", "", "expected 'agent' with the method 'create'"),
    "absent": ("absent", "", "ModuleNotFoundError: No module named 'absent'"),
    "rude": ("rude", "raise KeyboardInterrupt\n", "KeyboardInterrupt:"),
    "hanging": ("hanging", "import time\ntime.sleep(30)\n", "not loaded within 4 s"),
}
IN_A_TRAINING = ("unmet", "leaves", "empty", "missing", "wrong", "absent")


@pytest.fixture
def faulty(lab: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install a second package, whose plug-ins cannot be used."""
    monkeypatch.setattr("serl.cli.list._IMPORT_S", 4.0)
    modules = {entry: text for entry, text, _ in BROKEN.values() if text}
    for name in modules:
        monkeypatch.delitem(sys.modules, name, raising=False)
    entries = "".join(f"{name} = {entry}\n" for name, (entry, _, _) in BROKEN.items())
    install(lab, "faulty", f"[serl.agents]\n{entries}", **modules)


@pytest.mark.usefixtures("faulty")
def test_list_command_shows_plugins_with_their_package_and_fault(
    lab: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    install(lab, "clashing", "[serl.agents]\nsac = td3\n")
    assert cli.main(["list"]) == cli.DONE
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    found = {words[0]: words[1:3] for words in lines if "[labrobots]" in words}
    assert found == {kind: [f"lab_{name}", "[labrobots]"] for kind, (name, _) in KINDS.items()}
    own = {words[0] for words in lines if len(words) > 2 and "[labrobots]" not in words}
    assert own >= plugins.GROUPS.keys(), "built-in plug-ins are listed too"
    listed = {words[1]: " ".join(words) for words in lines if "[faulty]" in words}
    assert listed.keys() == BROKEN.keys()
    for name, (_, _, why) in BROKEN.items():
        assert listed[name].startswith(f"agent {name} [faulty] cannot be used: ")
        assert why in listed[name]
    (clash,) = [" ".join(words) for words in lines if "[clashing]" in words]
    assert clash == "agent sac [clashing] not used: serl has an agent of that name"
    assert plugins.load("agent", "sac").__module__ == "serl.agents.sac"
    assert lines[-1][:4] == ["values", "of", "a", "task:"], "the list is printed to its end"


@pytest.mark.usefixtures("faulty")
@pytest.mark.parametrize("name", IN_A_TRAINING)
def test_broken_plugin_gives_one_line_error_with_its_package(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["train", "reach", f"--agent.algorithm={name}"]) == cli.BAD_INPUT
    error = capsys.readouterr().err
    assert f"agent '{name}' of the package faulty" in error
    assert BROKEN[name][2] in error
    assert error.count("\n") == 1


def test_plugin_name_of_two_packages_is_refused(lab: Path) -> None:
    install(lab, "another", "[serl.agents]\nlab_td3 = td3\n")
    with pytest.raises(BadInput, match="the packages another and labrobots both have one"):
        plugins.load("agent", "lab_td3")


def test_unreadable_package_metadata_is_ignored(lab: Path) -> None:
    install(lab, "garbled", "[serl.agents]\nwithout an equals sign\n")
    assert [each.name for each in plugins.installed("agent")] == ["lab_td3"]


def test_unknown_name_error_lists_installed_plugins(lab: Path) -> None:
    with pytest.raises(BadInput, match=r"one of bc, hybrid, lab_td3, sac, or a \.py file"):
        plugins.load("agent", "nobody")
