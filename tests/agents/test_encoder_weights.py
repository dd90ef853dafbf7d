"""Packaged encoders and the rules by which agents start from them."""

from __future__ import annotations

import json
import re
import shlex
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from serl.agent import PackagedEncoder, State
from serl.agents.config import SACConfig
from serl.agents.encoder_weights import (
    PACKAGED,
    describe_encoder,
    misfit,
    weights_file,
    with_encoder,
)
from serl.agents.sac import SAC
from serl.agents.trunk_weights import digest_of_arrays
from serl.agents.weights import metadata_of
from serl.cli.main import main
from serl.errors import BadInput, SpecMismatch
from serl.log.metrics import MetricsWriter, read_metrics
from serl.runs.assembly import make_acting_agent, make_agent
from serl.runs.config import TrainConfig, resolve
from serl.runs.folder import RunFolder
from serl.runs.resume import Continuation
from serl.runs.settings import run_settings
from serl.runs.task_setup import make_spec, make_task
from serl.specs import ArraySpec
from serl.system.settings_file import merge
from serl.testing import InProcess

TABLETOP: PackagedEncoder = "tabletop"
FAST: dict[str, Any] = {
    "agent": {"hidden": [8], "batch_size": 4, "utd": 1, "threads": 1, "device": "cpu"},
    "learner": {"capacity": 50, "warm_up": 0},  # otherwise a checkpoint of step 0 is saved first
    "demos": 0,
    "init_from": None,
}
SMALL = {"width": 32, "height": 32}
REAL: dict[str, Any] = {
    "robot": "franka",
    "reward": {"kind": "human"},
    "task_config": {
        "motion": {"box_low_m": [0.4, -0.1, 0.1], "box_high_m": [0.6, 0.1, 0.4]},
    },
}


def settings(task: str = "pick_cube", **overrides: Any) -> TrainConfig:
    return run_settings(task, {"observe": "pixels", **FAST}, overrides)


def encoder_of(config: TrainConfig) -> State:
    state = make_agent(config, make_spec(make_task(config)), 0).actor_weights()
    return {name: array[0] for name, array in state.items() if name.startswith("encoder.")}


def is_packaged(config: TrainConfig, name: PackagedEncoder = TABLETOP) -> bool:
    arrays, mine = load_file(weights_file(name)), encoder_of(config)
    seen = [name for name in mine if not name.startswith("encoder.state")]
    same = [np.array_equal(mine[name], arrays[name.removeprefix("encoder.")]) for name in seen]
    assert all(same) or not any(same[::2]), "either all cameras use packaged weights or none does"
    return all(same)


@pytest.mark.parametrize(
    ("name", "tasks", "precision_m"),
    [
        ("tabletop", {"pick_cube": "cube_from_tcp", "bin_relocation": "part_from_tcp"}, 0.02),
        (
            "insertion",
            dict.fromkeys(("peg_insertion", "connector_insertion"), "hole_from_tip"),
            0.003,
        ),
    ],
)
def test_packaged_encoder_is_small_and_records_its_training(
    name: PackagedEncoder, tasks: dict[str, str], precision_m: float
) -> None:
    path = weights_file(name)
    data = path.read_bytes()
    assert len(data) < 5_000_000
    metadata = metadata_of(data, "serl encoder 1")
    assert metadata["sha256"] == digest_of_arrays(load_file(path))
    card = json.loads(metadata["card"])
    words = shlex.split(card["command"])
    assert words[:3] == ["serl", "encoder", "pretrain"]
    assert f"--seed={card['config']['seed']}" in words
    assert card["config"]["threads"] == 1, "several threads would sum in another order"
    assert set(card["views"]) == set(card["errors"]) == set(tasks)
    for task, target in tasks.items():
        assert card["errors"][task][target] < precision_m
    assert {"python", "numpy", "torch", "mujoco"} <= card["versions"].keys()


def test_insertion_task_uses_frozen_insertion_encoder() -> None:
    config = settings("peg_insertion")
    assert config.agent.encoder_weights == "insertion"
    assert is_packaged(config, "insertion")
    line = describe_encoder(config.agent, _cameras(config))
    assert line.startswith("the encoder is insertion, which comes with serl and is privileged (")
    assert "; no update changes it (else: --agent.cached_features false)" in line


def test_cached_features_of_untrained_encoder_are_refused() -> None:
    cached = {"agent": {"cached_features": True}}
    for overrides, reason in (
        ({"agent": {"encoder_weights": "none"}}, "as in agent.encoder_weights"),
        ({"agent": {"latent": 32}}, r"tabletop has agent\.latent 64, here it is 32"),
        ({"task_config": {"views": {"wrist": SMALL}}}, "tabletop is for cameras .*wrist 32 x 32"),
    ):
        with pytest.raises(
            BadInput, match=rf"agent\.cached_features: .* untrained \({reason}\); expected .* FILE"
        ):
            settings(**merge(cached, overrides))
    settings(**merge(cached, {"agent": {"encoder_weights": TABLETOP}}))


def test_packaged_encoder_is_the_default_where_it_fits() -> None:
    config = settings("pick_cube")
    assert config.agent.encoder_weights == TABLETOP
    assert is_packaged(config)
    assert "the encoder is tabletop, " in describe_encoder(config.agent, _cameras(config))
    along = settings("pick_cube", agent={"cached_features": False})
    assert is_packaged(along)
    line = describe_encoder(along.agent, _cameras(along))
    assert "is privileged" in line
    assert "--agent.encoder_weights none" in line
    without = settings("pick_cube", agent={"encoder_weights": "none"})
    assert (without.agent.encoder_weights, without.agent.encoder_sha256) == (None, None)
    assert not is_packaged(without)
    assert describe_encoder(without.agent, _cameras(without)).endswith(
        "as in agent.encoder_weights"
    )


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (
            {"task_config": {"views": {"wrist": SMALL}}},
            "is for cameras .*, here are .* wrist 32 x 32",
        ),
        ({"task_config": {"views": {"eye": {"camera": "field"}}}}, "here are .*eye 84 x 84"),
        ({"agent": {"frames": 2}}, r"has agent\.frames 1, here it is 2"),
        ({"agent": {"latent": 32}}, r"has agent\.latent 64, here it is 32"),
        ({"agent": {"encoder_channels": [8, 8]}}, r"has agent\.encoder_channels .*, here it is"),
    ],
)
def test_encoder_without_packaged_match_starts_untrained_with_reason(
    overrides: dict[str, Any], reason: str
) -> None:
    config = settings(**overrides)
    assert config.agent.encoder_weights is None
    line = describe_encoder(config.agent, _cameras(config))
    assert line.startswith("the encoder starts untrained: tabletop ")
    assert re.search(reason, line)
    with pytest.raises(SpecMismatch, match=r"encoder .*tabletop\.safetensors"):
        settings(**_asking(overrides))


def test_real_arm_uses_privileged_encoder_only_by_name(tmp_path: Path) -> None:
    config = settings(**REAL)
    assert config.agent.encoder_weights is None
    assert not is_packaged(config)
    unresolved = config.agent.model_copy(update={"encoder_weights": "auto"})
    assert not is_packaged(config.model_copy(update={"agent": unresolved}))
    run = RunFolder.create(tmp_path / "auto", config, datetime(2026, 11, 23))
    _, lines = _encoder_of_learner(run)
    assert lines == [
        "the encoder starts untrained: those that come with serl are privileged (trained on the "
        "truth of its simulation), and a real arm takes one only where agent.encoder_weights names "
        "it"
    ]
    with pytest.raises(BadInput, match=r"cached_features: .*\(those that come with serl are"):
        settings(**merge(REAL, {"agent": {"cached_features": True}}))
    named = settings(**merge(REAL, {"agent": {"encoder_weights": TABLETOP}}))
    assert is_packaged(named)
    assert settings(robot="sim").agent.encoder_weights == TABLETOP


def test_real_arm_run_keeps_its_packaged_encoder_on_resume(
    tmp_path: Path,
) -> None:
    """Resume a run from before real arms were excluded from `auto`."""
    config = settings(**merge(REAL, {"agent": {"encoder_weights": TABLETOP}}))
    run = RunFolder.create(tmp_path, config, datetime(2026, 11, 22))
    again = RunFolder.open(run.path)
    assert again.config == config
    first, lines = _encoder_of_learner(again, moved_by=0.5)
    assert any("tabletop, which comes with serl and is privileged" in line for line in lines)
    resumed, _ = _encoder_of_learner(again)
    assert np.array_equal(resumed, first + np.float32(0.5))


def test_agent_without_small_encoder_has_no_encoder_description() -> None:
    blind = run_settings("pick_cube", FAST, {})
    assert blind.agent.encoder_weights is None
    assert describe_encoder(blind.agent, {}) == ""
    trunk = blind.agent.model_copy(update={"encoder": "resnet10", "encoder_weights": "auto"})
    cameras = _cameras(settings())
    assert misfit(TABLETOP, trunk, cameras) == "there is no small encoder"
    assert with_encoder(trunk, [cameras]).encoder_weights is None
    assert describe_encoder(trunk, cameras) == ""
    cached = describe_encoder(trunk.model_copy(update={"cached_features": True}), cameras)
    assert "batches are not shifted at random" in cached
    with pytest.raises(BadInput, match="the task has no cameras"):
        run_settings("pick_cube", FAST, {"agent": {"encoder_weights": TABLETOP}})


def test_agent_created_without_a_run_uses_packaged_encoder() -> None:
    config = resolve({"task": "pick_cube", "observe": "pixels"}, FAST)
    assert config.agent.encoder_weights == "auto"
    assert is_packaged(config)
    acting = make_acting_agent(config, make_spec(make_task(config)), 0).actor_weights()
    mine = encoder_of(config)
    assert any(not np.array_equal(acting[name][0], mine[name]) for name in mine), "not loaded"


def test_encoder_file_changed_since_run_creation_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.safetensors"
    path.write_bytes(weights_file(TABLETOP).read_bytes())
    config = settings(agent={"encoder_weights": path})
    assert config.agent.encoder_weights == path
    assert describe_encoder(config.agent, _cameras(config)) == f"the encoder starts from {path}"
    assert is_packaged(config)
    path.write_bytes(path.read_bytes() + b"\0")
    with pytest.raises(BadInput, match="holds another encoder than when the run was made"):
        make_agent(config, make_spec(make_task(config)), 0)
    with pytest.raises(BadInput, match="No such file"):
        settings(agent={"encoder_weights": tmp_path / "none"})


def test_learner_loads_encoder_once_and_later_run_inherits_it(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, settings(), datetime(2026, 11, 22))
    assert RunFolder.open(run.path).config == run.config
    first, lines = _encoder_of_learner(run)
    assert any(line.startswith("the encoder is tabletop") for line in lines)
    sent, _ = _encoder_of_learner(run, moved_by=0.5)
    assert np.array_equal(sent, first), "no checkpoint yet"
    resumed, again = _encoder_of_learner(run)
    assert np.array_equal(resumed, first + np.float32(0.5)), "the trained encoder"
    assert sum("the encoder is" in line for line in again) == 2, "resuming prints no encoder line"
    heir = RunFolder.create(
        tmp_path / "heir", settings(init_from={"run": run.path}), datetime(2026, 11, 22)
    )
    assert heir.config.agent.encoder_weights is None
    inherited, lines = _encoder_of_learner(heir)
    assert np.array_equal(inherited, resumed)
    assert not any("the encoder is" in line for line in lines)
    origin = {"run": run.path, "load": ["normaliser"]}
    other = RunFolder.create(tmp_path / "2", settings(init_from=origin), datetime(2026, 11, 22))
    assert other.config.agent.encoder_weights == TABLETOP
    fresh, lines = _encoder_of_learner(other)
    assert np.array_equal(fresh, first)
    assert not any(line.startswith("fresh: ") and "encoder" in line for line in lines)


def test_frozen_encoder_needs_named_weights() -> None:
    with pytest.raises(BadInput, match=r"agent\.frozen: nothing loads the encoder"):
        settings(agent={"frozen": ["encoder"]})
    frozen = settings(agent={"frozen": ["encoder"], "encoder_weights": TABLETOP})
    assert is_packaged(frozen)


def test_recorded_pretrain_command_reproduces_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    quick = ["--samples", "100", "--epochs", "1", "--channels", "[4]", "--threads", "1"]
    views = "{front: {width: 16, height: 16}, wrist: {width: 16, height: 16}}"
    worlds = ["--task_config.views", views, "--task_config.randomize", "light"]
    words = ["encoder", "pretrain", "pick_cube", "bin_relocation", *quick, *worlds, "--seed", "3"]
    assert main([*words, "--out", "a.safetensors"]) == 0
    made = metadata_of(Path("a.safetensors").read_bytes(), "serl encoder 1")
    card = json.loads(made["card"])
    assert card["privileged"] is True
    assert "\nprivileged: trained on the simulator's ground truth" in capsys.readouterr().out
    assert card["task_config"]["randomize"] == "light"
    assert set(card["errors"]) == {"pick_cube", "bin_relocation"}
    Path("a.safetensors").unlink()
    assert main(shlex.split(card["command"])[1:]) == 0
    assert metadata_of(Path("a.safetensors").read_bytes(), "serl encoder 1") == made


@pytest.mark.parametrize(
    ("overrides", "kept"),
    [
        ({}, True),
        ({"robot": "sim"}, True),
        ({"robot": "franka", "demos": 0, "reward": {"kind": "human"}}, False),
        ({"task_config": {"randomize": "light"}}, True),
        ({"task_config": {"randomize": "full"}}, False),
        ({"task_config": {"views": {"front": {"crop": (0.1, 0.0, 0.9, 1.0)}}}}, False),
        ({"agent": {"encoder_weights": "none"}}, False),
        ({"agent": {"encoder_weights": "tabletop"}}, False),
        ({"agent": {"encoder_weights": "tabletop", "cached_features": True}}, True),
        ({"agent": {"cached_features": False}}, False),
        ({"agent": {"latent": 32}}, False),
        ({"agent": {"cached_features": None}}, True),
        ({"reward": {"kind": "vice"}, "demos": 3}, False),
        ({"task_config": {"renderer": "gl"}}, False),
        ({"task_config": {"time_limit_s": 12.0}}, True),
        ({"task_config": {"field_low_m": (0.4, -0.2)}}, False),
        (
            {"stages": {"a": {"then": "b", "config": {"observe": "state"}}, "b": {"then": "a"}}},
            False,
        ),
    ],
)
def test_features_are_cached_only_for_images_the_encoder_knows(
    overrides: dict[str, Any], kept: bool
) -> None:
    """Check caching and the matching update ratio, batch size and step count."""
    box = {"motion": {"box_low_m": [0.4, -0.1, 0.1], "box_high_m": [0.6, 0.1, 0.4]}}
    place = {"task_config": box} if overrides.get("robot") == "franka" else {}
    config = run_settings("pick_cube", {"observe": "pixels"}, merge(overrides, place))
    agent = config.agent
    assert agent.cached_features is kept
    assert (agent.utd, agent.batch_size, config.steps) == (
        (4, 256, 6000) if kept else (1, 128, 12_000)
    )


@pytest.mark.parametrize(
    ("task", "weights", "kept"),
    [
        ("pick_cube", "tabletop", True),
        ("bin_relocation", "tabletop", False),
        ("peg_insertion", "insertion", True),
        ("connector_insertion", "insertion", True),
        ("drawer", "side", False),
        ("cable_routing", "side", False),
        ("handover", None, False),
        ("timing_belt", None, False),
        ("racing_car", None, False),
    ],
)
def test_each_task_uses_the_encoder_of_its_cameras(
    task: str, weights: PackagedEncoder | None, kept: bool
) -> None:
    stages = {"stages": None} if task == "bin_relocation" else {}
    agent = run_settings(task, {"observe": "pixels"}, stages).agent
    assert (agent.encoder_weights, agent.cached_features) == (weights, kept)


def test_custom_task_does_not_cache_features_by_default(tmp_path: Path) -> None:
    """Use a task from a file: its images may differ from those of the packaged task."""
    path = tmp_path / "mine.py"
    path.write_text(
        "from serl.tasks.pick_cube import PickCube\n\n\n"
        "class Mine(PickCube):\n    pass\n\n\ntask = Mine\n"
    )
    agent = run_settings(str(path), {"observe": "pixels"}, {}).agent
    assert (agent.encoder_weights, agent.cached_features) == (TABLETOP, False)


def test_last_settings_layer_decides_reward_kind() -> None:
    vice = {"observe": "pixels", "reward": {"kind": "vice"}}
    assert run_settings("pick_cube", vice, {"reward": {"kind": "task"}}).agent.cached_features


@pytest.mark.parametrize("wrong", [{"reward": "classifier"}, {"agent": 5}, {"agent": ["latent"]}])
def test_settings_of_wrong_type_give_one_line_errors(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match=r"^(reward|agent): "):
        run_settings("pick_cube", {"observe": "pixels"}, wrong)


def test_encoder_for_several_tasks_names_the_mismatch() -> None:
    agent = SACConfig(cached_features=True)
    both = [_cameras(settings(task)) for task in ("pick_cube", "peg_insertion")]
    with pytest.raises(BadInput, match="none that comes with serl is for all of these tasks"):
        with_encoder(agent, both)
    with pytest.raises(BadInput, match=r"tabletop is for cameras .*wrist 32 x 32"):
        with_encoder(agent, [both[0], {"wrist": ArraySpec(shape=(32, 32, 3), dtype="uint8")}])
    with pytest.raises(BadInput, match=r"agent\.cached_features: the task has no cameras"):
        with_encoder(agent, [both[0], {}])


def test_cached_features_need_cameras() -> None:
    with pytest.raises(BadInput, match=r"agent\.cached_features: the task has no cameras"):
        run_settings("pick_cube", {}, {"agent": {"cached_features": True}})
    trunk = {"agent": {"cached_features": True, "encoder": "resnet10", "hidden": [8]}}
    with pytest.raises(BadInput, match=r"agent\.cached_features: needs the ResNet-10"):
        run_settings("pick_cube", {"observe": "pixels"}, trunk)


def test_run_inherits_cached_features_setting_with_actor(tmp_path: Path) -> None:
    slow = {"cached_features": False}
    for number, (agent, kept) in enumerate((({}, True), (slow, False))):
        config = run_settings("pick_cube", {"observe": "pixels", "demos": 0}, {"agent": agent})
        run = RunFolder.create(tmp_path / str(number), config, datetime(2026, 11, 23))
        _encoder_of_learner(run, moved_by=0.1)
        heir = run_settings("pick_cube", {"observe": "pixels"}, {"init_from": run.path})
        assert (heir.agent.cached_features, heir.agent.encoder_weights) == (kept, None)
        afresh = {"init_from": {"run": run.path, "load": ["normaliser"]}}
        again = run_settings("pick_cube", {"observe": "pixels"}, afresh)
        assert (again.agent.cached_features, again.agent.encoder_weights) == (True, TABLETOP)


@pytest.mark.slow
@pytest.mark.parametrize("name", PACKAGED)
def test_recorded_command_reproduces_packaged_encoder_accuracy(
    name: PackagedEncoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check errors within 20 %; results are bit-identical only on an equal processor."""
    monkeypatch.chdir(tmp_path)
    card = json.loads(metadata_of(weights_file(name).read_bytes(), "serl encoder 1")["card"])
    assert main(shlex.split(card["command"])[1:]) == 0
    (made,) = tmp_path.glob("*.safetensors")
    again = json.loads(metadata_of(made.read_bytes(), "serl encoder 1")["card"])
    for task, errors in card["errors"].items():
        for target, error in errors.items():
            assert again["errors"][task][target] < 1.2 * error


def _encoder_of_learner(
    run: RunFolder, moved_by: float = 0.0
) -> tuple[np.ndarray[Any, Any], list[str]]:
    """Return the learner's initial encoder weights and logged events; save if `moved_by` is set."""
    with MetricsWriter(run.path) as metrics, closing(Continuation(run, metrics)) as going:
        learner = going.learner(InProcess())
        agent = learner.agent
        assert isinstance(agent, SAC)
        begins = agent.actor_weights()["encoder.front.0.weight"]
        if moved_by:
            agent.encoder.flat.data += moved_by
            learner.checkpoint()
    events = [row["text"] for row in read_metrics(run.metrics) if row["kind"] == "event"]
    return begins, events


def _cameras(config: TrainConfig) -> Any:
    return make_spec(make_task(config)).observation.images


def _asking(overrides: dict[str, Any]) -> dict[str, Any]:
    agent = {**overrides.get("agent", {}), "encoder_weights": TABLETOP}
    return {**overrides, "agent": agent}
