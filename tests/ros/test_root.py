"""A driver as its makers start it, with its names at the root: set up, guarded and let go."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from serl.errors import SerlError
from serl.guard_config import GuardState
from serl.latch import LatchFile
from serl.robot_file import read_robot
from serl.ros.guard_client import GuardClient
from serl.ros.node import RosNode
from serl.ros.remote import Remote

from .conftest import Run, eventually
from .franka import start_franka
from .terminal import Terminal

pytestmark = pytest.mark.ros

PROFILE = """
from serl import plugins
franka = plugins.load("robot", "franka")
robot = franka.model_copy(update={"name": "mine", "wrench": None})
"""
CHOICE = "[Enter] begin   [s REASON] skip   [q] leave, and go on another time"
SEEN = "which way did the tool go, seen from the base along its front? [forward back left right"
ANSWERS = {
    f"+x: {SEEN} up down]": "forward",
    f"+y: {SEEN} up down]": "left",
    f"+z: {SEEN} up down]": "up",
    "[y/n]": "y",
    "Enter begins": "",
    f"4/9 workspace: home, and a box to work in\n{CHOICE}": "q",
    CHOICE: "",  # also where a busy machine told too little: once more
}


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[Run]:
    run = Run(tmp_path / "driver")
    run.folder.mkdir()
    assert start_franka(run, "") == ""
    yield run
    run.end()


def test_a_stock_driver_is_set_up_guarded_and_let_go(tmp_path: Path, driver: Run) -> None:
    (tmp_path / "mine.py").write_text(PROFILE)
    out = tmp_path / "mine.yaml"
    command = Terminal(tmp_path, "setup", "mine.py", "--out", out)
    command.converse(ANSWERS)
    assert command.process.returncode == 1, command.output
    assert "x forward, y left, z up" in command.output
    profile = read_robot(out)
    assert list(profile.setup) == ["connection", "limits", "frames"]
    assert (profile.pose.name, profile.target.name) == ("/current_pose", "/target_pose")
    assert profile.controller.node == "/cartesian_impedance_controller"

    with RosNode("person", driver.folder, local=True) as node:
        remote = Remote(node)
        guard = GuardClient(node, "", remote)
        command = Terminal(tmp_path, "guard", out, "--namespace", "/", "--task", "reach")
        eventually(lambda: guard.feed.is_fresh)
        assert guard.feed.newest().value[0] is GuardState.DISARMED, "as the setup has left it"
        assert "services under /guard; latch" in command.output
        assert f"serl guard of /, {profile.summary}" in command.output
        with pytest.raises(SerlError, match="bring the arm there by hand"):  # it hears the arm
            remote.trigger("/guard/arm")
        remote.trigger("/guard/estop")
        assert command.interrupt() == 0
    assert LatchFile(out.with_suffix(".latch")).read()[0] is GuardState.ESTOP
