"""The code of docs/howto/python.md, run in order."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

from serl import plugins
from serl.clock import VirtualClock
from serl.log.episode_log import EpisodeLog
from serl.log.metrics import EpisodeRow, MetricsWriter
from serl.loop import EpisodeKey, RecordCallback, run
from serl.policy import RandomPolicy
from serl.runs.folder import RunFolder
from serl.runs.task_setup import make_spec, make_task

from .test_api import trained

DOCS = Path(__file__).parents[1] / "docs"
RUN = "runs/pick_cube/2026-11-24_09-00-00"


def code_of(page: str) -> str:
    """Return the Python code of a page."""
    text = (DOCS / page).read_text(encoding="utf-8")
    code = "\n".join(re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE))
    assert RUN in code
    return code


@pytest.fixture
def finished_run(tmp_path: Path) -> RunFolder:
    """Create a run of pick_cube with a checkpoint, an episode and metrics."""
    made = trained(tmp_path, task="pick_cube", task_config={"time_limit_s": 1.0})
    task = make_task(made.config)
    spec = make_spec(task)
    robot = plugins.make_simulation(task)
    robot.reset(0)
    with EpisodeLog(made.episodes("actor0"), spec, made.name, "actor0", 1) as log:
        key = EpisodeKey(made.name, "actor0", 1, 0)
        clock = VirtualClock(robot.advance, spec.rate_hz)
        run(robot, task, RandomPolicy(spec.action, 0), clock, key, [RecordCallback(log.append)])
    with MetricsWriter(made.path) as metrics:
        row = EpisodeRow("actor0", 0, 10, False, False, 0.0, 0, 0, "time limit", 1.0, 0)
        metrics.write(10, row)
    return made


def test_code_of_howto_page_runs(
    finished_run: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainings: list[RunFolder] = []

    def train_run(run: RunFolder, display: object) -> None:
        trainings.append(run)  # training itself is tested in tests/ros/test_training.py

    monkeypatch.setattr("serl.cli.training.train_run", train_run)
    monkeypatch.setattr("serl.ros.processes.require_ros", lambda: None)
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "page.py"
    script.write_text(code_of("howto/python.md").replace(RUN, str(finished_run.path)))
    names = runpy.run_path(str(script))
    assert (trainings[0].config.steps, trainings[0].config.agent.utd) == (3000, 2)
    assert names["done"]
    assert names["state"].shape == (10, 16)
    assert names["env"].task.config.time_limit_s == 5.0
