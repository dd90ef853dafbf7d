"""A stop of a simulated arm's guard, in the middle of a training: it is seen and answered there."""

from __future__ import annotations

from pathlib import Path

import pytest

from serl.ros.graph import started_domain_id
from serl.ros.node import RosNode
from serl.ros.remote import Remote
from serl.run_folder import RunFolder

from .terminal import LIMIT_S, Terminal
from .test_training import TINY
from .tracked import PROGRESS, SEEN, answer_until, eventually

pytestmark = pytest.mark.ros

WAITS = "actor0 waits for a person: estop: the service estop: Enter says that you have seen to it"


@pytest.fixture
def training(tmp_path: Path) -> Terminal:
    options = [word for name, value in TINY.items() for word in (f"--{name}", value)]
    return Terminal(tmp_path, "train", "reach", "--robot", "sim", "--steps", 100_000, *options)


def stop(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROS_DOMAIN_ID", str(started_domain_id(run)))
    with RosNode("presser", run.path, local=True) as node:
        Remote(node, lambda: None).trigger("actor0/guard/estop", LIMIT_S)


def last_progress(command: Terminal) -> str:
    return [line for line in command.output.splitlines() if PROGRESS in line][-1]


def test_a_latched_guard_asks_at_the_terminal_and_the_progress_says_so(
    tmp_path: Path, training: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    with training as command:
        command.until(PROGRESS)
        (settings,) = (tmp_path / "runs").rglob("config.yaml")
        stop(RunFolder.open(settings.parent), monkeypatch)
        command.until(WAITS)
        assert last_progress(command).endswith("left -"), "nobody knows when it goes on"
        answer_until(command, lambda: "disarmed\n" in command.output, (SEEN,))
        eventually(lambda: "waits for a person" not in last_progress(command), LIMIT_S)
        assert "Enter arms it" not in command.output, "its actor does that itself"
