from __future__ import annotations

import json
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from serl.log.metrics import EpisodeRow, EvaluationRow, MetricsWriter, RequestRow
from serl.runs.config import resolve
from serl.runs.folder import RunFolder
from serl.runs.task_setup import make_task
from tests.bench import bench_tasks, task_bench, task_page
from tests.report.test_report import Clock

NOW = datetime(2026, 11, 22, 10, 0)


def make_run(root: Path, task: str = "reach", hours: int = 0, **settings: Any) -> RunFolder:
    """Create a run as `serl train` does, `hours` after the first run."""
    tuned = make_task(resolve({"task": task})).training_defaults()
    config = resolve(tuned, settings, {"task": task})
    return RunFolder.create(root, config, NOW + timedelta(hours=hours))


def finish(run: RunFolder, won: int, requests: int = 0, minutes: float = 1.0) -> None:
    for part in run.parts().values():
        clock = Clock()
        with MetricsWriter(part.path, clock) as writer:
            for episode in range(40):
                row = EpisodeRow(
                    "actor0", episode, 10, episode > 20, episode < 5, 1.0, 3 * (episode < 5),
                    int(episode < 5), "success", 1.0, 0,
                )  # fmt: skip
                writer.write(10 * (episode + 1), row)
            for _ in range(requests):
                writer.write(400, RequestRow("actor0", "a person is needed: it fell"))
            clock.now_s = 60.0 * minutes
            writer.write(400, EvaluationRow(400, 50, won, 1.5, "final"))


def collect(root: Path, reported: list[str] | None = None) -> dict[str, list[task_page.Shown]]:
    found: dict[str, list[task_page.Shown]] = {}
    hear = (reported if reported is not None else []).append
    for shown in task_page.shown_by(task_page.find_runs(root), hear):
        found.setdefault(shown.task, []).append(shown)
    return found


def test_page_merges_seeds_and_uses_newest_run_of_each(tmp_path: Path) -> None:
    finish(make_run(tmp_path, seed=2), 40)
    finish(make_run(tmp_path, seed=1, hours=1), 50, requests=1)
    finish(make_run(tmp_path, seed=2, hours=2), 49, minutes=2.5)
    ((shown,),) = collect(tmp_path).values()
    training = shown.training
    assert training.command == "serl train reach --seed 1"
    assert (training.seeds, training.successes, training.trials) == ((1, 2), 99, 100)
    assert (training.steps, training.minutes, training.cycle_s) == (400, 2.5, 1.5)
    assert (training.episodes, training.takeovers, training.requests) == (80, 10, 1)
    assert training.demonstrated_s is None
    assert training.is_tuned


def test_page_shows_each_direction_of_a_run_with_stages_as_a_task(tmp_path: Path) -> None:
    finish(make_run(tmp_path, "bin_relocation", seed=3), 48)
    found = collect(tmp_path)
    assert list(found) == ["bin_relocation_forward", "bin_relocation_backward"]
    for (shown,) in found.values():
        assert shown.training.command == "serl train bin_relocation --seed 3"
        assert shown.training.is_tuned
    assert len({each.training.curve for (each,) in found.values()}) == 2


def test_page_separates_runs_with_other_settings_by_command(tmp_path: Path) -> None:
    changed: dict[str, Any] = {"task_config": {"randomize": "light"}, "agent": {"hidden": [64, 64]}}
    finish(make_run(tmp_path, seed=1), 50)
    finish(make_run(tmp_path, seed=1, hours=1, **changed), 30)
    (shown,) = collect(tmp_path).values()
    plain, other = (each.training for each in shown)
    assert plain.is_tuned
    assert other.command == (
        "serl train reach --task_config.randomize light --agent.hidden '[64, 64]' --seed 1"
    )
    assert not other.is_tuned
    assert plain.curve != other.curve


def test_page_skips_unfinished_or_damaged_runs_with_reason(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    make_run(tmp_path)
    damaged = make_run(tmp_path, hours=1)
    (damaged.path / "config.yaml").write_text("format: 1\nconfig: {stepz: 3}\n")
    reported: list[str] = []
    assert collect(tmp_path, reported) == {}
    assert len(reported) == 2
    assert any("no final trials yet" in line for line in reported)
    assert any(line.startswith(f"passed over: {damaged.path}/config.yaml") for line in reported)
    assert bench_tasks.main(["--runs", str(tmp_path)]) == bench_tasks.BAD_INPUT
    assert "no finished training of what was asked for" in capfd.readouterr().err


def test_curve_is_a_standalone_svg(tmp_path: Path) -> None:
    finish(make_run(tmp_path), 50)
    ((shown,),) = collect(tmp_path).values()
    drawing = ElementTree.fromstring(shown.curve)
    assert drawing.tag == "{http://www.w3.org/2000/svg}svg"
    assert float(drawing.attrib["width"]) > float(drawing.attrib["height"]) > 100
    assert "--policy:#" in shown.curve
    assert "100 %" in shown.curve
    assert len(shown.curve) < 20_000


def test_command_fills_page_and_keeps_existing_records(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    runs, docs = tmp_path / "runs", tmp_path / "docs"
    docs.mkdir()
    (docs / "tasks.json").write_text(json.dumps({"reach": {"expert_trials": 9, "reason": "Far."}}))
    finish(make_run(runs, seed=1), 40)
    finish(make_run(runs, "drawer", seed=1), 50)
    words = ["--runs", str(runs), "--docs", str(docs), "--commit", "abc1234"]
    assert bench_tasks.main(words) == bench_tasks.DONE
    assert "reach: serl train reach --seed 1: 40 of 50" in capfd.readouterr().out
    record = task_bench.load_records(docs)["reach"]
    assert (record.expert_trials, record.reason) == (9, "Far.")
    page = (docs / "tasks.md").read_text()
    assert "| drawer | not measured | not measured | not measured | not measured | 50 of 50" in page
    assert "![reach: success of unassisted episodes over steps](images/tasks/reach-1.svg)" in page
    assert "Why fewer than 95% succeed: Far." in page
    before = sorted(path.name for path in (docs / "images/tasks").iterdir())
    assert before == ["drawer-1.svg", "reach-1.svg"]

    finish(make_run(runs, seed=2, hours=1), 50)
    assert bench_tasks.main([*words, "reach"]) == bench_tasks.DONE
    after = sorted(path.name for path in (docs / "images/tasks").iterdir())
    assert after == ["drawer-1.svg", "reach-1-2.svg"]
