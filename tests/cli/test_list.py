from __future__ import annotations

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
    settings = shown(capsys)
    assert settings["steps"][2:8] == ["15000", "(integer", ">=", "0)", "online", "environment"]
    assert settings["agent.utd"][2:9] == ["4", "(integer", ">=", "1", "<=", "1000)", "critic"]
    assert settings.keys() == dict(leaves(TrainConfig().model_dump(mode="json"))).keys()


def test_a_task_is_listed_with_its_own_values(capsys: pytest.CaptureFixture[str]) -> None:
    settings = shown(capsys, "pick_cube")
    assert settings["steps"][:4] == ["setting*", "steps", "6000", "(integer"]
    assert settings["agent.utd"][0] == "setting"
    assert settings["task_config.rate_hz"][-3:] == ["Hz)", "control", "rate."]


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
