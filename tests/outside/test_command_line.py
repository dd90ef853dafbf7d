"""Plug-in files outside the tree, one per row of docs/extend.md, used from the command line."""

from __future__ import annotations

import re
import sys
from datetime import datetime
from pathlib import Path

import pytest

from serl import plugins
from serl.cli import main as cli
from serl.errors import BadInput
from serl.log.episode_reader import episode_paths, read_episode
from serl.runs.assembly import make_acting_agent, make_human
from serl.runs.config import TrainConfig
from serl.runs.folder import RunFolder
from serl.runs.settings import run_settings
from serl.runs.task_setup import make_rewarded_task, make_spec, make_task

SETTINGS = {
    "td3": "agent.width",
    "lazy_person": "human.every",
    "high_reward": "reward.height_m",
    "spool": "transport.subfolder",
    "pad": "teleop.device.looks",
    "near": "task_config.reach_m",
}
PLUGIN = ("./{}.py", "lab_{}")
"""A plug-in by the path of its file, and by the name of an entry point."""

NAMED_BY = {
    "td3": "agent.algorithm",
    "lazy_person": "intervention",
    "high_reward": "reward.kind",
    "spool": "transport.kind",
}


@pytest.mark.parametrize(("name", "setting"), SETTINGS.items())
def test_list_command_shows_settings_of_plugin_file(
    name: str, setting: str, outside: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["list", f"./{name}.py"]) == cli.DONE
    lines = capsys.readouterr().out.splitlines()
    listed = {line.split()[1]: line for line in lines if line.startswith("setting")}
    assert len(listed[setting].split()) > 3, "the setting has a description"


def test_list_command_shows_arm_profile_as_robot(
    outside: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["list", "./my_arm.py"]) == cli.DONE
    assert capsys.readouterr().out.split()[:2] == ["robot", "./my_arm.py"]


@pytest.mark.ros
@pytest.mark.parametrize("plugin", PLUGIN)
def test_guard_command_loads_plugin_arm(
    plugin: str, lab: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["guard", plugin.format("my_arm")]) == cli.BAD_INPUT
    assert capsys.readouterr().err.startswith("serl: arm my_arm: has no workspace")


def test_teleop_check_reads_plugin_device_with_its_settings(
    outside: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["teleop", "--check", "--device", "./pad.py", "--teleop.device.looks=2"]
    assert cli.main([*words, "--teleop.device.axes.stick=[y, -0.5]"]) == cli.BAD_INPUT
    out, error = capsys.readouterr()
    assert "a pad from outside" in out
    assert re.search(r"^y .*-0\.50", out, re.MULTILINE), "the settings map the stick to y"
    assert error == "serl: the pad is unplugged\n"


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("--device", "./pad.py", "--teleop.device.lucks=2"), "teleop.device.lucks: unknown sett"),
        (
            ("--device", "pod"),
            "unknown device 'pod': expected one of gamepad, keyboard, spacemouse",
        ),
        (("--device", "./td3.py"), "expected a module with the attribute 'device', found 'agent'"),
        (("--device", "./pad.py", "--path", "x"), "x: no pad"),
    ],
)
@pytest.mark.parametrize("command", [("teleop", "--check"), ("record", "reach")])
def test_unusable_plugin_device_gives_one_line_error(
    command: tuple[str, ...],
    words: tuple[str, ...],
    line: str,
    outside: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.main([*command, *words]) == cli.BAD_INPUT
    error = capsys.readouterr().err
    assert line in error
    assert error.count("\n") == 1
    assert not (outside / "runs").exists()


@pytest.mark.parametrize("plugin", PLUGIN)
def test_operator_records_plugin_task_with_plugin_device(plugin: str, lab: Path) -> None:
    task, device = plugin.format("near"), plugin.format("pad")
    words = ["record", task, "--device", device, "--demos", "1", "--out", "out"]
    more = ["--reward.kind=human", "--teleop.device.dead_zone=0.2", "--log.min_free_bytes=1000000"]
    assert cli.main([*words, *more]) == cli.DONE
    run = RunFolder.open(lab / "out")
    assert run.config.teleop.device == {"dead_zone": 0.2}
    (path,) = episode_paths(run.path)
    assert read_episode(path, make_spec(make_task(run.config))).success


@pytest.mark.parametrize("plugin", PLUGIN)
@pytest.mark.parametrize(("name", "named"), NAMED_BY.items())
@pytest.mark.parametrize(
    ("more", "line"),
    [
        ("nonsense=1", "nonsense: unknown setting; known ones: "),
        ("={}", "expected "),
    ],
)
def test_plugin_settings_are_checked(
    name: str,
    named: str,
    more: str,
    line: str,
    plugin: str,
    lab: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    setting = SETTINGS[name]
    wrong = f"--{setting}{more}" if more == "={}" else f"--{setting.partition('.')[0]}.{more}"
    assert cli.main(["train", "reach", f"--{named}={plugin.format(name)}", wrong]) == cli.BAD_INPUT
    error = capsys.readouterr().err
    assert line in error
    assert error.count("\n") == 1
    if more != "={}":
        assert setting.partition(".")[2] in error, "the known settings include the plug-in's own"
    assert not (lab / "runs").exists()


@pytest.mark.parametrize("plugin", PLUGIN)
def test_plugin_settings_are_saved_and_reloaded(plugin: str, lab: Path) -> None:
    config = _of_all(plugin)
    run = RunFolder.create(lab / "runs", config, datetime.now())
    again = RunFolder.open(run.path).config
    assert again == config
    assert again.agent.model_dump()["width"] == 16
    assert again.human.model_dump() == {"every": 4}
    assert again.agent.algorithm in (str(lab / "td3.py"), "lab_td3"), "the path is absolute"
    assert make_acting_agent(again, make_spec(make_task(again)), 0).actor_weights()
    task = make_rewarded_task(again)
    robot = plugins.make_simulation(task)
    assert type(make_human(again, task, robot, "actor0")).__name__ == "Lazy"


def test_tuned_settings_unknown_to_plugin_agent_are_dropped(outside: Path) -> None:
    tuned = run_settings("pick_cube", {}, {})
    own = run_settings("pick_cube", {}, {"agent": {"algorithm": "./td3.py"}})
    assert own.steps == tuned.steps, "steps tuned by the task"
    assert "bc_weight" in tuned.agent.model_dump()
    assert "bc_weight" not in own.agent.model_dump()


def test_run_whose_plugin_file_is_gone_is_refused_by_name(
    outside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunFolder.create(outside / "runs", _of_all("./{}.py"), datetime.now())
    file = (outside / "td3.py").resolve()
    file.unlink()
    monkeypatch.delitem(sys.modules, f"serl_plugin:{file}")
    with pytest.raises(BadInput, match=r"td3\.py: no such file"):
        RunFolder.open(run.path)


def _of_all(plugin: str) -> TrainConfig:
    overrides = {
        "agent": {"algorithm": plugin.format("td3"), "width": 16, "device": "cpu"},
        "intervention": plugin.format("lazy_person"),
        "human": {"every": 4},
        "reward": {"kind": plugin.format("high_reward"), "height_m": 0.24},
        "transport": {"kind": plugin.format("spool"), "subfolder": "box"},
    }
    return run_settings(plugin.format("near"), {}, overrides)
