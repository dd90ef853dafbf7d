from __future__ import annotations

import shlex
from dataclasses import dataclass
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import NoReturn

import pytest

from serl.cli import actor as actor_command
from serl.cli import main as cli
from serl.cli.actor import await_learner, progress_text
from serl.errors import BadInput
from serl.runs.config import TrainConfig
from serl.runs.folder import LEARNER_LOCK, RunFolder
from serl.system.supervisor import Supervisor
from serl.training.link import LinkStatus, write_status

from .conftest import Serl, refused


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path, TrainConfig(), datetime(2026, 11, 22))


def test_actor_waits_while_learner_records_demonstrations(
    run: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    seconds = count()

    def sleep(_: float) -> None:
        if next(seconds) >= 100:  # seconds of the fake clock
            (run.path / "ros_domain").write_text("7")

    with run.lock_learner():
        await_learner(run, lambda: float(next(seconds)), sleep)
    lines = capsys.readouterr().out.splitlines()
    assert lines == ["waiting for the learner, which records demonstrations first"]


def test_actor_of_started_run_does_not_wait(
    run: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    (run.path / "ros_domain").write_text("7")
    await_learner(run)
    assert not capsys.readouterr().out


@pytest.mark.parametrize("lock", [None, "", "999999999\n"])
def test_actor_without_running_learner_names_command_to_start_it(
    run: RunFolder, lock: str | None
) -> None:
    if lock is not None:
        (run.path / LEARNER_LOCK).write_text(lock)
    seconds = count()
    with pytest.raises(BadInput, match=f"no learner was started yet: serl learner {run.path}"):
        await_learner(run, lambda: float(next(seconds)), lambda _: None)


@pytest.mark.ros
def test_interrupted_actor_names_the_command_for_the_same_arm(
    serl: Serl, run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*arguments: object) -> NoReturn:
        raise KeyboardInterrupt

    (run.path / "ros_domain").write_text("7")
    monkeypatch.setattr("serl.ros.processes.chosen_arm", lambda *arguments: None)
    monkeypatch.setattr("serl.ros.processes.run_in_domain", interrupted)
    words = ["--name", "left", "--robot", "my arms/left.yaml", "--namespace", "/left"]
    code, _, errors = serl("actor", run.path, *words)
    assert code == cli.INTERRUPTED
    (line,) = [line for line in errors.splitlines() if line.startswith("to continue: ")]
    assert shlex.split(line)[2:] == ["serl", "actor", str(run.path), *words]


def test_actor_name_has_to_fit_into_names_of_topics(serl: Serl, run: RunFolder) -> None:
    assert "actor 'my-arm': expected 1 to 64 letters" in refused(
        serl, "actor", run.path, "--name", "my-arm"
    )
    assert "actor 'console' is the name of another process" in refused(
        serl, "actor", run.path, "--name", "console"
    )


@dataclass
class FinishingSupervisor(Supervisor):
    """Supervisor whose process finishes after `looks` checks."""

    looks: int = 1

    def finished(self, name: str) -> bool:
        self.looks -= 1
        return self.looks < 0

    def check(self) -> None:
        """Find no dead process."""


@pytest.mark.parametrize("connected", [None, False, True])
def test_actor_reports_missing_answer_of_learner_once(
    connected: bool | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(actor_command, "_LOOK_S", 0.0)
    if connected is not None:
        write_status(tmp_path, LinkStatus(0, 0, connected))
    processes = FinishingSupervisor([], {}, tmp_path, events=["actor0 started"])
    actor_command.attend(processes, "actor0", tmp_path)
    lines = capsys.readouterr().out.splitlines()
    missing = (
        [] if connected else ["no answer from a learner of this run; is `serl learner` running?"]
    )
    assert lines == [*missing, "actor0 started"]
    processes = FinishingSupervisor([], {}, tmp_path)
    actor_command.attend(processes, "actor0", tmp_path, learning=lambda: True)
    busy = "no answer from the learner yet: it is starting, or training on demonstrations"
    assert capsys.readouterr().out.splitlines() == ([] if connected else [busy])


def test_actor_shows_episodes_and_acknowledged_steps(run: RunFolder, tmp_path: Path) -> None:
    for folder in (run.link("actor0"), run.episodes("actor0")):
        folder.mkdir(parents=True)
    (run.episodes("actor0") / "1-000000.part.mcap").touch()
    write_status(run.link("actor0"), LinkStatus(5811, 2, True))
    shown = list[str]()
    actor_command.attend(
        FinishingSupervisor([], {}, tmp_path),
        "actor0",
        show_progress=lambda: shown.append(progress_text(run, "actor0")),
    )
    assert shown == ["actor0: episodes 1, 5,811 steps acknowledged, 2 waiting"]
