from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from serl.agents.config import SACConfig
from serl.agents.sac import actor_terms
from serl.errors import BadInput
from serl.log.metrics import EvaluationRow, MetricsWriter
from serl.runs import folder
from serl.runs.folder import RunFolder
from serl.runs.sweep import SweepConfig, configuration_name, read_sweep, sweep_runs
from serl.system.settings_file import checked

NOW = datetime(2026, 11, 23)
EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "sweep.yaml"
TINY = {"demos": 0, "agent": {"hidden": [8, 8], "device": "cpu"}}


def sweep(**values: Any) -> SweepConfig:
    return checked(SweepConfig, {"tasks": ["reach"], "seeds": [0], "settings": TINY} | values)


def test_sweep_combines_factors_tasks_and_seeds_into_folders(tmp_path: Path) -> None:
    factors = {"agent.utd": [2, 4], "actor.home_every": [0, 5]}
    runs = sweep_runs(sweep(tasks=["reach", "drawer"], seeds=[7, 3], factors=factors), tmp_path)
    assert len(runs) == 16
    assert [run.seed for run in runs] == [7] * 8 + [3] * 8
    assert runs[0].path == tmp_path / "utd-2_home_every-0" / "reach-7"
    assert runs[-1].path == tmp_path / "utd-4_home_every-5" / "drawer-3"
    assert runs[0].name == "utd-2_home_every-0/reach-7"
    config = runs[-1].config
    assert (config.task, config.seed) == ("drawer", 3)
    assert (config.agent.utd, config.actor.home_every, config.demos) == (4, 5, 0)


@pytest.mark.parametrize(
    ("factors", "name"),
    [
        ({}, "base"),
        ({"agent.bc_weight": 0.5}, "bc_weight-0.5"),
        ({"agent.algorithm": "bc", "reward.kind": "task"}, "algorithm-bc_kind-task"),
        ({"human.share": 0.1, "other.share": 1}, "human.share-0.1_other.share-1"),
        ({"agent.hidden": [64, 64], "robot": None}, "hidden-64-64_robot-None"),
        ({"task_config.x": "../../etc"}, "x-..-..-etc"),
        ({"agent.entropy_per_dimension": -0.5}, "entropy_per_dimension--0.5"),
    ],
)
def test_configuration_is_named_by_its_factors(factors: dict[str, Any], name: str) -> None:
    assert configuration_name(factors) == name


def test_sweep_run_is_created_once_and_resumed_only_with_equal_settings(tmp_path: Path) -> None:
    (run,) = sweep_runs(sweep(), tmp_path)
    assert run.begun() is None
    assert not run.is_finished()
    made = run.open(NOW)
    assert made.path == tmp_path / "base" / "reach-0"
    key = (made.path / "stream.key").read_bytes()
    assert (run.open(NOW).path / "stream.key").read_bytes() == key
    assert not run.is_finished()
    with MetricsWriter(made.path) as writer:
        writer.write(9, EvaluationRow(9, 5, 5, 1.0, "selection"))
        assert not run.is_finished()
        writer.write(9, EvaluationRow(9, 5, 5, 1.0, "final"))
    assert run.is_finished()
    (other,) = sweep_runs(sweep(settings=TINY | {"steps": 77}), tmp_path)
    with pytest.raises(BadInput, match=r"begun with other settings \(steps\); give another --out"):
        other.begun()


def test_trials_that_ended_early_are_repeated_only_on_an_arm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (run,) = sweep_runs(sweep(), tmp_path)
    with MetricsWriter(run.open(NOW).path) as writer:
        writer.write(
            9, EvaluationRow(9, 0, 0, None, "final", early_end="ended early: 0 of 5 valid")
        )
    assert run.is_finished()
    monkeypatch.setattr(folder, "is_real", lambda robot: True)
    assert not run.is_finished()


def test_run_with_baseline_is_finished_after_trials_of_clone(tmp_path: Path) -> None:
    settings = TINY | {"demos": 2, "baseline": "clone"}
    (run,) = sweep_runs(sweep(settings=settings), tmp_path)
    with MetricsWriter(run.open(NOW).path) as writer:
        writer.write(9, EvaluationRow(9, 5, 5, 1.0, "final"))
        assert not run.is_finished()
        writer.write(9, EvaluationRow(0, 5, 5, 1.0, "clone"))
    assert run.is_finished()


def test_run_with_stages_is_finished_when_all_stages_are(tmp_path: Path) -> None:
    (run,) = sweep_runs(sweep(tasks=["bin_relocation"]), tmp_path)
    parts = run.open(NOW).parts()
    assert len(parts) == 2
    for number, part in enumerate(parts.values()):
        assert not run.is_finished()
        assert isinstance(part, RunFolder)
        with MetricsWriter(part.path) as writer:
            writer.write(9, EvaluationRow(9, 5, 5, float(number), "final"))
    assert run.is_finished()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"seeds": []}, "seeds: tuple should have at least 1 item"),
        ({"seeds": [1, 1]}, "seeds: one is given twice"),
        ({"seeds": [-1]}, r"seeds\.0: expected at least 0"),
        ({"tasks": []}, "tasks: "),
        ({"settings": {"seed": 1}}, "seed: belongs to seeds"),
        ({"factors": {"task": ["reach"]}}, "task: belongs to tasks"),
        ({"factors": {"agent.utd": []}}, r"factors\.agent\.utd: expected at least one value"),
    ],
)
def test_mistakes_in_sweep_file_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        sweep(**values)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"factors": {"agent.utd": [1, 1]}}, "two configurations are named utd-1"),
        ({"tasks": ["a/my.py", "b/my.py"]}, "tasks: two have one name"),
        ({"seeds": range(10_001)}, "the sweep has 10001 runs, allowed 10000"),
        ({"factors": {"agent.x": ["y" * 100]}}, "configuration 'x-yyy"),
        ({"tasks": ["../.."]}, r"run '\.\.-0'"),
    ],
)
def test_sweep_runs_without_unique_folder_are_refused(
    tmp_path: Path, values: dict[str, Any], message: str
) -> None:
    with pytest.raises(BadInput, match=message):
        sweep_runs(sweep(**values), tmp_path)


def test_unknown_factor_is_refused(tmp_path: Path) -> None:
    (run,) = sweep_runs(sweep(factors={"agent.udt": [1]}), tmp_path)
    with pytest.raises(BadInput, match=r"agent\.udt: unknown setting"):
        _ = run.config
    (run,) = sweep_runs(sweep(factors={"agent.utd.x": [1]}), tmp_path)
    with pytest.raises(BadInput, match=r"agent\.utd"):
        _ = run.config


def test_example_sweep_is_accepted(tmp_path: Path) -> None:
    runs = sweep_runs(read_sweep(EXAMPLE), tmp_path)
    assert len(runs) == 20
    late = {}
    for run in runs:
        assert isinstance(run.config.agent, SACConfig)
        late[run.configuration] = actor_terms(run.config.agent, updates=100_000)
    assert late == {"bc_final_weight-0.0": (1.0, 0.0), "bc_final_weight-0.5": (1.0, 0.5)}
