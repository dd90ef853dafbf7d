"""`serl guard`: a guard in its own process, ended by Ctrl-C."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import threading
from pathlib import Path

import pytest
from diagnostic_msgs.msg import DiagnosticStatus

from serl import plugins
from serl.arm_profile import load_robot, write_robot
from serl.cli import main as cli
from serl.errors import SerlError
from serl.guard.config import GuardState
from serl.guard.latch import LatchFile
from serl.ros.arm import guard_client
from serl.ros.arm.guard_client import GuardClient
from serl.ros.arm.guard_topics import GUARD_STATE
from serl.ros.arm.topics import of_robot
from serl.ros.environment import meet_others
from serl.ros.node import RosNode
from serl.ros.nodes import guard as guard_node
from serl.ros.services import Remote
from serl.ros.testing.processes import LIMIT_S, eventually
from serl.runs.guard_setup import ArmNamespace, guard_arguments, place_of, workspace_guard
from serl.workspace import Workspace

from .conftest import Run

pytestmark = pytest.mark.ros

SIM = plugins.load("robot", "sim")
WORKSPACE = Workspace(
    low_m=(0.3, -0.2, 0.05),
    high_m=(0.6, 0.2, 0.4),
    home_m=(0.45, 0.0, 0.2),
    reference=(1.0, 0.0, 0.0, 0.0),
)


def start(folder: Path, *words: str) -> tuple[Run, subprocess.Popen[str]]:
    processes = Run(folder)
    return processes, processes.start("-m", "serl.cli.main", "guard", *words)


def test_guard_command_starts_stopped_and_ends_cleanly_on_sigint(tmp_path: Path) -> None:
    folder = tmp_path / "cell"
    folder.mkdir()
    meet_others(folder)
    profile, latch = tmp_path / "arm.yaml", tmp_path / "arm@cell.sim.latch"
    write_robot(profile, SIM.model_copy(update={"workspace": WORKSPACE}))
    with RosNode("looker", folder, local=True) as node:
        guard = GuardClient(node, "sim", Remote(node))
        processes, process = start(folder, str(profile))
        eventually(lambda: guard.feed.is_fresh)
        state, cause, _ = guard.feed.newest().value
        assert state is GuardState.ESTOP, "the first start of a real arm is a stop"
        assert "normal only at the first start" in cause
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=30)[1]
        assert process.returncode == 0, said
        assert said == ""
        processes.processes.clear()
    assert LatchFile(latch).read()[0] is GuardState.ESTOP, (
        "the latch must be in the profile's folder"
    )


def test_guard_command_prints_box_that_the_workspace_cuts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(guard_node, "main", lambda arguments: 0)
    monkeypatch.setenv("ROS_DOMAIN_ID", "63")
    profile = tmp_path / "arm.yaml"
    write_robot(profile, SIM.model_copy(update={"workspace": WORKSPACE}))
    assert cli.main(["guard", str(profile), "--task", "reach"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("the guard keeps the tool in x 0.300 to "), printed
    assert "m: the box of reach, cut by the taught workspace of sim\n" in printed


@pytest.mark.parametrize("allowed", [True, False])
def test_guard_command_requests_real_time_priority(
    allowed: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    requests: list[object] = []

    def schedule(process: int, policy: int, parameters: os.sched_param) -> None:
        requests.append((process, policy, parameters.sched_priority))
        if not allowed:
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "sched_setscheduler", schedule)
    monkeypatch.setattr(guard_node, "run", lambda *arguments: requests.append("guards"))
    monkeypatch.setenv("ROS_DOMAIN_ID", "63")
    write_robot(tmp_path / "arm.yaml", SIM.model_copy(update={"workspace": WORKSPACE}))
    code = cli.main(["guard", str(tmp_path / "arm.yaml"), "--fifo", "50"])
    assert requests == [(0, os.SCHED_FIFO, 50), *(["guards"] if allowed else [])]
    assert code == (cli.DONE if allowed else cli.BAD_INPUT)
    assert ("--fifo 50: Operation not permitted\n" in capsys.readouterr().err) != allowed


def test_guard_command_proposes_no_setting_for_an_arm_without_workspace(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.main(["guard", "franka", "--task", "reach"]) == cli.BAD_INPUT
    refusal = capsys.readouterr().err
    assert refusal.startswith("serl: arm franka: has no workspace: teach it with `serl setup`")
    assert "--task_config" not in refusal, "the command takes no settings"


def test_guard_client_waits_for_stop_to_end_but_not_for_later_refusals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard_client, "_AGE_S", 60.0)
    monkeypatch.setattr(guard_client, "_LIMIT_S", 0.2)
    state = "estop: pressed"
    with RosNode("looker", tmp_path, local=True) as node:
        guard = GuardClient(node, "sim", Remote(node, lambda: None))
        reports = node.publisher(of_robot(GUARD_STATE, "sim"))
        node.every(0.02, lambda: reports.publish(DiagnosticStatus(message=state)))
        eventually(lambda: guard.feed.is_fresh)
        refused: list[str] = []

        def take() -> None:
            try:
                guard.take()
            except SerlError as error:
                refused.append(str(error))

        monkeypatch.setattr(guard, "_order", lambda name: f"{name}: pose is stale")
        taking = threading.Thread(target=take)
        taking.start()
        taking.join(0.5)
        assert taking.is_alive(), "the client waits for the end of the stop"
        state = "disarmed"
        taking.join(LIMIT_S)
        node.stopping = True
        taking.join()
    assert refused == ["sim: the guard does not take the arm: arm: pose is stale"]


@pytest.mark.parametrize(
    ("asked", "namespace", "prefix"),
    [
        (None, "/cell/sim", "/cell/sim"),
        ("/left", "/left", "/left"),
        ("/sim/arm/", "/sim/arm", "/sim/arm"),
        ("/a/b/c", "/a/b/c", "/a/b/c"),
        ("/", "/", ""),
    ],
)
def test_arm_namespace_is_given_or_of_the_cell(
    asked: str | None, namespace: str, prefix: str
) -> None:
    place = place_of(SIM, asked)
    assert (place.namespace, place.prefix) == (namespace, prefix)


def test_guard_process_arguments_have_profile_and_config_files(tmp_path: Path) -> None:
    config = workspace_guard(SIM.model_copy(update={"workspace": WORKSPACE}))
    words = guard_arguments(tmp_path, ArmNamespace("cell", "sim"), SIM, config, tmp_path / "latch")
    pairs = dict(zip(words[::2], words[1::2], strict=True))
    assert load_robot(pairs["--arm"]) == SIM
    assert Path(pairs["--config"]).exists()
    assert pairs["--robot"] == "sim"
    words = guard_arguments(tmp_path, ArmNamespace("cell", ""), SIM, config, tmp_path / "latch")
    assert words[3] == "/", "the root must not become the cell's namespace"
