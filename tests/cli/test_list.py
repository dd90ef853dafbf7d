from __future__ import annotations

from pathlib import Path

import pytest

from serl.agents.config import SACConfig
from serl.cli import main as cli
from serl.cli.settings import meanings
from serl.runs.config import TrainConfig
from serl.system.settings_file import leaves


def listed_settings(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, list[str]]:
    """Run `serl list`; return the words of each setting's line by the setting's name."""
    assert cli.main(["list", *words]) == cli.DONE
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    return {words[1]: words for words in lines if words[0].startswith("setting")}


def test_list_shows_settings_with_default_bounds_and_meaning(
    capsys: pytest.CaptureFixture[str],
) -> None:
    settings = listed_settings(capsys, "settings")
    assert settings["steps"][2:8] == ["15000", "(integer", ">=", "0)", "online", "environment"]
    assert settings["agent.utd"][2:9] == ["4", "(integer", ">=", "1", "<=", "1000)", "critic"]
    assert settings.keys() == dict(leaves(TrainConfig().model_dump(mode="json"))).keys()


def test_list_of_task_marks_its_own_values(capsys: pytest.CaptureFixture[str]) -> None:
    settings = listed_settings(capsys, "pick_cube")
    assert settings["steps"][:4] == ["setting*", "steps", "6000", "(integer"]
    assert settings["agent.utd"][0] == "setting"
    assert settings["task_config.rate_hz"][-3:] == ["Hz)", "control", "rate."]


def test_list_filters_settings_of_real_task_file_by_word(
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = str(Path(__file__).parents[2] / "docs/examples/ram.yaml")
    assert "reward.kind" in listed_settings(capsys, file, "reward")


def test_list_filters_settings_by_group_name_and_meaning(
    capsys: pytest.CaptureFixture[str],
) -> None:
    agent = listed_settings(capsys, "settings", "agent")
    assert {name.partition(".")[0] for name in agent} == {"agent"}
    assert len(agent) > 20
    assert {*listed_settings(capsys, "settings", "discount")} == {"agent.discount"}
    assert {*listed_settings(capsys, "settings", "gamma")} == {"agent.discount"}, (
        "the word gamma in the meaning was not found"
    )
    assert {*listed_settings(capsys, "pick_cube", "lift_m")} == {
        "reset.lift_m",
        "task_config.lift_m",
    }
    assert cli.main(["list", "settings", "lerner"]) == cli.BAD_INPUT
    errors = capsys.readouterr().err
    assert "did you mean 'learner'?" in errors
    assert errors.count("\n") == 1


def test_list_filters_plugins_by_kind_and_word(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["list", "robots"]) == cli.DONE
    lines = capsys.readouterr().out.splitlines()
    assert {line.split()[0] for line in lines} == {"robot"}
    assert cli.main(["list", "tasks", "Cube"]) == cli.DONE
    (line,) = capsys.readouterr().out.splitlines()
    assert line.split()[:2] == ["task", "pick_cube"]


@pytest.mark.parametrize("kind", ["classifier", "topic", "spacemouse", "bc"])
def test_list_of_plugin_shows_its_settings(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert listed_settings(capsys, kind)


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        ([], ("\ntask      pick_cube ", "\nrobot     franka ", "serl list settings agent")),
        (["pick_cube"], ("agent.utd = 4",)),
        (["spacemouse"], ("teleop.spacemouse.",)),
    ],
)
def test_list_fits_100_columns_in_terminal(
    words: list[str],
    parts: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert cli.main(["list", *words]) == cli.DONE
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 100
    assert all(part in f"\n{out}" for part in parts)


def test_list_answers_unknown_name_with_known_and_similar_ones(
    capsys: pytest.CaptureFixture[str],
) -> None:
    similar = {"setings": "settings", "keybord": "keyboard"}  # codespell:ignore
    for name in ("cook", *similar):
        assert cli.main(["list", name]) == cli.BAD_INPUT
        errors = capsys.readouterr().err
        assert errors.count("\n") == 1
        assert f"unknown name {name!r}: expected settings, tasks, robots, " in errors
        assert "pick_cube" in errors
        mend = f"; did you mean {similar[name]!r}?" if name in similar else "or a .py or .yaml file"
        assert errors.endswith(f"{mend}\n")


def test_every_agent_setting_has_one_line_meaning() -> None:
    texts = meanings(SACConfig)
    assert texts.keys() == SACConfig.model_fields.keys()
    assert texts["hidden"] == "widths of the hidden layers of actor and critics."
    assert all(text and "\n" not in text for text in texts.values())
