"""Setup and guarding of a driver with its names in the root namespace."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from serl.arm_profile import read_robot
from serl.errors import SerlError
from serl.guard.config import GuardState
from serl.guard.latch import LatchFile
from serl.ros.arm.guard_client import GuardClient
from serl.ros.node import RosNode
from serl.ros.services import Remote
from serl.ros.testing.processes import eventually
from serl.system.signed_order import key_path

from ..support.command import LIMIT_S, Command
from .conftest import Run
from .support.franka import start_franka

pytestmark = [pytest.mark.ros, pytest.mark.xdist_group("moving_arm")]  # not beside each other

PROFILE = """
from serl import plugins
from serl.workspace import Workspace
franka = plugins.load("robot", "franka")
place = Workspace(
    low_m=(-0.2, -0.7, 0), high_m=(0.9, 0.7, 0.9), home_m=(0.3, 0, 0.5), reference=(1, 0, 0, 0)
)
robot = franka.model_copy(update={"name": "mine", "wrench": None, "workspace": place})
"""
CHOICE = "[Enter] begin   [s REASON] skip   [q] leave, to continue later"
SEEN = "which way did the tool go, seen from the base along its front? [forward back left right"
ANSWERS = {
    f"+x: {SEEN} up down]": "forward",
    f"+y: {SEEN} up down]": "left",
    f"+z: {SEEN} up down]": "up",
    "[y/n]": "y",
    "Enter begins": "",
    f"4/10 workspace: home and the box of the workspace\n{CHOICE}": "q",
    f"expected at least 28 Hz\n{CHOICE}": "s a busy machine",
    CHOICE: "",
}


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[Run]:
    run = Run(tmp_path / "driver")
    run.folder.mkdir()
    assert start_franka(run, "") == ""
    yield run
    run.end()


def is_answered(remote: Remote, service: str, key: Path, expected: str) -> bool:
    """Return whether a signed order gets this answer; False while the guard refuses."""
    with suppress(SerlError):
        return remote.order(service, key) == expected
    return False


def test_driver_at_root_namespace_is_set_up_and_guarded(tmp_path: Path, driver: Run) -> None:
    (tmp_path / "mine.py").write_text(PROFILE)
    out = tmp_path / "mine.yaml"
    with Command(tmp_path, "setup", "mine.py", "--out", out) as command:
        command.converse(ANSWERS)
    assert command.process.returncode == 1, command.output
    assert "x forward, y left, z up" in command.output
    profile = read_robot(out)
    assert list(profile.setup) == ["connection", "limits", "frames"]
    assert (profile.pose.name, profile.target.name) == ("/current_pose", "/target_pose")
    assert profile.controller.node == "/cartesian_impedance_controller"

    words = ("guard", out, "--namespace", "/", "--task", "reach")
    with (
        RosNode("person", driver.folder, local=True) as node,
        Command(tmp_path, *words) as command,
    ):
        remote, key = Remote(node), key_path(out.with_suffix(".latch"))
        guard = GuardClient(node, "", remote)
        eventually(lambda: guard.feed.is_fresh, LIMIT_S)
        assert guard.feed.newest().value[0] is GuardState.DISARMED, (
            "the setup must leave the guard disarmed"
        )
        assert "services under /guard; latch" in command.output
        assert f"serl guard of /, {profile.summary}" in command.output
        eventually(lambda: is_answered(remote, "/guard/arm", key, "armed"), LIMIT_S)
        eventually(lambda: guard.has_arm)
        remote.trigger("/guard/estop")
        assert command.interrupt() == 0
    assert LatchFile(out.with_suffix(".latch")).read()[0] is GuardState.ESTOP
