from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from serl.agents.config import SACConfig
from serl.errors import BadInput, CorruptData
from serl.runs import settings
from serl.runs.config import PRESETS, TrainConfig, parse_overrides, resolve, stage_configs
from serl.runs.recipes import PRACTICE, RECIPES
from serl.runs.settings import run_settings
from serl.runs.task_setup import make_demonstrated_task, make_task
from serl.system.settings_file import checked, leaves, merge, parse_yaml, read_yaml
from serl.tasks.reach import ReachConfig
from serl.teleop.novice import NoviceConfig

TASKS = (make_task, make_demonstrated_task)
LAB = PRESETS["hard"]["task_config"]["perception"]


def test_later_config_layers_override_leaf_by_leaf() -> None:
    tuned = {"steps": 500, "agent": {"utd": 8, "batch_size": 64}}
    file = {"agent": {"utd": 2}, "seed": 3}
    config = resolve(tuned, file, {"seed": 4})
    assert (config.steps, config.seed) == (500, 4)
    assert (config.agent.utd, config.agent.batch_size) == (2, 64)
    assert config.agent.discount == TrainConfig().agent.discount


def test_preset_ranks_just_below_settings_of_its_layer() -> None:
    given = {"preset": "hard", "task_config": {"perception": {"bias_m": 0.001}}}
    config = resolve({"intervention": "scripted", "steps": 7}, given)
    assert (config.demonstrator, config.intervention, config.steps) == ("human", "novice", 7)
    assert isinstance(config.human, NoviceConfig)
    assert config.task_config["perception"] == {**LAB, "bias_m": 0.001}
    assert resolve(config.model_dump(mode="json"), {}) == config, (
        "the resolved config resolves to itself"
    )
    words = ["--intervention=scripted", "--preset=hard", "--steps=3"]
    config = run_settings("peg_insertion", {"demos": 5}, parse_overrides(words))
    assert (config.demonstrator, config.intervention, config.demos) == ("human", "scripted", 5)
    assert config.human.model_dump()["max_hold_steps"] == 30, "the novice settings stay"


def test_later_preset_replaces_earlier_one() -> None:
    file = {"preset": "practice", "seed": 3}
    assert resolve(file, {"preset": "none"}) == resolve({"seed": 3})
    found = resolve(file, {"preset": "hard"})
    assert (found.demos, found.baseline, found.intervention) == (20, "none", "novice")


def test_options_override_file_in_short_forms_of_settings() -> None:
    file = {"demos": ["old"], "init_from": "old"}
    over = {"demos": 5, "init_from": {"load": ["actor"]}}
    config = settings._resolve_layers("reach", file, over)
    assert (config.demos, config.demo_paths) == (5, ())
    assert (config.init_from.run, config.init_from.load) == (Path("old"), ("actor",))
    assert resolve({"demos": 5}, {"demos": "new"}).demo_paths == (Path("new"),)


def test_preset_names_match_config_field() -> None:
    field = TrainConfig.model_fields["preset"].annotation
    assert set(get_args(field)) == set(PRESETS)
    with pytest.raises(BadInput, match="preset"):
        resolve({"preset": "harder"})


@pytest.mark.parametrize("task", ["pick_cube", "peg_insertion", "handover"])
def test_practice_preset_sets_demonstrations_clone_and_learner(task: str) -> None:
    config = run_settings(task, {"preset": "practice"}, {"seed": 1})
    assert (config.demonstrator, config.demos, config.intervention) == ("human", 10, "none")
    assert config.baseline == "clone"
    found = dict(leaves(config.model_dump()))
    asked = dict(leaves(merge(PRACTICE, type(make_task(config).config).practice)))
    assert {key: found[key] for key in asked} == asked
    given = {"preset": "practice", "agent": {"initial_std": 0.2}}
    agent = run_settings(task, given, {}).agent
    assert isinstance(agent, SACConfig)
    assert (agent.initial_std, agent.bc_warm_start) == (0.2, asked["agent.bc_warm_start"])
    published = {"recipe": "hil_serl", "demos": 10}
    with_preset, without_preset = (
        run_settings(task, each, published) for each in (given | {"agent": {}}, {})
    )
    assert (with_preset.agent, with_preset.learner) == (
        without_preset.agent,
        without_preset.learner,
    ), "the recipe takes precedence"


def test_bounds_of_returns_are_for_rewards_that_sum_to_one() -> None:
    outside = Path(__file__).parents[1] / "outside"
    topic = {"kind": "topic", "topic": "/cell/quality"}
    for reward, bounds in (
        ({}, (0.0, 1.0)),
        (topic | {"message": "Bool"}, (0.0, 1.0)),
        (topic, None),
        ({"kind": str(outside / "high_reward.py")}, None),
    ):
        agent = run_settings("pick_cube", {}, {"reward": reward}).agent
        assert isinstance(agent, SACConfig)
        assert (agent.return_bounds, agent.layer_norm) == (bounds, bounds is None)
    given = {"reward": topic, "agent": {"return_bounds": [0, 30]}}
    assert run_settings("pick_cube", {}, given).agent.model_dump()["return_bounds"] == (0, 30)
    judged = {"stages": {"forward": {"config": {"reward": topic}}}}
    for chosen, bounds in (({}, None), ({"return_bounds": [0, 30]}, (0, 30))):
        config = run_settings("bin_relocation", {"agent": chosen}, judged)
        found = [each.agent.model_dump() for each in stage_configs(config).values()]
        assert [each["return_bounds"] for each in found] == [bounds, bounds or (0, 1)]
        assert [each["layer_norm"] for each in found] == [True, False]
    other = {"reward": topic, "agent": {"algorithm": str(outside / "td3.py")}}
    assert "return_bounds" not in run_settings("pick_cube", {}, other).agent.model_dump()


def test_external_algorithms_are_accepted_except_beside_learned_rewards() -> None:
    outside = str(Path(__file__).parents[1] / "outside/td3.py")
    config = run_settings("reach", {"preset": "practice"}, {"agent": {"algorithm": outside}})
    assert config.learner.imitate_successes
    with pytest.raises(BadInput, match=r"imitate_successes: not with .* vice"):
        run_settings(
            "pick_cube",
            {"observe": "pixels", "reward": {"kind": "vice"}},
            {"learner": {"imitate_successes": True}},
        )
    for learned in ({"reward": {"kind": "vice"}}, {"feedback": {"weight": 1}}):
        with pytest.raises(BadInput, match="expected the algorithm sac"):
            run_settings("reach", learned, {"agent": {"algorithm": outside}})


def test_practice_preset_from_pixels_keeps_learner_of_task() -> None:
    with_preset, tuned = (
        run_settings("pick_cube", {"observe": "pixels"}, asked)
        for asked in ({"preset": "practice"}, {})
    )
    assert (with_preset.agent, with_preset.learner) == (tuned.agent, tuned.learner)


@pytest.mark.parametrize("task", ["peg_insertion", "connector_insertion", "timing_belt"])
def test_hard_preset_applies_to_tool_tasks(task: str) -> None:
    config = run_settings(task, {"preset": "hard"}, {})
    assert isinstance(config.human, NoviceConfig)
    assert make_task(config).config.perception.delay_s == 0.1
    assert (
        make_demonstrated_task(config).config.time_limit_s > make_task(config).config.time_limit_s
    )


def test_hard_preset_keeps_task_tolerances_and_given_settings() -> None:
    found = run_settings("timing_belt", {"preset": "hard"}, {}).task_config
    assert found == {"perception": LAB, "tensioner": True}
    given = {"preset": "hard", "task_config": {"grip_m": 0.007}}
    found = run_settings("handover", given, {}).task_config
    assert found == {"perception": LAB, "grip_m": 0.007, "level_rad": 0.03}
    assert run_settings("handover", {}, {}).task_config == {}


def test_merge_leaves_its_inputs_unchanged() -> None:
    base, over = {"a": {"b": 1}}, {"a": {"c": 2}}
    assert merge(base, over) == {"a": {"b": 1, "c": 2}}
    assert (base, over) == ({"a": {"b": 1}}, {"a": {"c": 2}})


@pytest.mark.parametrize(
    "words",
    [
        ["--agent.utd", "8", "--task-config.reach_m", "0.2", "--intervention", "none"],
        ["--agent.utd=8", "--task-config.reach_m=0.2", "--intervention=none"],
    ],
)
def test_overrides_use_dotted_names(words: list[str]) -> None:
    config = resolve(parse_overrides(words))
    assert config.agent.utd == 8
    assert config.task_config == {"reach_m": 0.2}
    assert config.intervention == "none"


@pytest.mark.parametrize(
    ("text", "value"), [("3e-4", 3e-4), ("3.0e-4", 3e-4), ("1", 1.0), (".5", 0.5)]
)
def test_overrides_accept_common_number_formats(text: str, value: float) -> None:
    agent = resolve(parse_overrides(["--agent.learning_rate", text])).agent
    assert isinstance(agent, SACConfig)
    assert agent.learning_rate == value


def test_override_lists_and_flags_are_yaml() -> None:
    words = ["--agent.hidden", "[32, 32]", "--agent.layer_norm", "false", "--demo_paths", "[a, b]"]
    config = resolve(parse_overrides(words))
    assert isinstance(config.agent, SACConfig)
    assert config.agent.hidden == (32, 32)
    assert not config.agent.layer_norm
    assert config.demo_paths == (Path("a"), Path("b"))


@pytest.mark.parametrize("more", [[], ["--steps", "3"], ["--learner.prefetch"]])
def test_setting_that_can_be_true_is_true_without_value(more: list[str]) -> None:
    config = resolve(parse_overrides(["--log.wandb", *more]))
    assert config.log.wandb is True
    assert config.learner.prefetch is (True if more == ["--learner.prefetch"] else None)
    for value, expected in (("offline", "offline"), ("online", "online"), ("false", False)):
        assert resolve(parse_overrides(["--log.wandb", value, *more])).log.wandb == expected
    with pytest.raises(
        BadInput, match=r"log\.wandb: expected true or false or 'online' or 'offline', got 'cloud'"
    ):
        resolve(parse_overrides(["--log.wandb", "cloud"]))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["agent.utd", "8"], r"unexpected argument 'agent.utd': overrides look like --agent.utd 8"),
        (["--"], "unexpected argument '--'"),
        (["--agent.utd"], "--agent.utd: expected a value"),
        (["--agent.hidden", "[1, 2"], "--agent.hidden: not YAML"),
    ],
)
def test_invalid_override_arguments_are_refused(words: list[str], message: str) -> None:
    with pytest.raises(BadInput, match=message) as error:
        parse_overrides(words)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("layer", "start", "named"),
    [
        ({"sede": 1}, "sede: unknown setting; did you mean ", "seed"),
        ({"intervention": "me"}, "intervention: unknown person 'me': expected", "scripted"),
        ({"actors": 17}, "actors: expected at most 16", "17"),
        ({"feedback": {"weight": 1, "delay_s": [4, 0.2]}}, "feedback", "0 <= first < second"),
        ({"feedback": {"weight": 1}, "reward": {"kind": "vice"}}, "feedback.weight: ", "vice"),
        ({"feedback": {"weight": 1}, "agent": {"algorithm": "bc"}}, "feedback.weight: ", "bc"),
        ({"feedback": {"weight": 1}, "learner": {"n_step": 3}}, "feedback.weight: ", "not 3"),
        (
            {"feedback": {"weight": 1}, "agent": {"cached_features": True}},
            "feedback.weight: ",
            "agent.cached_features",
        ),
    ],
)
def test_invalid_setting_is_named_in_one_line(
    layer: dict[str, object], start: str, named: str
) -> None:
    with pytest.raises(BadInput) as error:
        resolve(layer)
    assert str(error.value).startswith(start)
    assert named in str(error.value)
    assert "\n" not in str(error.value)


def test_task_settings_are_checked_at_any_depth() -> None:
    values = merge(ReachConfig().model_dump(), {"motion": {"limits": {"sped": 1}}})
    with pytest.raises(BadInput, match=r"^motion\.limits\.sped: unknown setting; did you mean "):
        checked(ReachConfig, values)


def test_settings_file_must_be_utf8(tmp_path: Path) -> None:
    path = tmp_path / "settings.yaml"
    path.write_text("agent: {utd: 2}\n")
    assert resolve(read_yaml(path)).agent.utd == 2
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BadInput, match="cannot be read"):
        read_yaml(path)


def test_init_from_accepts_path_or_mapping() -> None:
    words = ["--init-from", "old", "--init-from.load", "[actor]", "--init-from.data", "steps"]
    origin = resolve(parse_overrides(words)).init_from
    assert (origin.run, origin.load, origin.data) == (Path("old"), ("actor",), "steps")
    assert resolve({"init_from": "old"}, {"init_from": {"load": []}}).init_from.run == Path("old")
    assert resolve({"init_from": "old"}, {"init_from": "new"}).init_from.run == Path("new")
    assert resolve({"init_from": "old"}, parse_overrides(["--init-from", "null"])).init_from == (
        TrainConfig.model_validate({"init_from": None}).init_from
    )
    assert TrainConfig.model_validate({"init_from": "old"}).init_from.run == Path("old")


def test_init_from_requires_run_and_frozen_parts_must_be_loaded() -> None:
    with pytest.raises(BadInput, match=r"init_from: run: expected the folder of a run"):
        resolve({"init_from": {"data": "steps"}})
    with pytest.raises(BadInput, match=r"agent\.frozen: nothing loads the actor"):
        resolve({"agent": {"frozen": ["actor"]}})
    resolve({"agent": {"frozen": ["encoder"], "encoder_weights": "encoder.safetensors"}})


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "task: reach\nseed: 1\nseed: 2\n",
            "line 3: the key 'seed' is given twice, first in line 2",
        ),
        ("agent:\n  utd: 1\n  utd: 2", "line 3: the key 'utd' is given twice, first in line 2"),
        ("[{a: 1}, {b: 1, b: 1}]", "line 1: the key 'b' is given twice, first in line 1"),
        ("1: a\n? 0x1\n: b", "line 2: the key 1 is given twice, first in line 1"),
    ],
)
def test_duplicate_yaml_key_is_refused(text: str, line: str) -> None:
    with pytest.raises(CorruptData) as refusal:
        parse_yaml(text, "it")
    assert str(refusal.value) == f"it: {line}"


def test_equal_keys_in_different_mappings_are_accepted() -> None:
    assert parse_yaml("a: {x: 1}\nb: {x: 2}\nx: 3", "it") == {"a": {"x": 1}, "b": {"x": 2}, "x": 3}


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("task", ["pick_cube", "peg_insertion", "handover"])
def test_recipe_overrides_tuned_settings(name: str, task: str) -> None:
    tuned, config = (run_settings(task, {}, asked) for asked in ({}, {"recipe": name}))
    assert config.steps == tuned.steps
    found, asked = dict(leaves(config.model_dump())), dict(leaves(RECIPES[name]))
    assert {key: found[key] for key in asked} == asked
    assert any(value != dict(leaves(tuned.model_dump()))[key] for key, value in asked.items())


def test_file_and_options_override_recipe() -> None:
    file = {"recipe": "hil_serl", "agent": {"critics": 10}}
    agent = run_settings("pick_cube", file, {"agent": {"utd": 8, "algorithm": "sac"}}).agent
    assert isinstance(agent, SACConfig)
    assert (agent.critics, agent.utd, agent.algorithm) == (10, 8, "sac")
    assert agent.activation == "tanh"


def test_tilde_in_paths_of_settings_is_home_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/lab")
    words = ["--robot=~/arm.yaml", "--reward.model=~/m", "--reset.model=~/m", "--init-from=~/run"]
    words += ["--agent.encoder_weights=~/m", "--agent.trunk=~/m", "--vice.positives=[~/m]"]
    given = {"task": "~/ram.yaml", "demos": ["~/demos"], **parse_overrides(words)}
    config = resolve({"reward": {"progress": {"model": "~/m"}}}, given)
    assert (config.task, config.robot) == ("/home/lab/ram.yaml", "/home/lab/arm.yaml")
    models = config.reward.model, config.reward.progress.model, config.reset.model
    assert models == (Path("/home/lab/m"),) * 3
    networks = config.agent.encoder_weights, config.agent.trunk, *config.vice.positives
    assert networks == (Path("/home/lab/m"),) * 3
    assert (config.init_from.run, *config.demo_paths) == (
        Path("/home/lab/run"),
        Path("/home/lab/demos"),
    )


def test_unknown_recipe_is_refused() -> None:
    with pytest.raises(BadInput, match="recipe: expected 'hil_serl'"):
        run_settings("pick_cube", {}, {"recipe": "serl"})
