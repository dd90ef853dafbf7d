from __future__ import annotations

from pathlib import Path

import pytest

from serl.agents.config import SACConfig
from serl.cli import main as cli
from serl.cli.settings import meanings
from serl.runs.config import TrainConfig
from serl.system.settings_file import leaves


def shown(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, list[str]]:
    """What is printed of each setting, by its name."""
    assert cli.main(["list", *words]) == cli.DONE
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    return {words[1]: words for words in lines if words[0].startswith("setting")}


def test_settings_are_listed_with_their_defaults_and_meanings(
    capsys: pytest.CaptureFixture[str],
) -> None:
    settings = shown(capsys, "settings")
    assert settings["steps"][2:8] == ["15000", "(integer", ">=", "0)", "online", "environment"]
    assert settings["agent.utd"][2:9] == ["4", "(integer", ">=", "1", "<=", "1000)", "critic"]
    assert settings.keys() == dict(leaves(TrainConfig().model_dump(mode="json"))).keys()


def test_a_task_is_listed_with_its_own_values(capsys: pytest.CaptureFixture[str]) -> None:
    settings = shown(capsys, "pick_cube")
    assert settings["steps"][:4] == ["setting*", "steps", "6000", "(integer"]
    assert settings["agent.utd"][0] == "setting"
    assert settings["task_config.rate_hz"][-3:] == ["Hz)", "control", "rate."]


def test_a_file_of_a_real_task_is_listed_by_a_word(capsys: pytest.CaptureFixture[str]) -> None:
    file = str(Path(__file__).parents[2] / "docs/examples/ram.yaml")
    assert "reward.kind" in shown(capsys, file, "reward")


def test_settings_are_filtered_by_group_by_name_and_by_meaning(
    capsys: pytest.CaptureFixture[str],
) -> None:
    agent = shown(capsys, "settings", "agent")
    assert {name.partition(".")[0] for name in agent} == {"agent"}
    assert len(agent) > 20
    assert {*shown(capsys, "settings", "discount")} == {"agent.discount"}
    assert {*shown(capsys, "settings", "gamma")} == {"agent.discount"}, "in its meaning"
    assert {*shown(capsys, "pick_cube", "lift_m")} == {"reset.lift_m", "task_config.lift_m"}
    assert cli.main(["list", "settings", "lerner"]) == cli.BAD_INPUT
    errors = capsys.readouterr().err
    assert "did you mean 'learner'?" in errors
    assert errors.count("\n") == 1


def test_plugins_are_filtered_by_kind_and_by_word(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["list", "robots"]) == cli.DONE
    lines = capsys.readouterr().out.splitlines()
    assert {line.split()[0] for line in lines} == {"robot"}
    assert cli.main(["list", "tasks", "Cube"]) == cli.DONE
    (line,) = capsys.readouterr().out.splitlines()
    assert line.split()[:2] == ["task", "pick_cube"]


@pytest.mark.parametrize("kind", ["classifier", "pose", "topic", "progress", "spacemouse", "bc"])
def test_a_plugin_is_listed_with_its_settings(
    kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert shown(capsys, kind)


@pytest.mark.parametrize("words", [[], ["settings"], ["pick_cube"], ["spacemouse"]])
def test_a_terminal_gets_lines_of_100_columns(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert cli.main(["list", *words]) == cli.DONE
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 100
    assert "serl list TASK" in out or "=" in out


def test_an_unknown_task_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["list", "cook"]) == cli.BAD_INPUT
    errors = capsys.readouterr().err
    assert errors.count("\n") == 1
    assert "'cook'" in errors
    assert "pick_cube" in errors


def test_every_setting_of_the_agent_says_what_it_means() -> None:
    said = meanings(SACConfig)
    assert said.keys() == SACConfig.model_fields.keys()
    assert said["hidden"] == "widths of the hidden layers of actor and critics."
    assert all(text and "\n" not in text for text in said.values())
