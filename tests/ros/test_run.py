"""`serl run`: the command that a person types, its processes, and what stays behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from geometry_msgs.msg import PoseStamped

from serl import cli
from serl.assignment import make_spec, make_task
from serl.deployment import read_tried
from serl.episodes import episode_paths, read_episode
from serl.ros.node import RosNode
from serl.ros.topics import Topic
from serl.run_folder import RunFolder

from ..test_deployment import trained
from .conftest import Run, eventually
from .franka import start_franka

pytestmark = pytest.mark.ros

_LIMIT_S = 120.0
PROFILE = """
from serl import plugins
franka = plugins.load("robot", "franka")
controller = franka.controller.model_copy(update={"parameters": {"limit_error": True}})
robot = franka.model_copy(update={"name": "mine", "wrench": None, "controller": controller})
"""


class Serl:
    """`serl run` in a process of its own, with a person at its terminal."""

    def __init__(self, folder: Path, *words: object) -> None:
        self.folder = folder
        self._output = folder / "run.out"
        self.process = subprocess.Popen(
            [sys.executable, "-m", "serl.cli", "run", *map(str, words)],
            cwd=folder,
            env={**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200"},
            stdin=subprocess.PIPE,
            stdout=self._output.open("wb"),
            stderr=subprocess.STDOUT,
            text=True,
        )

    @property
    def output(self) -> str:
        return self._output.read_text()

    def until(self, text: str) -> None:
        eventually(lambda: self.process.poll() is not None or text in self.output, _LIMIT_S)
        assert text in self.output, self.output

    def press_enter(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def interrupt(self) -> int:
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(30)


@pytest.fixture
def commands() -> Iterator[list[Serl]]:
    started: list[Serl] = []
    yield started
    for command in started:
        if command.process.poll() is None:
            command.interrupt()


def deployment(run: RunFolder) -> RunFolder:
    return RunFolder.open(next((run.path / "deployments").iterdir()))


def assert_logged(run: RunFolder, episodes: int) -> None:
    """As many whole episodes lie in the deployment's own folder, and none in the run's."""
    spec = make_spec(make_task(run.config))
    paths = episode_paths(run.episodes("actor0"))
    assert len(paths) == episodes
    assert all(read_episode(path, spec).end is not None for path in paths)


def test_a_policy_runs_in_simulation_and_ctrl_c_leaves_whole_episodes(
    tmp_path: Path, commands: list[Serl]
) -> None:
    run = trained(tmp_path, 100)
    command = Serl(tmp_path, run.path)
    commands.append(command)
    command.until("episode 1:")
    children = psutil.Process(command.process.pid).children(recursive=True)
    assert command.interrupt() == 130, command.output
    assert not any(child.is_running() for child in children)
    assert "trials succeeded" in command.output
    tried = read_tried(deployment(run).path)
    assert [each.episode for each in tried] == list(range(len(tried)))
    assert len(episode_paths(deployment(run).episodes("actor0"))) >= len(tried) >= 2
    assert not run.actors()


def test_a_policy_runs_on_the_simulated_arm_behind_its_guard(
    tmp_path: Path, commands: list[Serl]
) -> None:
    run = trained(tmp_path, 100)
    command = Serl(tmp_path, run.path, "--robot", "sim", "--episodes", 1, "--out", "mine")
    commands.append(command)
    assert command.process.wait(_LIMIT_S) == 0, command.output
    assert "episode 0:" in command.output
    assert_logged(RunFolder.open(tmp_path / "mine"), 1)
    assert (tmp_path / "mine" / "guard" / "actor0.latch").exists()


def test_a_real_arm_moves_when_a_person_has_said_so(tmp_path: Path, commands: list[Serl]) -> None:
    run = trained(tmp_path, 100)
    (tmp_path / "mine.py").write_text(PROFILE)
    driver = Run(tmp_path / "driver")
    driver.folder.mkdir()
    arm = start_franka(driver)
    with RosNode("tracker", driver.folder, local=True) as node:
        goals = node.publisher(Topic(f"{arm}/goal_pose", PoseStamped, 1))

        def track() -> None:
            goal = PoseStamped()
            goal.header.frame_id, goal.header.stamp = "base", node.handle.get_clock().now().to_msg()
            goal.pose.position.x, goal.pose.position.z = 0.5, 0.3
            goals.publish(goal)

        node.every(0.01, track)
        try:
            words = ("--robot", "mine.py", "--namespace", arm, "--episodes", 1)
            command = Serl(tmp_path, run.path, *words)
            commands.append(command)
            command.until("is this the first start?: Enter says that you have seen to it")
            command.press_enter()
            command.until("the guard is disarmed: Enter arms it")
            assert "episode" not in command.output.replace("episodes", "")
            _answer_until_done(command)
        finally:
            driver.end()
    assert command.process.returncode == 0, command.output
    assert "episode 0:" in command.output
    assert_logged(deployment(run), 1)
    assert (run.path / "guard" / "mine.latch").exists()


def _answer_until_done(command: Serl) -> None:
    """A person who says yes to each question; on a busy machine an arm is silent now and then."""

    def done() -> bool:
        if command.output.endswith((": Enter goes on\n", "stop\n", "seen to it\n")):
            command.press_enter()
        return command.process.poll() is not None

    eventually(done, _LIMIT_S)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--robot", "nobody"], "unknown robot 'nobody': expected one of"),
        (["--checkpoint", "7"], "no checkpoint 7; there are: 100"),
        (["--episodes", "0"], "--episodes: expected at least 1"),
        (["--out", "."], "--out .: is there already"),
        (["--namespace", "left"], "--namespace 'left': expected one such as /left"),
    ],
)
def test_what_cannot_be_is_one_line_and_leaves_nothing(
    tmp_path: Path, words: list[str], complaint: str, capfd: pytest.CaptureFixture[str]
) -> None:
    run = trained(tmp_path, 100)
    assert cli.main(["run", str(run.path), *words]) == cli.BAD_INPUT
    said = capfd.readouterr()
    assert complaint in said.err
    assert (said.out, said.err.count("\n")) == ("", 1)
    assert not (run.path / "deployments").exists()
