from __future__ import annotations

import io
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from serl.cli import training
from serl.errors import BadInput
from serl.log.metrics import read_metrics
from serl.report.curves import reached
from serl.report.display import Display, Summary
from serl.runs import baseline
from serl.runs.config import resolve
from serl.runs.folder import RunFolder
from serl.runs.task_setup import make_spec, make_task
from serl.testing.samples import random_step
from serl.training.evaluation import Evaluation, Trial
from serl.types import ActionSource, End, EndReason, Key

SETTINGS = {
    "task": "reach",
    "demos": 2,
    "trials": 2,
    "selection_trials": 1,
    "baseline": "clone",
    "agent": {"batch_size": 16, "threads": 1, "device": "cpu", "hidden": [8, 8]},
    "task_config": {"time_limit_s": 1.0},
}


def make_evaluation(successes: int, trials: int) -> Evaluation:
    return Evaluation(
        tuple(Trial(n, n < successes, 10, 1.0, "success" * (n < successes)) for n in range(trials))
    )


def test_clone_learns_demonstrations_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    noise = {"tcp_velocity": 1.0}
    own = {
        "feedback": {"weight": 1.0},
        "agent": {"bc_noise": noise, "frozen": ["actor"]},
        "init_from": {"run": "another", "load": ["actor"]},
    }
    evaluated = resolve(SETTINGS, own)
    run = RunFolder.create(tmp_path, evaluated, datetime.now())
    cloned = baseline.clone_settings(run.config)
    assert cloned.feedback.weight == 0.0, "a clone must not learn from rewards"
    assert cloned.agent.frozen == (), "it starts from no other run"
    assert (cloned.steps, cloned.intervention, cloned.agent.algorithm) == (0, "none", "bc")
    assert cloned.agent.model_dump()["bc_noise"] == noise, (
        "a clone observes as the run's agent does"
    )
    assert (cloned.seed, cloned.demos, cloned.baseline) == (0, 2, "none")
    display = Display(Console(file=io.StringIO()))
    training.demonstrate(run, display)
    monkeypatch.setattr(baseline, "LENGTHS", (5, 10))
    (short, begun), (long, ended) = baseline.clone(run)[1]
    assert (short, long) == (5, 10)
    assert any((begun[name] != ended[name]).any() for name in begun)
    output = io.StringIO()
    evaluation = training.examine_clone(run, Display(Console(file=output)))
    assert "updates of the clone: 5 of 10" in output.getvalue()
    (row,) = read_metrics(run.metrics)
    assert (row["purpose"], row["checkpoint"], row["trials"]) == ("clone", 0, 2)
    assert row["successes"] == evaluation.successes
    # The evaluation of the clone is not a result of training.
    assert reached([{**row, "successes": 2}]) == (np.inf, np.inf)


@pytest.mark.parametrize(
    ("task", "more", "moving"),
    [
        ("peg_insertion_6d", {}, "tcp_velocity angular_velocity force torque lead turn_lead"),
        ("pick_cube", {}, "tcp_velocity lead"),
        ("pick_cube", {"observe": "pixels"}, ""),
        ("pick_cube", {"demonstrator": "expert"}, ""),
        ("racing_car", {}, ""),
    ],
)
def test_clone_of_person_is_made_with_noise_on_own_motion_of_arm(
    task: str, more: dict[str, Any], moving: str
) -> None:
    made = {"task": task, "demos": 2, "baseline": "clone", "demonstrator": "human"}
    cloned = baseline.clone_settings(resolve(made, more)).agent.model_dump()
    assert cloned["bc_noise"] == dict.fromkeys(moving.split(), 1.0)
    assert cloned["actor_average"] == (0.0 if more.get("demonstrator") == "expert" else 0.998)
    chosen = baseline.clone_settings(resolve(made, more, {"agent": {"actor_average": 0.9}}))
    assert chosen.agent.model_dump()["actor_average"] == 0.9, "the run's own setting is kept"


def test_clone_trains_encoder_that_run_inherits_and_keeps_other_ones() -> None:
    """The run's cached features are of the other run's encoder, from which no clone starts."""
    more = {"observe": "pixels", "agent": {"cached_features": True, "encoder_weights": None}}
    origin = {"init_from": {"run": "another", "load": ["encoder"]}}
    assert not baseline.clone_settings(resolve(SETTINGS, more, origin)).agent.cached_features
    for kept in ({"encoder_weights": "encoder.npz"}, {"encoder": "resnet10"}):
        made = resolve(SETTINGS, more, {"agent": kept})
        assert baseline.clone_settings(made).agent.cached_features


def test_clone_without_successful_demonstration_is_refused(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, resolve(SETTINGS), datetime.now())
    with pytest.raises(BadInput, match="no demonstration is a success"):
        baseline.clone(run)


def test_clone_from_images_has_room_for_all_demonstrations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check one long demonstration instead of some 200."""
    views = {"views": {"front": {"width": 8, "height": 8}}}
    small = {"encoder_channels": [4], "encoder_weights": "none", "utd": 1}
    pixels = {"task": "pick_cube", "observe": "pixels", "agent": small, "task_config": views}
    config, steps = resolve(SETTINGS, pixels), 20_500
    key = Key("run", "expert", 1, 0, 0)
    step = random_step(key, make_spec(make_task(config)), np.random.default_rng(0))
    step = replace(step, source=ActionSource.SCRIPT, terminated=False)
    end = replace(key, index=steps)
    records = [
        *(replace(step, key=replace(key, index=index)) for index in range(steps)),
        End(end, step.observation, True, EndReason.SUCCESS, 1.0, 1.0),
    ]
    monkeypatch.setattr(baseline, "_successes", lambda run: records)
    monkeypatch.setattr(baseline, "LENGTHS", (1, 2))
    _, clones = baseline.clone(RunFolder.create(tmp_path, config, datetime.now()))
    assert [updates for updates, _ in clones] == [1, 2]


@pytest.mark.parametrize("more", [{"demos": 0}, {"robot": "robots/franka.py"}])
def test_clone_baseline_requires_demonstrations_and_simulation(more: dict[str, object]) -> None:
    with pytest.raises(BadInput, match="baseline clone"):
        resolve(SETTINGS, more)


def test_summary_compares_training_with_clone() -> None:
    def text(
        clone: Evaluation | None, practice_s: float | None = 245.0, inherited: bool = False
    ) -> str:
        after: dict[str, Any] = {"clone": clone, "practice_s": practice_s, "inherited": inherited}
        return Summary(
            "reach", Path("r"), make_evaluation(50, 50), 600, 300.0, **after
        ).comparison()

    assert text(None) == ""
    assert text(make_evaluation(12, 50)) == (
        "cloned from the same demonstrations: 12 of 50; after 4:05 of practice: 50 of 50"
    )
    assert text(make_evaluation(12, 50), None).endswith(
        "; after the warm-up alone, as practice added nothing: 50 of 50"
    )
    assert text(make_evaluation(12, 50), None, True).endswith(
        "; inherited, as practice added nothing: 50 of 50"
    )


def test_inherited_run_skips_warm_up_unless_critics_are_missing() -> None:
    def inherited(warm_up: int, *load: str) -> bool:
        origin = {"run": "other", "load": load} if load else {}
        config = resolve(SETTINGS, {"init_from": origin, "learner": {"warm_up": warm_up}})
        return training.begins_inherited(config)

    assert [inherited(0), inherited(5), inherited(5, "actor")] == [False, False, False]
    assert inherited(0, "actor")
    assert inherited(5, "actor", "critics")
    whole = resolve(SETTINGS, {"init_from": "other", "learner": {"warm_up": 5}})
    assert training.begins_inherited(whole), "without `load` the critics are loaded as well"
