"""A run that starts with what another one learned."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from serl.assembly import make_agent, make_spec, make_task
from serl.checkpoint import checkpoint_paths, load, mark_best
from serl.cli import main
from serl.config import TrainConfig, resolve
from serl.continuation import Continuation
from serl.errors import BadInput, SpecMismatch
from serl.inheritance import inherit
from serl.metrics import MetricsWriter, read_metrics
from serl.run_folder import RunFolder
from serl.specs import Spec
from serl.testing.logs import random_step
from serl.testing.samples import equal
from serl.transport import InProcess
from serl.types import End, Key, Record, Source

AGENT = {"hidden": [8], "batch_size": 4, "utd": 2, "threads": 1, "device": "cpu"}
SETTINGS: dict[str, Any] = {"task": "reach", "demos": 0, "steps": 100, "agent": AGENT}


def saved_run(root: Path, settings: dict[str, Any] = SETTINGS, steps: int = 7) -> RunFolder:
    """A run with a checkpoint of an agent that has learned something, as far as numbers tell."""
    config = resolve(settings)
    run = RunFolder.create(root, config, datetime(2026, 11, 21))
    agent = make_agent(config, make_spec(make_task(config)), seed=5)
    state = {**agent.state_dict()}
    for name in ("normaliser.mean", "normaliser.std", "adam.actor.moment.0.weight"):
        if name in state:
            state[name] = np.full_like(state[name], 2.0)
    state["updates"] = np.full_like(state["updates"], 1234)
    arrays = {"agent": state, "actor": agent.actor_weights(), "replay": {"x": np.zeros(1)}}
    run.save_checkpoint(steps, arrays, {})
    return run


@pytest.fixture
def heir(tmp_path: Path) -> tuple[RunFolder, RunFolder]:
    """A run, and a fresh one that is to start from it."""
    before = saved_run(tmp_path / "before")
    config = resolve(SETTINGS, {"init_from": before.path, "seed": 9})
    return before, RunFolder.create(tmp_path / "after", config, datetime(2026, 11, 22))


def test_a_run_starts_with_the_networks_and_the_scale_of_another(
    heir: tuple[RunFolder, RunFolder], capsys: pytest.CaptureFixture[str]
) -> None:
    before, after = heir
    theirs = load(checkpoint_paths(before.checkpoints)[0]).arrays["agent"]
    with MetricsWriter(after.path) as metrics:
        continuation = Continuation(after, metrics)
        learner = continuation.learner(InProcess())
        continuation.close()
    mine = learner.agent.state_dict()
    kept = [name for name in theirs if not name.startswith(("adam.", "generator.", "skipped"))]
    assert {name.split(".")[0] for name in kept} == {
        *("actor", "critic", "target", "temperature", "normaliser", "updates")
    }
    assert equal({name: mine[name] for name in kept}, {name: theirs[name] for name in kept})
    assert not any(mine[name].any() for name in mine if name.startswith("adam."))
    assert not np.array_equal(mine["generator.learning"], theirs["generator.learning"])
    told = capsys.readouterr().err
    assert "starts with encoder, actor, critics, targets" in told
    assert "7 steps of reach" in told
    assert told.strip() in [row.get("text") for row in read_metrics(after.metrics)]


def test_what_was_inherited_stays_when_the_other_run_changes_or_goes(
    heir: tuple[RunFolder, RunFolder],
) -> None:
    before, after = heir
    first = continued(after)
    shutil.rmtree(before.path)
    again = continued(after)
    kept = [name for name in first if name.startswith(("actor", "critic", "normaliser"))]
    assert equal({name: again[name] for name in kept}, {name: first[name] for name in kept})


def test_the_scale_is_not_estimated_anew_after_a_resume(heir: tuple[RunFolder, RunFolder]) -> None:
    _, after = heir
    mean = continued(after)["normaliser.mean"]
    with MetricsWriter(after.path) as metrics:
        continuation = Continuation(after, metrics)
        transport = InProcess()
        learner = continuation.learner(transport)
        transport.send(list(episodes(continuation.spec)))
        while learner.progress.steps < 3:
            learner.step()
        continuation.close()
    assert np.array_equal(learner.agent.state_dict()["normaliser.mean"], mean)


def continued(run: RunFolder) -> Mapping[str, Any]:
    """The state of the learner with which a run goes on."""
    with MetricsWriter(run.path) as metrics, closing(Continuation(run, metrics)) as continuation:
        return continuation.learner(InProcess()).agent.state_dict()


def episodes(spec: Spec) -> Iterator[Record]:
    """The steps of an episode, and its end."""
    rng = np.random.default_rng(0)
    key = Key("run", "a", 1, 0, 0)
    for index in range(20):
        step = random_step(replace(key, index=index), spec, rng)
        yield replace(
            step, source=Source.POLICY, policy_version=0, terminated=False, truncated=index == 19
        )
    yield End(replace(key, index=20), step.observation, False, "time limit", 1.0, 1.0)


def test_the_chosen_checkpoint_is_taken_before_a_newer_one(tmp_path: Path) -> None:
    run = saved_run(tmp_path)
    agent = make_agent(run.config, make_spec(make_task(run.config)), seed=6)
    run.save_checkpoint(9, {"agent": agent.state_dict()}, {})
    spec = make_spec(make_task(run.config))
    assert "9 steps" in inherit(run.path, spec).text
    mark_best(checkpoint_paths(run.checkpoints)[0])
    assert "7 steps" in inherit(run.path, spec).text


def test_a_run_that_does_not_fit_is_refused_with_one_line(tmp_path: Path) -> None:
    run = saved_run(tmp_path)
    other = make_spec(make_task(resolve({"task": "peg_insertion"})))
    with pytest.raises(SpecMismatch, match=r"cannot start from it, its spec != this task's: "):
        inherit(run.path, other)
    with pytest.raises(BadInput, match="absent"):
        inherit(tmp_path / "absent", other)
    empty = RunFolder.create(tmp_path / "empty", resolve(SETTINGS), datetime(2026, 11, 21))
    with pytest.raises(BadInput, match="no checkpoint"):
        inherit(empty.path, make_spec(make_task(run.config)))


def test_networks_of_another_size_are_refused(heir: tuple[RunFolder, RunFolder]) -> None:
    before, after = heir
    wider = TrainConfig.model_validate(
        {**after.config.model_dump(), "agent": {**AGENT, "hidden": [16]}}
    )
    after.info = after.info.model_copy(update={"config": wider})
    with MetricsWriter(after.path) as metrics:
        continuation = Continuation(after, metrics)
        with pytest.raises(SpecMismatch, match=r"expected float32\["):
            continuation.learner(InProcess())
        continuation.close()
    assert before.path.exists()


def test_the_command_line_refuses_it_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = saved_run(tmp_path / "before")
    monkeypatch.chdir(tmp_path)
    for words, what in (
        (["pick_cube"], "cannot start from it"),
        (["reach", "--agent.hidden", "[16]"], "expected float32["),
    ):
        assert main(["train", *words, "--init-from", str(run.path)]) == 2
        line = capsys.readouterr().err
        assert line.count("\n") == 1
        assert what in line
    assert not (tmp_path / "runs").exists()
