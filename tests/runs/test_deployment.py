"""Test which weights a deployment loads, and how its episodes are summarised."""

from __future__ import annotations

import shlex
from datetime import datetime
from pathlib import Path

import pytest

from serl.errors import BadInput, CorruptData
from serl.log.annotations import StepKey, append_labels
from serl.runs.assembly import make_agent
from serl.runs.checkpoint import load, mark_best, pick
from serl.runs.config import resolve
from serl.runs.deployment import (
    FixedWeights,
    TrialResult,
    append_trial_result,
    load_fitting,
    read_trial_results,
    result_lines,
    summary,
    trials_command,
    unassisted,
)
from serl.runs.folder import RunFolder
from serl.runs.resume import provenance
from serl.runs.task_setup import make_spec, make_task
from serl.training.evaluation import max_void_trials

WON = TrialResult(0, True, False, 20, 2.0, "success")
LOST = TrialResult(1, False, False, 50, 5.0, "time limit")
VOID = TrialResult(3, False, False, 7, 0.7, "camera wrist: stale", "camera", 10)
HELPED = TrialResult(2, True, True, 30, 3.0, "success")


def trained(folder: Path, *steps: int) -> RunFolder:
    """Create a run of short episodes with checkpoints of an untrained policy."""
    agent = {"hidden": [8, 8], "device": "cpu", "threads": 1}
    short = {"time_limit_s": 1.0}
    config = resolve({"task": "reach", "demos": 0, "agent": agent, "task_config": short})
    run = RunFolder.create(folder, config, datetime.now())
    spec = make_spec(make_task(config))
    arrays = {"actor": make_agent(config, spec, 0).actor_weights()}
    for step in steps:
        run.save_checkpoint(step, arrays, provenance(config, spec))
    return run


def test_command_for_trials_quotes_paths_with_blanks(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path / "my runs", resolve({"task": "reach"}), datetime.now())
    assert shlex.split(trials_command(run)) == ["serl", "eval", str(run.path)]
    run.info = run.info.model_copy(update={"config": resolve({"robot": "my arms/left.yaml"})})
    words = ["--robot", "my arms/left.yaml", "--namespace", "/"]
    assert shlex.split(trials_command(run)) == ["serl", "run", str(run.path), *words]


def test_pick_prefers_requested_then_best_then_newest_checkpoint(tmp_path: Path) -> None:
    run = trained(tmp_path, 100, 200)
    assert pick(run.checkpoints).name == "00000200"
    mark_best(run.checkpoints / "00000100")
    assert pick(run.checkpoints).name == "00000100"
    assert pick(run.checkpoints, 200).name == "00000200"
    with pytest.raises(BadInput, match="no checkpoint 300; there are: 100, 200"):
        pick(run.checkpoints, 300)
    with pytest.raises(BadInput, match="no checkpoint; there are: none"):
        pick(trained(tmp_path).checkpoints)


def test_fixed_weights_are_returned_once(tmp_path: Path) -> None:
    run = trained(tmp_path, 100)
    checkpoint = load_fitting(pick(run.checkpoints), run.config)
    weights = FixedWeights(checkpoint)
    snapshot = weights.latest(0)
    assert snapshot is not None
    assert snapshot.version == 100
    assert weights.latest(100) is None
    with pytest.raises(CorruptData, match="holds no weights of an actor"):
        FixedWeights(checkpoint._replace(arrays={"agent": {}}))


def test_policy_of_another_spec_is_refused_in_one_line(tmp_path: Path) -> None:
    run = trained(tmp_path, 100)
    other = resolve(run.config.model_dump(), {"task_config": {"rate_hz": 20.0}})
    with pytest.raises(BadInput, match="the policy was made for the spec") as caught:
        load_fitting(pick(run.checkpoints), other)
    assert "\n" not in str(caught.value)


def test_checkpoint_without_spec_is_refused(tmp_path: Path) -> None:
    run = trained(tmp_path, 100)
    arrays = load(pick(run.checkpoints)).arrays
    run.save_checkpoint(200, arrays, {})
    with pytest.raises(BadInput, match="made for the spec None"):
        load_fitting(pick(run.checkpoints), run.config)


def test_trial_results_round_trip_despite_cut_last_line(tmp_path: Path) -> None:
    assert read_trial_results(tmp_path) == []
    for each in (WON, LOST, HELPED):
        append_trial_result(tmp_path, each)
    file = tmp_path / "trials.jsonl"
    with file.open("ab") as half:
        half.write(b'{"episode": 3, "succ')
    assert read_trial_results(tmp_path) == [WON, LOST, HELPED]
    file.write_bytes(b'{"episode": 3}\n')
    with pytest.raises(CorruptData, match="success"):
        read_trial_results(tmp_path)


def test_summary_counts_unassisted_episodes() -> None:
    assert summary([]) == "no episode came to its end"
    alone, helped = summary([WON, LOST, HELPED]).splitlines()
    assert alone.startswith("1 of 2 trials succeeded: 50.0% (95 % interval 9.5% to 90.5%)")
    assert helped == "1 of 1 episodes with a person's help succeeded"


def test_episode_ended_by_fault_is_void() -> None:
    first, *_ = summary([WON, VOID, LOST, VOID]).splitlines()
    assert first.startswith("1 of 2 trials succeeded, 2 void (camera): 50.0% (95 % interval 9.5%")
    assert summary([VOID]) == "no trial counts, 1 void (camera)"
    assert unassisted([VOID]) is None
    chosen = WON._replace(purpose="selection", checkpoint=200)
    assert summary([chosen]) == "no episode came to its end"
    tried = unassisted([chosen, LOST], "selection", 200)
    assert tried is not None
    assert (tried.successes, len(tried.trials)) == (1, 1)


def test_result_of_trials_that_did_not_all_count_is_partial() -> None:
    results = [WON, LOST, *[VOID] * (max_void_trials(5) + 1)]
    ended = "ended after 5 void trials (camera): 2 of 5 valid"
    assert summary(results, 5).startswith(f"{ended}, of which 1 succeeded: 50.0%")
    assert summary([VOID] * 4, 1) == "ended after 4 void trials (camera): 0 of 1 valid"
    raced = [VOID._replace(purpose="selection")] * 4
    assert summary(raced, 1) == "ended after 4 void trials (camera): 0 of 1 valid"
    helped = [HELPED._replace(purpose="selection")] * 4
    assert summary(helped, 1) == "ended after 4 selection trials with a person's help: 0 of 1 valid"
    assert summary(helped[:3], 1) == "ended early: 0 of 1 valid"
    stopped = unassisted([WON, VOID], planned=3)
    assert stopped is not None
    assert stopped.early_end == "ended early: 1 of 3 valid"
    complete = unassisted([WON, VOID, HELPED], planned=2)
    assert complete is not None
    assert not complete.early_end, "an assisted episode takes the place of a trial"


def test_result_lines_number_trials_among_all_and_repeat_number_of_void_one() -> None:
    chosen = WON._replace(purpose="selection", checkpoint=1200)
    helped = HELPED._replace(purpose="selection", checkpoint=800)
    assert result_lines([helped, chosen, WON, VOID, LOST, HELPED], 20, 30) == [
        "selection trial 1 of at most 30, checkpoint 800: success after 3.0 s, "
        "with a person's help",
        "selection trial 1 of at most 30, checkpoint 1,200: success after 2.0 s",
        "episode 1 of 20: success after 2.0 s",
        "episode 2 of 20: void, camera (camera wrist: stale)",
        "episode 2 of 20: failed (time limit) after 5.0 s",
        "episode 3 of 20: success after 3.0 s, with a person's help",
    ]
    assert result_lines([WON], None, 0) == ["episode 1: success after 2.0 s"]


def test_operator_label_of_last_step_corrects_trial_result(tmp_path: Path) -> None:
    episodes = tmp_path / "episodes" / "actor0"
    episodes.mkdir(parents=True)
    results = [
        WON._replace(log_count=2),
        LOST._replace(log_count=4),
        VOID,
        HELPED._replace(log_count=12),
    ]
    for each in results:
        append_trial_result(tmp_path, each)
    assert read_trial_results(tmp_path) == results
    append_labels(episodes, [(StepKey(5, 1, 20), 0), (StepKey(5, 3, 49), 1)], "person")
    append_labels(episodes, [(StepKey(5, 9, 2), 1), (StepKey(5, 4, 50), 1)], "person")
    corrected = read_trial_results(tmp_path)
    assert [each.success for each in corrected] == [False, True, False, True]
    append_labels(episodes, [(StepKey(5, 9, 7), 1)], "person")
    assert read_trial_results(tmp_path)[2] == VOID._replace(success=True, void="")


def test_trial_results_of_old_format_are_read(tmp_path: Path) -> None:
    line = '{"episode": 0, "success": true, "assisted": false, "steps": 20, "duration_s": 2.0, '
    (tmp_path / "trials.jsonl").write_text(line + '"reason": "success"}\n')
    assert read_trial_results(tmp_path) == [WON]
