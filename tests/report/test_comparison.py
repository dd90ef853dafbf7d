from __future__ import annotations

import math
import re
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from serl.cli.main import main
from serl.errors import BadInput
from serl.log.metrics import EpisodeRow, EvaluationRow, MetricsWriter, read_metrics
from serl.report.comparison import METRICS, Comparison, MetricName, compare, samples
from serl.report.comparison_page import remarks, write_comparison
from serl.report.curves import reached, success_curve
from serl.report.outcomes import (
    Configuration,
    RunOutcome,
    check_claim,
    check_factor,
    differences,
    read_configuration,
)
from serl.runs.config import resolve
from serl.runs.folder import RunFolder
from serl.system.video import write_video

SEEDS = range(100, 105)


def make_run(
    folder: Path, seed: int, *, solved: int = 45, first: int = 10, **settings: Any
) -> Path:
    """Make a finished run of 40 episodes of 10 steps, solved from episode `first` on."""
    config = resolve({"task": "reach", "seed": seed, "steps": 400}, settings)
    run = RunFolder.create_at(folder / f"{config.task}-{seed}", config, datetime.now())
    with MetricsWriter(run.path) as writer:
        for number in range(40):
            assisted, steps = number % 2 == 0 and number < 10, 10 * (number + 1)
            good, human = number >= first, 4 * assisted
            row = ("actor0", number, 10, good, assisted, 1.0, human, int(assisted), "", 2.0, 0)
            writer.write(steps, EpisodeRow(*row))
        cycle_s = 3.0 if solved else None
        writer.write(400, EvaluationRow(400, 50, solved, cycle_s, "final"))
    return run.path


def make_runs(root: Path, name: str, seeds: Sequence[int] = SEEDS, **options: Any) -> Path:
    for seed in seeds:
        make_run(root / name, seed, **options)
    return root / name


def test_configuration_values_match_metrics_rows(tmp_path: Path) -> None:
    found = read_configuration(make_run(tmp_path, 3))
    (run,) = found.tasks["reach"]
    assert (run.seed, run.budget, run.successes, run.trials, run.cycle_s) == (3, 400, 45, 50, 3.0)
    assert run.human_s == pytest.approx(5 * 4 * 0.2)
    # Unassisted episodes: 5 failures, then successes; the 18th success makes 18 of the last 20.
    assert run.steps_to_90 == 10 * (10 + 18)
    rows = read_metrics(tmp_path / "reach-3" / "metrics.jsonl")
    at = success_curve(rows, np.array([0.0, 19, 20, 110, 400]))
    assert at == pytest.approx([0, 0, 0, 1 / 6, 1])
    assert run.auc == pytest.approx(success_curve(rows, np.linspace(0, 400, 101)).mean())


def test_checkpoint_trials_can_reach_required_success_first(tmp_path: Path) -> None:
    with MetricsWriter(tmp_path, lambda: 7.0) as writer:
        writer.write(100, EvaluationRow(100, 0, 0, None, "selection"))
        writer.write(200, EvaluationRow(150, 30, 26, 4.0, "selection"))
        assert reached(read_metrics(tmp_path / "metrics.jsonl")) == (math.inf, math.inf)
        writer.write(200, EvaluationRow(190, 30, 27, 4.0, "selection"))
    assert reached(read_metrics(tmp_path / "metrics.jsonl")) == (190, 0.0)
    with MetricsWriter(tmp_path, lambda: 7.0) as writer:
        writer.write(200, EvaluationRow(150, 50, 45, 4.0, "final"))
    assert reached(read_metrics(tmp_path / "metrics.jsonl"))[0] == 150, "no matter which is first"


def outcome(seed: int, success: float, steps: float, **more: Any) -> RunOutcome:
    values: dict[str, Any] = {"cycle_s": 4.0, "human_s": 20.0, "task": "reach", "budget": 1000}
    values |= {"settings": {}, "curve": np.full(101, success), **more}
    return RunOutcome(
        path=Path(f"run-{seed}"), seed=seed, successes=round(50 * success), trials=50,
        steps_to_90=steps, **values,
    )  # fmt: skip


def configuration(name: str, *outcomes: RunOutcome) -> Configuration:
    tasks: dict[str, list[RunOutcome]] = {}
    for each in outcomes:
        tasks.setdefault(each.task, []).append(each)
    return Configuration(name, tasks)


def test_runs_that_never_reach_target_are_censored() -> None:
    base = configuration("base", *(outcome(s, 0.8, math.inf) for s in range(4)))
    other = configuration(
        "other", *(outcome(s, 1.0, 500.0) for s in range(2)), outcome(2, 1.0, math.inf)
    )
    comparison = compare([base, other], {})
    found = comparison.results["steps_to_90"]
    assert found.levels[0].value == 1000
    assert found.levels[1].value == pytest.approx(2000 / 3)
    assert found.contrasts[0].value == pytest.approx(2 / 3)
    assert found.improvements[0].value == pytest.approx(2 / 3 + 0.5 / 3)
    assert list(remarks(comparison)) == [
        "Steps to 90 %: not reached by 4 of 4 runs of base.",
        "Steps to 90 %: not reached by 1 of 3 runs of other.",
    ]


def test_trials_that_ended_early_are_named(tmp_path: Path) -> None:
    path = make_run(tmp_path / "a", 0)
    with MetricsWriter(path) as writer:
        ended = "ended after 6 void trials (camera): 3 of 50 valid"
        writer.write(400, EvaluationRow(400, 3, 3, 3.0, "final", early_end=ended))
    found = [read_configuration(tmp_path / "a"), read_configuration(make_runs(tmp_path, "b", [0]))]
    assert list(remarks(compare(found, {}))) == ["Success: the trials of 1 run of a ended early."]


def test_times_are_compared_up_to_smaller_budget() -> None:
    short = configuration("short", outcome(0, 1.0, math.inf, budget=500))
    long = configuration("long", outcome(0, 1.0, 800.0))
    groups = samples(METRICS["steps_to_90"], [short, long])
    assert [group[0].values.tolist() for group in groups] == [[500], [500]]
    assert all(group[0].censored.all() for group in groups)


def test_run_without_success_has_no_cycle_time() -> None:
    base = configuration(
        "base", outcome(0, 0.0, math.inf, cycle_s=math.nan), outcome(1, 0.9, 100.0)
    )
    none = configuration("none", outcome(0, 0.0, math.inf, cycle_s=math.nan))
    comparison = compare([base, none], {})
    found = comparison.results["cycle_s"]
    assert found.missing == (1, 1)
    assert found.levels[0].value == 4.0
    assert math.isnan(found.contrasts[0].value)
    assert comparison.verdict("cycle_s", 1) == "none cannot be compared with base by cycle time."


@pytest.mark.parametrize(
    ("name", "words"), [("success", "better"), ("human_s", "worse"), ("cycle_s", "No difference")]
)
def test_verdict_follows_interval(name: MetricName, words: str) -> None:
    base = configuration("base", *(outcome(s, 0.5, 900.0) for s in range(5)))
    other = configuration("other", *(outcome(s, 0.98, 300.0, human_s=80.0) for s in range(5)))
    assert words in compare([base, other], {}).verdict(name, 1)
    alone = configuration("alone", other.outcomes[0])
    assert compare([base, alone], {}).verdict(name, 1).startswith("One seed of reach decides")


def test_configurations_may_differ_in_one_setting_or_named_factors(tmp_path: Path) -> None:
    base = read_configuration(make_runs(tmp_path, "base", [0, 1]))
    one = read_configuration(make_runs(tmp_path, "one", [0, 1], agent={"utd": 8}))
    two = read_configuration(make_runs(tmp_path, "two", [0, 1], agent={"utd": 8, "batch_size": 64}))
    found = differences([base, one])
    assert found == {"agent.utd": ([str(base.outcomes[0].settings["agent.utd"])], ["8"])}
    check_factor(found, [], claim=True)
    check_factor({}, [], claim=False)
    found = differences([base, two])
    check_factor(found, ["agent"], claim=True)
    check_factor(found, ["agent.utd", "agent.batch_size"], claim=True)
    with pytest.raises(BadInput, match=r"differ in 2 settings, one may: agent\.batch_size, agent"):
        check_factor(found, [], claim=False)
    with pytest.raises(BadInput, match=r"in 1 settings, beside agent\.utd, none may: agent\.batch"):
        check_factor(found, ["agent.utd"], claim=False)
    with pytest.raises(BadInput, match="--factor human: the configurations do not differ in it"):
        check_factor(found, ["agent", "human"], claim=False)
    with pytest.raises(BadInput, match="do not differ in any setting"):
        check_factor({}, [], claim=True)


def test_setting_that_differs_between_seeds_counts_as_difference(tmp_path: Path) -> None:
    base = make_runs(tmp_path, "base", [0])
    make_run(base, 1, demos=3)
    found = differences(
        [read_configuration(base), read_configuration(make_runs(tmp_path, "b", [0]))]
    )
    assert found == {"demos": (["20", "3"], ["20"])}


def test_different_code_version_counts_as_difference(tmp_path: Path) -> None:
    before, after = make_runs(tmp_path, "before", [0]), make_runs(tmp_path, "after", [0])
    for folder, commit in ((before, "aaaaaaa"), (after, "bbbbbbb")):
        file = folder / "reach-0" / "config.yaml"
        text = re.sub(r"\n  commit: .*", "", file.read_text())
        file.write_text(text.replace("versions:\n", f"versions:\n  commit: {commit}\n"))
    found = differences([read_configuration(before), read_configuration(after)])
    assert found == {"versions.commit": (["'aaaaaaa'"], ["'bbbbbbb'"])}


def test_another_file_of_a_task_counts_as_difference(tmp_path: Path) -> None:
    files = [tmp_path / name / "push.py" for name in ("old", "new")]
    for file in files:
        make_run(file.parent, 0, task=str(file))
    found = differences([read_configuration(file.parent) for file in files])
    assert list(found) == ["task"]


def test_each_task_is_compared_with_itself_only(tmp_path: Path) -> None:
    for name, weight in (("a", 0.1), ("b", 0.2)):
        for task, demos in (("reach", 5), ("drawer", 9)):
            make_run(tmp_path / name, 0, task=task, demos=demos, agent={"bc_weight": weight})
    found = [read_configuration(tmp_path / name) for name in "ab"]
    assert list(differences(found)) == ["agent.bc_weight"]
    make_run(tmp_path / "b", 0, task="pick_cube")
    with pytest.raises(BadInput, match="b has runs of pick_cube, a has none"):
        differences([found[0], read_configuration(tmp_path / "b")])


def test_claim_requires_five_untuned_seeds(tmp_path: Path) -> None:
    def claimed(*seeds: int) -> None:
        runs = [outcome(seed, 0.9, 100.0) for seed in seeds]
        check_claim([configuration("a", *runs)])

    claimed(100, 101, 102, 103, 200)
    with pytest.raises(BadInput, match="--claim: a, reach: 4 seeds, expected at least 5"):
        claimed(100, 101, 102, 103)
    with pytest.raises(BadInput, match="seed 3 is a tuning seed; claims take seeds from 100 on"):
        claimed(3, 100, 101, 102, 103)
    with pytest.raises(BadInput, match="seed 42 is no claim seed"):
        claimed(42, 100, 101, 102, 103)


def test_incomparable_runs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="found no folder"):
        read_configuration(tmp_path / "none")
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadInput, match=r"found no folder with config\.yaml"):
        read_configuration(tmp_path / "empty")
    config = resolve({"task": "reach"})
    RunFolder.create_at(tmp_path / "started" / "one", config, datetime.now())
    with pytest.raises(BadInput, match="one: not finished, it has no final trials"):
        read_configuration(tmp_path / "started")
    make_run(tmp_path / "twice" / "x", 1)
    make_run(tmp_path / "twice" / "y", 1)
    with pytest.raises(BadInput, match="reach with seed 1 again, first in"):
        read_configuration(tmp_path / "twice")


@pytest.mark.parametrize(
    "line",
    [
        '{"kind": "evaluation", "time_s": 1, "steps": 9, "purpose": "final", "trials": "50"}',
        '{"kind": "evaluation", "time_s": 1, "steps": 9, "purpose": "final", "trials": 5, '
        '"successes": 9, "checkpoint": 9}',
        '{"kind": "evaluation", "purpose": "final"}',
    ],
)
def test_hostile_metrics_rows_count_as_no_final_trials(tmp_path: Path, line: str) -> None:
    path = make_run(tmp_path, 1) / "metrics.jsonl"
    path.write_text(f"{line}\n")
    with pytest.raises(BadInput, match="not finished"):
        read_configuration(tmp_path)


def test_run_with_malformed_episode_row_is_read(tmp_path: Path) -> None:
    path = make_run(tmp_path, 1) / "metrics.jsonl"
    odd = '{"kind": "episode", "time_s": 1, "steps": 9, "length": "x", "human_steps": [], "a": 1}\n'
    path.write_text(odd + path.read_text())
    (run,) = read_configuration(tmp_path).outcomes
    assert run.human_s == pytest.approx(4.0)


def test_compare_command_prints_verdict_and_writes_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "<b>[red]x"  # markup to escape; the equal names are numbered
    base = make_runs(tmp_path / "0", name, solved=30)
    other = make_runs(tmp_path / "1", name, agent={"utd": 8})
    (base / "reach-100" / "videos").mkdir()
    write_video(base / "reach-100" / "videos" / "final.mp4", [np.zeros((48, 64, 3), np.uint8)], 10)
    page = tmp_path / "out" / "page.html"
    words = ["compare", str(base), str(other), "--claim", "--out", str(page)]
    monkeypatch.setenv("FORCE_COLOR", "1")  # as on a terminal
    monkeypatch.setenv("COLUMNS", "200")
    assert main(words) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "agent.utd" in printed
    assert "drawing the page" in printed
    assert f"{name} (2) is better than {name} (1) in success: +30.0 points (+" in printed
    text = page.read_text()
    assert "&lt;b&gt;[red]x (1) against &lt;b&gt;[red]x (2)" in text
    assert "<b>" not in text.replace('<b style="left', "")
    assert text.count("<svg") == 3
    for solved in (30, 45):  # the two runs side by side
        assert f"reach, seed 100: {solved} of 50 trials" in text
    assert (text.count("data:video/mp4"), text.count("No film was recorded")) == (1, 1)
    assert main([*words[:2]]) == 2
    assert "expected 2 to 3 folders" in capsys.readouterr().err


def test_comparison_page_is_written_without_any_success(tmp_path: Path) -> None:
    def never(name: str) -> Configuration:
        lost = {"cycle_s": math.nan, "human_s": 0.0}
        tasks = ("reach", "drawer")
        return configuration(name, *(outcome(0, 0.0, math.inf, task=t, **lost) for t in tasks))

    comparison: Comparison = compare([never("a"), never("b"), never("c")], {})
    write_comparison(tmp_path / "page.html", comparison, "steps_to_90")
    write_comparison(tmp_path / "page.html", comparison, "cycle_s")
    assert "Nothing recorded" in (tmp_path / "page.html").read_text()
