"""Launch files start what `serl train` starts; tried with ROS 2's own `launch` where it is."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from serl.checkpoint import checkpoint_paths
from serl.errors import BadInput
from serl.ros import launching
from serl.ros.graph import all_processes
from serl.run_folder import RunFolder

from .conftest import eventually

ROOT = Path(__file__).parents[2]
NOTHING = {"task": "", "settings": "", "config": "", "runs": "runs", "run": ""}
TINY = (
    "--steps 120 --demos 2 --task_config.time_limit_s 1.0 --agent.hidden [32,32]"
    " --agent.batch_size 16 --agent.utd 1 --agent.device cpu --learner.warm_up 20"
    " --learner.checkpoint_every 100 --learner.publish_every 10"
)
RUNNER = """
import sys
from launch import LaunchDescription, LaunchService
from launch.actions import IncludeLaunchDescription
from launch.launch_description_sources import AnyLaunchDescriptionSource

file, *given = sys.argv[1:]
source = AnyLaunchDescriptionSource(file)
arguments = [tuple(word.split(":=", 1)) for word in given]
service = LaunchService()
service.include_launch_description(
    LaunchDescription([IncludeLaunchDescription(source, launch_arguments=arguments)])
)
sys.exit(service.run())
"""

pytestmark = [pytest.mark.ros, pytest.mark.xdist_group("launch")]

with_launch = pytest.mark.skipif(
    importlib.util.find_spec("launch_ros") is None,
    reason="NOT TESTED: launch files, for `launch_ros` is not installed (it is not on PyPI)",
)


Launcher = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Launcher]:
    script = tmp_path / "runner.py"
    script.write_text(RUNNER)
    started: list[subprocess.Popen[bytes]] = []

    def start(file: str, *given: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, str(script), str(ROOT / "launch" / file), *given],
            cwd=tmp_path,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=(tmp_path / "launch.out").open("ab"),
            stderr=subprocess.STDOUT,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()  # what it started ends without it
        process.wait()


def newest(folder: Path) -> RunFolder:
    return RunFolder.open(max((folder / "runs" / "reach").iterdir()))


def test_a_launch_file_starts_the_same_processes(tmp_path: Path) -> None:
    given = {**NOTHING, "task": "reach", "settings": TINY, "runs": str(tmp_path / "runs")}
    graph = launching._started(given, all_processes)
    assert list(graph.processes) == all_processes(graph.run)
    assert graph.run.config.steps == 120
    assert graph.domain_id == int(os.environ["ROS_DOMAIN_ID"])
    assert graph.ends_with == {"learner"}


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({}, "expected task:=NAME for a new run, or run:=FOLDER"),
        ({"task": "reach", "run": "x"}, "expected task:=NAME for a new run, or run:=FOLDER"),
        ({"run": "x", "settings": "--seed 2"}, "x has its own settings"),
        ({"run": "absent"}, "absent: expected the folder of a run"),
        ({"task": "nonsense"}, "unknown task 'nonsense'"),
        ({"task": "reach", "settings": "--agent.nonsense 1"}, "agent.nonsense: unknown setting"),
    ],
)
def test_what_it_cannot_use_is_one_line(given: dict[str, str], complaint: str) -> None:
    with pytest.raises(BadInput, match=complaint) as raised:
        launching._started({**NOTHING, **given}, all_processes)
    assert "\n" not in str(raised.value)


@with_launch
def test_ros2_launch_trains_to_the_end(tmp_path: Path, launch: Launcher) -> None:
    process = launch("train.launch.py", "task:=reach", f"settings:={TINY}")
    assert process.wait(240) == 0
    said = (tmp_path / "launch.out").read_text()
    assert "learner is done" in said or "finished cleanly" in said, said
    assert checkpoint_paths(newest(tmp_path).checkpoints)[-1].name == "120".zfill(9), said


@with_launch
def test_ctrl_c_ends_all_and_another_launch_goes_on(tmp_path: Path, launch: Launcher) -> None:
    longer = TINY.replace("--steps 120", "--steps 400")
    process = launch("train.launch.py", "task:=reach", f"settings:={longer}")
    eventually(lambda: (tmp_path / "runs" / "reach").exists(), 120)
    eventually(lambda: checkpoint_paths(newest(tmp_path).checkpoints), 240)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 0
    again = launch("train.launch.py", f"run:={newest(tmp_path).path}")
    assert again.wait(240) == 0
    assert int(checkpoint_paths(newest(tmp_path).checkpoints)[-1].name) == 400
