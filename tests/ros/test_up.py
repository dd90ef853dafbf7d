"""`serl up`: one file starts two arms in two namespaces, a guard before each, and one learner."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import psutil
import pytest
import yaml

from serl import cli
from serl.config import checked, resolve
from serl.errors import BadInput
from serl.graph_config import GraphConfig
from serl.ros.graph import (
    RealArm,
    actor_processes,
    console_processes,
    described_processes,
    ends_with,
    learner_processes,
)
from serl.run_folder import RunFolder
from serl.verify import verify

from .conftest import eventually

pytestmark = pytest.mark.ros

ROBOTS = [{"name": "left"}, {"name": "right"}]
SETTINGS = {
    "steps": 60,
    "demos": 2,
    "intervention": "none",
    "task_config": {"time_limit_s": 1.0, "reach_m": 0.05},
    "agent": {"hidden": [32, 32], "batch_size": 16, "utd": 1, "device": "cpu"},
    "learner": {"checkpoint_every": 20, "publish_every": 5},
}


def made(folder: Path, robot: str | None = "sim") -> RunFolder:
    box = {"box_low_m": [0.4, -0.1, 0.1], "box_high_m": [0.6, 0.1, 0.4]}
    own = {"task_config": {"motion": box}}  # which a real arm that nobody taught needs
    config = resolve({"task": "reach", "demos": 0, "robot": robot, "actors": 2, **own})
    return RunFolder.create(folder, config, datetime.now())


def described(run: RunFolder, **fields: object) -> list[str]:
    graph = checked(GraphConfig, {"run": run.path, "robots": ROBOTS, **fields})
    return [spec.name for spec in described_processes(run, graph)]


def test_the_processes_are_those_of_a_training(tmp_path: Path) -> None:
    run = made(tmp_path)
    graph = checked(GraphConfig, {"run": run.path, "robots": ROBOTS})
    expected = [
        *learner_processes(run),
        *actor_processes(run, "left"),
        *actor_processes(run, "right"),
    ]
    assert described_processes(run, graph) == expected
    assert ends_with(graph) == {"learner"}
    guards = [spec for spec in expected if spec.module == "serl.ros.guard_node"]
    assert [spec.arguments[3] for spec in guards] == ["left", "right"]


def test_a_part_of_a_graph_can_be_started_alone(tmp_path: Path) -> None:
    run = made(tmp_path)
    assert described(run, robots=[]) == ["learner"]
    joined = described(run, learner=False, robots=[{"name": "more"}])
    assert joined == ["sim-more", "guard-more", "link-more", "more"]
    arm = {"name": "arm", "actor": False}
    assert described(run, robots=[arm]) == ["learner", "sim-arm", "guard-arm"]
    assert described(run, robots=[arm | {"guard": False}]) == ["learner", "sim-arm"]
    real = arm | {"profile": "franka", "namespace": "/left"}
    assert described(run, robots=[real]) == ["learner", "guard-arm"]
    console = {"robot": "left"}
    assert described(run, console=console)[-1] == "console"
    assert console_processes(run, "left", 8765)[0].arguments[-2:] == ("--guard", "left")
    assert console_processes(run, "arm", 8765)[0].arguments[-2:] == ("--guard", "/left")
    given = RealArm("franka", "/right")
    assert console_processes(run, "left", 8765, given)[0].arguments[-2:] == ("--guard", "/right")
    alone = made(tmp_path / "alone", None)
    assert "--guard" not in console_processes(alone, "left", 8765)[0].arguments


def test_robots_other_than_the_runs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"robots.left.profile: sim, and .* drives null"):
        described(made(tmp_path, None))


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("task: unicorn", "unknown task 'unicorn'"),
        ("task: reach\nrobot: 1", "robot: unknown setting"),
        ("task: reach\nsettings: {sed: 1}", "sed: unknown setting"),
        ("run: absent", "absent: expected the folder of a run"),
        ("- task", "expected a YAML mapping, found list"),
    ],
)
def test_what_a_file_may_not_say_is_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    text: str,
    complaint: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "up.yaml").write_text(text)
    assert cli.main(["up", "up.yaml"]) == cli.BAD_INPUT
    said = capfd.readouterr()
    assert complaint in said.err
    assert (said.out, said.err.count("\n")) == ("", 1)
    assert [path.name for path in tmp_path.iterdir()] == ["up.yaml"]


@pytest.mark.slow
def test_two_arms_in_two_namespaces_feed_one_learner(tmp_path: Path) -> None:
    file = tmp_path / "up.yaml"
    file.write_text(yaml.safe_dump({"task": "reach", "settings": SETTINGS, "robots": ROBOTS}))
    output = tmp_path / "up.out"
    command = subprocess.Popen(
        [sys.executable, "-m", "serl.cli", "up", str(file)],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200"},
        stdout=output.open("wb"),
        stderr=subprocess.STDOUT,
    )
    try:
        eventually(lambda: command.poll() is not None or "run: " in output.read_text(), 240)
        eventually(lambda: command.poll() is not None or _modules(command) >= 9, 240)
        assert command.wait(900) == 0, output.read_text()
    finally:
        if command.poll() is None:
            command.terminate()
            command.wait(30)
    (folder,) = (tmp_path / "runs" / "reach").iterdir()
    report = verify(folder)
    assert report.sound, report
    accepted = {log.actor: log.accepted for log in report.contents}
    assert accepted["left"] > 0
    assert accepted["right"] > 0
    assert {path.stem for path in (folder / "guard").glob("*.yaml")} == {"left", "right"}


def _modules(command: subprocess.Popen[bytes]) -> int:
    """Nodes that the command has started: a learner, and for each arm four."""
    children = psutil.Process(command.pid).children()
    return sum("serl.ros." in " ".join(child.cmdline()) for child in children)
