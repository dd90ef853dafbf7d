from __future__ import annotations

from datetime import datetime
from pathlib import Path

import pytest

from serl.errors import BadInput
from serl.log.metrics import EpisodeRow, EvaluationRow, MetricsWriter, RequestRow
from serl.report.report import write_report, write_stages_report
from serl.report.review import recordings
from serl.runs.config import resolve
from serl.runs.folder import RunFolder

from .test_report import Reader

STAGES = {
    "there": {"then": "back"},
    "back": {"then": "there", "config": {"task_config": {"reach_m": 0.1}}},
}


def make_run(root: Path) -> RunFolder:
    config = resolve({"task": "reach", "stages": STAGES, "demos": 0})
    return RunFolder.create(root, config, datetime.now())


def write_metrics(part: RunFolder, episodes: int, requests: int, won: int | None) -> None:
    with MetricsWriter(part.path) as writer:
        for episode in range(episodes):
            assisted = episode < 5
            row = EpisodeRow(
                "actor0", episode, 10, True, assisted, 1.0, 2 * assisted, int(assisted),
                "success", 1.0, 0,
            )  # fmt: skip
            writer.write(10 * (episode + 1), row)
        for _ in range(requests):
            writer.write(10 * episodes, RequestRow("actor0", "a person is needed: it fell"))
        if won is not None:
            writer.write(10 * episodes, EvaluationRow(10 * episodes, 50, won, 1.2, "final"))


def read(path: Path) -> str:
    reader = Reader()
    reader.feed(path.read_text())
    reader.finish()
    return reader.text


def test_stages_report_covers_all_stages(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    parts = run.parts()
    write_metrics(parts["there"], 120, 1, 49)
    write_metrics(parts["back"], 80, 0, 48)
    helped = write_stages_report(run)
    assert (helped.episodes, helped.requests, helped.takeovers) == (200, 1, 10)
    text = read(run.report)
    for expected in (
        "97 of 100 unassisted trials of all stages succeeded",
        "requests for a person: 1 in 200 episodes (0.5 per 100), takeovers: 10",
        *("there", "back", "49/50", "48/50", "0.833"),
    ):
        assert expected in text
    for name in parts:
        assert f'href="stages/{name}/report.html"' in run.report.read_text()


def test_stages_report_names_missing_final_evaluation(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    write_metrics(run.parts()["there"], 3, 0, 50)
    write_stages_report(run)
    text = read(run.report)
    assert "Not every stage has a final evaluation." in text
    assert "nan" not in text.lower()


def test_episodes_of_run_with_stages_are_those_of_a_stage(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"has stages, each a run: expected one of .*/stages/there"):
        recordings(make_run(tmp_path).path)


def test_stages_report_refuses_stage_that_is_no_run(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    (run.path / "stages/back/config.yaml").unlink()
    with pytest.raises(BadInput, match="stages/back: expected the folder of a run"):
        write_stages_report(run)


def test_report_of_stage_names_task_and_stage(tmp_path: Path) -> None:
    part = make_run(tmp_path).parts()["back"]
    write_metrics(part, 20, 3, None)
    text = read(write_report(part.path))
    assert "reach · back" in text
    assert "15 per 100 episodes" in text
