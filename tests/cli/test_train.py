from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from serl.cli import training as train
from serl.errors import BadInput, CorruptData
from serl.log.episode_log import EpisodeLog
from serl.log.episode_reader import episode_paths, read_episode
from serl.log.metrics import MetricsWriter, UpdateRow, read_metrics
from serl.report.display import Display
from serl.runs.assembly import make_agent
from serl.runs.config import resolve
from serl.runs.deployment import TrialResult, append_trial_result
from serl.runs.folder import RunFolder
from serl.runs.task_setup import make_spec, make_task
from serl.types import Record


@pytest.fixture
def display() -> Display:
    return Display(Console(file=io.StringIO()))


def make_run(root: Path, **settings: object) -> RunFolder:
    config = resolve({"task": "reach", "demos": 3}, settings)
    return RunFolder.create(root, config, datetime.now())


def lengths(run: RunFolder) -> list[int]:
    spec = make_spec(make_task(run.config))
    episodes = [read_episode(path, spec) for path in episode_paths(run.demonstrations)]
    assert all(episode.success for episode in episodes)
    return [len(episode.steps) for episode in episodes]


def test_demonstrations_are_recorded_once(tmp_path: Path, display: Display) -> None:
    run = make_run(tmp_path)
    train.demonstrate(run, display)
    assert len(lengths(run)) == 3
    before = episode_paths(run.demonstrations)
    train.demonstrate(run, display)
    assert episode_paths(run.demonstrations) == before


def test_single_demonstration_is_announced_in_the_singular(
    tmp_path: Path, display: Display
) -> None:
    train.demonstrate(make_run(tmp_path, demos=1), display)
    assert isinstance(display.console.file, io.StringIO)
    assert "recording 1 demonstration of the" in display.console.file.getvalue()


def test_interrupted_demonstrations_are_recorded_from_start(
    tmp_path: Path, display: Display, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, cut = make_run(tmp_path), make_run(tmp_path)
    train.demonstrate(whole, display)

    append = EpisodeLog.append

    def interrupted(log: EpisodeLog, record: Record) -> None:
        if record.key.episode == 2:
            raise KeyboardInterrupt
        append(log, record)

    with monkeypatch.context() as patch:
        patch.setattr(EpisodeLog, "append", interrupted)
        with pytest.raises(KeyboardInterrupt):
            train.demonstrate(cut, display)
    assert not cut.demonstrations.exists()
    train.demonstrate(cut, display)
    assert lengths(cut) == lengths(whole)


def test_demonstrate_refuses_run_in_use_by_learner(tmp_path: Path, display: Display) -> None:
    run = make_run(tmp_path)
    with run.lock_learner(), pytest.raises(BadInput, match="its learner is in use"):
        train.demonstrate(run, display)


def test_demonstrate_records_nothing_if_demo_paths_are_given(
    tmp_path: Path, display: Display
) -> None:
    run = make_run(tmp_path, demo_paths=[str(tmp_path)])
    train.demonstrate(run, display)
    assert not run.demonstrations.exists()


def test_examine_refuses_run_without_checkpoint(tmp_path: Path, display: Display) -> None:
    with pytest.raises(BadInput, match="no checkpoint to evaluate"):
        train.examine(make_run(tmp_path), display)


def test_damaged_checkpoint_is_skipped_unless_all_are(tmp_path: Path, display: Display) -> None:
    run = make_run(tmp_path)
    paths = [run.save_checkpoint(step, {"actor": {"w": np.ones(1)}}, {}) for step in (100, 200)]
    (paths[1] / "actor.safetensors").write_bytes(b"")
    assert list(train._load_undamaged(paths, display)) == [100]
    assert isinstance(display.console.file, io.StringIO)
    assert f"skipped: {paths[1]}/actor.safetensors" in display.console.file.getvalue()
    (paths[0] / "actor.safetensors").write_bytes(b"")
    with pytest.raises(CorruptData, match=r"00000200/actor\.safetensors"):
        train._load_undamaged(paths, display)


def test_examine_evaluates_last_and_chosen_checkpoint(
    tmp_path: Path, display: Display, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = {"hidden": [8, 8], "threads": 1, "device": "cpu"}
    run = make_run(
        tmp_path, agent=small, trials=2, selection_trials=1, task_config={"time_limit_s": 0.5}
    )
    for step in (100, 200):
        agent = make_agent(run.config, make_spec(make_task(run.config)), step)
        run.save_checkpoint(step, {"actor": agent.actor_weights()}, {})
    monkeypatch.setattr(train, "film", lambda *arguments: None)
    totals, counting = list[tuple[str, int]](), display.counting

    def count(text: str, total: int) -> AbstractContextManager[Callable[..., None]]:
        totals.append((text, total))
        return counting(text, total)

    monkeypatch.setattr(display, "counting", count)
    for chosen, expected in ((100, [(200, "last"), (100, "final")]), (200, [(200, "final")])):
        monkeypatch.setattr(train, "choose_checkpoint", lambda *arguments, step=chosen: step)
        run.metrics.unlink(missing_ok=True)
        train.examine(run, display)
        rows = read_metrics(run.metrics)
        assert [(row["checkpoint"], row["purpose"]) for row in rows] == expected
        assert all(row["trials"] == 2 for row in rows)
        assert totals[-2:] == [("trials", 2), ("final trials", 2 * len(expected))]


def test_trials_on_an_arm_that_void_ones_end_are_partial_and_fail(
    tmp_path: Path, display: Display, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, now = make_run(tmp_path, trials=2, steps=1), datetime.now()
    run.save_checkpoint(100, {"actor": {"w": np.ones(1)}}, {})
    monkeypatch.setattr(train, "is_real", lambda robot: True)
    won = TrialResult(0, True, False, 20, 2.0, "success", checkpoint=100)
    void = TrialResult(1, False, False, 7, 0.7, "late", "camera", checkpoint=100)
    raced = void._replace(purpose="selection")
    for results, trials in (([won, *[void] * 4], 1), ([void] * 4, 0), ([raced] * 4, 0)):

        def deploy(folder: RunFolder, *rest: Any, results: list[TrialResult] = results) -> None:
            rest[-1]()  # supervises the console, whose STOP reaches the guard of the arm
            for each in results:
                append_trial_result(folder.path, each)

        made = RunFolder.make(tmp_path, f"trials{trials}", run.config, now)
        monkeypatch.setattr(train, "deployment", lambda *arguments, made=made: made)
        monkeypatch.setattr(train, "deploy", deploy)
        run.metrics.unlink(missing_ok=True)
        with MetricsWriter(run.path) as writer:
            writer.write(100, UpdateRow(5, 12.3, 3.9, weights_version=4))
        looked = iter([True])
        assert not train._conclude("", run, display, partial(next, looked))
        assert not list(looked)
        rows = [row for row in read_metrics(run.metrics) if row["kind"] == "evaluation"]
        assert [(row["checkpoint"], row["trials"]) for row in rows] == [(100, trials)]
        ended = f"ended after 4 void trials (camera): {trials} of 2 valid"
        assert isinstance(display.console.file, io.StringIO)
        assert f"the final trials {ended}\n" in display.console.file.getvalue()
        assert all(row["early_end"] == ended for row in rows)
        assert f"the trials {ended}." in run.report.read_text()


def test_report_is_written_behind_sign_of_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, output = make_run(tmp_path), io.StringIO()
    with MetricsWriter(run.path) as metrics:
        metrics.write(20, UpdateRow(7, 12.3, 3.9))
    monkeypatch.setattr(train, "examine", lambda run, display: None)
    train._conclude("", run, Display(Console(file=output, force_terminal=True)))
    assert "writing the report" in output.getvalue()
    assert run.report.exists()


def test_run_of_zero_steps_is_trained_once_checkpoint_exists(tmp_path: Path) -> None:
    run = make_run(tmp_path, steps=0, learner={"warm_up": 1})
    assert not run.is_trained()
    run.save_checkpoint(0, {"actor": {"w": np.ones(1)}}, {})
    assert run.is_trained()
    with pytest.raises(BadInput, match="steps: expected at least 1, or learner"):
        make_run(tmp_path, steps=0)


def test_demonstrations_follow_log_settings_of_run(tmp_path: Path, display: Display) -> None:
    run = make_run(tmp_path, log={"min_free_bytes": 10**17})
    with pytest.raises(BadInput, match=r"100000000\.00 GB at least \(log\.min_free_bytes\)"):
        train.demonstrate(run, display)
    assert not run.demonstrations.exists()
