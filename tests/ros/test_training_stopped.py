"""A stop of a simulated arm's guard, in the middle of a training: it is seen and answered there."""

from __future__ import annotations

from pathlib import Path

import pytest

from serl.ros.node import RosNode
from serl.ros.processes import started_domain_id
from serl.ros.services import Remote
from serl.ros.testing.processes import eventually
from serl.runs.folder import RunFolder

from ..support.command import LIMIT_S, Command
from .support.tracked import PROGRESS, SEEN, answer_until
from .test_training import TINY

pytestmark = [pytest.mark.ros, pytest.mark.slow]

WAITS = (
    "actor0 waits for a person: estop: the service estop: "
    "Enter confirms that you have dealt with it"
)


def stop(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROS_DOMAIN_ID", str(started_domain_id(run)))
    with RosNode("presser", run.path, local=True) as node:
        Remote(node, lambda: None).trigger("actor0/guard/estop", LIMIT_S)


def last_progress(command: Command) -> str:
    return [line for line in command.output.splitlines() if PROGRESS in line][-1]


def run_of(folder: Path) -> RunFolder:
    (settings,) = (folder / "runs").rglob("config.yaml")
    return RunFolder.open(settings.parent)


def test_a_latched_guard_asks_at_the_terminal_and_the_progress_says_so_also_when_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = [word for name, value in TINY.items() for word in (f"--{name}", value)]
    words = ("train", "reach", "--robot", "sim", "--steps", 100_000, *options)
    with Command(tmp_path, *words) as command:
        command.until(PROGRESS)
        stop(run_of(tmp_path), monkeypatch)
        command.until(WAITS)
    with Command(tmp_path, "train", "--resume", run_of(tmp_path).path) as command:
        command.until(WAITS)
        answer_until(command, lambda: "disarmed\n" in command.output, (SEEN,))
        eventually(lambda: "waits for a person" not in last_progress(command), LIMIT_S)
        assert "Enter arms it" not in command.output, "its actor does that itself"
