"""A training with task, algorithm, human, reward and transport from external files."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from serl.cli import main as cli
from serl.log.episode_reader import read_records
from serl.runs.checkpoint import checkpoint_paths
from serl.runs.task_setup import make_spec, make_task
from serl.types import ActionSource, Step

from .conftest import Start
from .test_training import TINY, TRIALS, assert_sound, rows, trained

pytestmark = pytest.mark.ros

FILES = Path(__file__).parents[1] / "outside"
FROM_OUTSIDE = {
    **{name: value for name, value in TINY.items() if name != "agent.hidden"},
    "agent.algorithm": "./td3.py",
    "agent.width": 16,
    "intervention": "./lazy_person.py",
    "human.every": 4,
    "reward.kind": "./high_reward.py",
    "reward.height_m": 0.24,
    "transport.kind": "./spool.py",
    "transport.subfolder": "box",
    "learner.checkpoint_every": 20,
}


@pytest.fixture
def outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for path in FILES.glob("[!_]*.py"):
        shutil.copy(path, tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_training_with_external_plugins_survives_learner_kill(
    outside: Path, start: Start, capsys: pytest.CaptureFixture[str]
) -> None:
    command = start("train", "./near.py", **FROM_OUTSIDE, steps=240)
    run = command.run_folder()
    learner = command.child("serl.ros.nodes.learner")
    command.until(lambda: checkpoint_paths(run.checkpoints))
    learner.kill()
    command.until(TRIALS)
    command.interrupt()
    assert "learner was killed by SIGKILL: started again" in command.output
    assert any("resumed at" in row["text"] for row in rows(run, "event"))
    assert sum(trained(run).values()) == 240
    assert_sound(run)
    assert (run.path / "box" / "weights").is_file(), "weights went through the transport"
    spec = make_spec(make_task(run.config))
    records = [
        each for each in read_records(run.episodes("actor0"), spec) if isinstance(each, Step)
    ]
    share = sum(record.source is ActionSource.HUMAN for record in records) / len(records)
    assert 0.2 < share < 0.3, "the simulated human drives every fourth step"
    assert any(record.reward_provenance == "high" for record in records)
    assert cli.main(["eval", str(run.path), "--trials", "1"]) == cli.DONE
    assert "1 trial" in capsys.readouterr().out


def test_doctor_checks_external_arm_profile(
    outside: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("serl.ros.inspection._SETTLED_S", 1.0)
    assert cli.main(["doctor", "--robot", "./my_arm.py"]) == cli.FAILED, "there is no driver"
    assert "an arm from outside" in capfd.readouterr().out
