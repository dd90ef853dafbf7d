from __future__ import annotations

import pytest

from serl.agents.config import SACConfig
from serl.errors import BadInput
from serl.runs.recipes import RECIPES
from serl.runs.settings import run_settings
from serl.system.settings_file import leaves


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("task", ["pick_cube", "peg_insertion", "handover"])
def test_a_recipe_replaces_what_a_task_was_tuned_to(name: str, task: str) -> None:
    tuned, config = (run_settings(task, {}, asked) for asked in ({}, {"recipe": name}))
    assert config.steps == tuned.steps
    found, asked = dict(leaves(config.model_dump())), dict(leaves(RECIPES[name]))
    assert {key: found[key] for key in asked} == asked
    assert any(value != dict(leaves(tuned.model_dump()))[key] for key, value in asked.items())


def test_a_file_and_options_go_before_a_recipe() -> None:
    file = {"recipe": "hil_serl", "agent": {"critics": 10}}
    agent = run_settings("pick_cube", file, {"agent": {"utd": 8, "algorithm": "sac"}}).agent
    assert isinstance(agent, SACConfig)
    assert (agent.critics, agent.utd, agent.algorithm) == (10, 8, "sac")
    assert agent.activation == "tanh"


def test_an_unknown_recipe_is_refused() -> None:
    with pytest.raises(BadInput, match="recipe: expected 'hil_serl'"):
        run_settings("pick_cube", {}, {"recipe": "serl"})
