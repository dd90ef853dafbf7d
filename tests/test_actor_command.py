from __future__ import annotations

from datetime import datetime
from itertools import count
from pathlib import Path

import pytest

from serl.actor_command import await_learner
from serl.config import TrainConfig
from serl.errors import BadInput
from serl.run_folder import LEARNER_LOCK, RunFolder


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path, TrainConfig(), datetime(2026, 11, 22))


def test_an_actor_waits_while_the_learner_demonstrates(
    run: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    seconds = count()

    def sleep(_: float) -> None:
        if next(seconds) >= 100:  # by this clock
            (run.path / "ros_domain").write_text("7")

    with run.lock_learner():
        await_learner(run, lambda: float(next(seconds)), sleep)
    said = capsys.readouterr().out.splitlines()
    assert said == ["waits for the learner, which records demonstrations first"]


def test_an_actor_of_a_run_that_was_begun_waits_for_nothing(
    run: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    (run.path / "ros_domain").write_text("7")
    await_learner(run)
    assert not capsys.readouterr().out


@pytest.mark.parametrize("lock", [None, "", "999999999\n"])
def test_where_no_learner_lives_an_actor_says_so(run: RunFolder, lock: str | None) -> None:
    if lock is not None:
        (run.path / LEARNER_LOCK).write_text(lock)
    seconds = count()
    with pytest.raises(BadInput, match=f"no learner was started yet: serl learner {run.path}"):
        await_learner(run, lambda: float(next(seconds)), lambda _: None)
