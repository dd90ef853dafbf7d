"""The commands of the How-to pages, run in order on a small run.

The Python of howto/python.md runs in tests/test_howto_python.py.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import serl
from serl import plugins
from serl.cli.main import main
from serl.log.episode_log import EpisodeLog
from serl.log.episode_reader import episode_paths
from serl.loop import EpisodeKey
from serl.ros.environment import free_domain
from serl.runs.folder import RunFolder
from serl.runs.task_setup import make_spec, make_task
from serl.testing import episode

from .datasets.test_minari_format import write_reach
from .support.acting import train_in_this_process
from .support.command import LIMIT_S, SERL, Program
from .test_api import trained
from .test_tutorials import ROOT, SHORT

NOT_RUN = {
    "pip install ": "changes the environment",
    "docker ": "no daemon",
    "PROFILE=right.yaml ": "no daemon",
    "ARM=kinova_gen3 ": "no daemon",
    "source ": "a ROS 2 installation",
    "mkdir -p ~/kinova_gen3": "a ROS 2 installation",
    "~/serl/docker/arm.sh ": "tests/test_containers.py",
    "serl doctor --robot kinova_gen3": "an arm",
    "serl setup kinova_gen3": "an arm",
    "ros2 ": "the wheels of ROS 2 have no such command",
    "export ROS_DOMAIN_ID=": "for the command `ros2`",
    "tensorboard --logdir": "a viewer",
    "rerun ": "a viewer",
    "serl export $RUN --to lerobot --out cubes --push-to-hub": "tests/datasets/test_upload.py",
    "serl train pick_cube --demos demos\n": "a small one, tests/test_howto.py",
    "serl train pick_cube --console": "tests/test_tutorials.py",
    "serl train pick_cube --log.wandb\n": "an account of Weights & Biases",
    "serl train pick_cube --log.wandb offline": "another task, in make soak",
    "serl train pick_cube --robot right.yaml --reward.kind topic": "an arm",
    "serl record pick_cube --robot right.yaml": "an arm",
    "serl train pick_cube --robot right.yaml --reward.kind progress": "an arm",
    "serl train pick_cube --feedback.weight": "tests/ros/test_training.py",
}
"""Prefixes of commands that are not run here, with the reason or the test that covers them."""

ON_DEMONSTRATIONS = SHORT.replace(" --demos 0", "")
PAGES = {path.name: path.read_text(encoding="utf-8") for path in ROOT.glob("docs/howto/*.md")}


def lines(page: str) -> list[str]:
    """Return the commands of a page that are run."""
    code = "".join(re.findall(r"^```bash\n(.*?)^```", PAGES[page], re.DOTALL | re.MULTILINE))
    return [line for line in code.splitlines() if not f"{line}\n".startswith(tuple(NOT_RUN))]


@pytest.fixture(scope="module")
def howto_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create a folder with a run of pick_cube: a checkpoint and a success of the expert."""
    folder = tmp_path_factory.mktemp("howto")
    (folder / "docs").symlink_to(ROOT / "docs")
    run = trained(folder / "runs", task="pick_cube")
    task: Any = make_task(run.config)
    robot, key = plugins.make_simulation(task), EpisodeKey(run.name, "actor0", 1, 0)
    robot.reset(0)
    with EpisodeLog(run.episodes("actor0"), make_spec(task), run.name, "actor0", 1) as log:
        for record in episode(robot, task, task.expert(robot.truth, 0), 0, key):
            log.append(record)
    return folder


@pytest.fixture
def folder(howto_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make the folder the working directory."""
    monkeypatch.chdir(howto_folder)
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    return howto_folder


def run(page: str) -> str:
    """Run the commands of a page, those of serl in this process; return the output of bash."""
    printed, variables = "", ""
    for line in lines(page):
        if line.startswith("RUN="):
            variables = f"{line}; "
        command = ["bash", "-euc", f"{variables}echo {line}" if line[:5] == "serl " else line]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, (line, done.stderr)
        if line[:5] == "serl ":
            assert main(shlex.split(done.stdout)[1:]) == 0, line
        else:
            printed += done.stdout
    return printed


def test_every_howto_page_has_test_and_skipped_commands_have_reason() -> None:
    run = {name for name in PAGES if lines(name)}
    assert run == {"export.md", "gymnasium.md", "progress.md", "reward-topic.md", "watch.md"}
    every = "".join(PAGES.values())
    assert [start for start in NOT_RUN if f"\n{start}" not in every] == []
    shown = re.findall(r"tests/\S+\.py", " ".join(NOT_RUN.values()))
    assert [path for path in shown if not (ROOT / path).is_file()] == []
    for name in PAGES.keys() - {"python.md"}:
        assert re.search(r"[Tt]he tests (run|check)", PAGES[name]), name


def test_export_page_exports_policy_and_data(folder: Path) -> None:
    assert "action for an observation of zeros:\n[" in run("export.md")
    assert json.loads((folder / "cubes/meta/info.json").read_text())["total_episodes"] == 1
    assert (folder / "minari/serl").is_dir()
    assert (folder / "robomimic/demo.hdf5").is_file()
    assert len(episode_paths(folder / "demos")) == 1


@pytest.mark.ros
@pytest.mark.slow  # trains on pictures
def test_export_page_trains_on_imported_demonstrations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["record", "pick_cube", "--demos", "1", "--out", "expert"]) == 0
    assert main(["export", "expert", "--to", "lerobot", "--out", "cubes"]) == 0
    imports, train = re.findall(r"^serl (?:demos|train) .*", PAGES["export.md"], re.MULTILINE)
    assert main(shlex.split(imports)[1:]) == 0
    assert rewards_of(train + ON_DEMONSTRATIONS, tmp_path, monkeypatch) == {"truth"}


def test_watch_page_exports_run_for_other_viewers(folder: Path) -> None:
    pytest.importorskip("rerun", reason="NOT TESTED here: pip install 'serl[rerun]'")
    run("watch.md")
    assert (folder / "looked/episode-000000.rrd").is_file()
    layout = (folder / "layout.json").read_text()
    assert "/right" in layout
    assert "/sim/arm" not in layout


@pytest.mark.ros
@pytest.mark.slow  # W&B is not installed for make test
def test_watch_page_trains_with_wandb_offline(tmp_path: Path) -> None:
    pytest.importorskip("wandb", reason="pip install 'serl[wandb]'")
    (train,) = re.findall(r"^serl train .* offline$", PAGES["watch.md"], re.MULTILINE)
    command = train.replace("pick_cube", "reach") + SHORT
    assert rewards_of(command, tmp_path) == {"truth"}
    files = tmp_path.glob("runs/reach/2*/wandb/offline-run-*/*.wandb")  # one for each process
    assert any(b"episode/reward" in path.read_bytes() for path in files)


@pytest.mark.ros
def test_gymnasium_page_lists_environment_and_trains_with_console(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, listed, *_, train = lines("gymnasium.md")
    assert main(shlex.split(listed)[1:]) == 0
    assert "task_config.success_key" in capsys.readouterr().out
    words = shlex.split(train.replace(" --steps 20000", "") + SHORT)[1:]
    with Program([*SERL, *words, "--console"], folder / "train.out") as program:
        assert "console: http://127.0.0.1:" in program.succeed(LIMIT_S)
    assert list(folder.glob("runs/*/2*/report.html"))


@pytest.mark.ros
def test_gymnasium_page_trains_with_expert_and_with_minari_data_set(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_reach(tmp_path / "minari", {1: 1.0})
    expert, _, imports, train, _ = lines("gymnasium.md")
    assert rewards_of(expert + SHORT, folder, monkeypatch) == {"truth"}
    monkeypatch.chdir(tmp_path)
    assert main(shlex.split(imports)[1:]) == 0
    assert serl.open_run(tmp_path / "reach_demos").steps["reward"][-1] == 1.0
    assert rewards_of(train + ON_DEMONSTRATIONS, tmp_path, monkeypatch) == {"truth"}
    (run,) = tmp_path.glob("runs/*/2*")
    assert RunFolder.open(run).config.demo_paths == (tmp_path.resolve() / "reach_demos",)


@pytest.mark.ros
def test_progress_page_trains_model_and_policy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    record, model, train = lines("progress.md")
    assert main(shlex.split(record.replace("--demos 20", "--demos 6"))[1:]) == 0
    assert main(shlex.split(f"{model} --epochs 2 --threads 1")[1:]) == 0
    found = rewards_of(train + ON_DEMONSTRATIONS, tmp_path, monkeypatch)
    assert found == {"truth + progress"}


@pytest.mark.ros
@pytest.mark.slow  # in real time
def test_reward_topic_page_trains_on_reward_of_another_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (train,) = lines("reward-topic.md")
    script = ROOT / "tests/ros/support/reward_process.py"
    command = [sys.executable, str(script), str(tmp_path), "/cell/done", "Bool"]
    with free_domain() as domain:
        monkeypatch.setenv("ROS_DOMAIN_ID", str(domain.id))
        with subprocess.Popen(command, stdin=subprocess.PIPE, text=True, bufsize=1) as process:
            assert process.stdin is not None
            process.stdin.write("0\n")
            try:
                found = rewards_of(train.replace(" --steps 300", "") + SHORT, tmp_path)
            finally:
                process.kill()
    assert found - {"none"} == {"topic"}  # none: late on a busy machine


def rewards_of(train: str, folder: Path, here: pytest.MonkeyPatch | None = None) -> set[str]:
    """Run a command that trains in a folder; return the kinds of rewards of the actor's steps.

    With `here`, the command trains in this process.
    """
    words = shlex.split(train)[1:]
    if here is not None:
        here.chdir(folder)
        train_in_this_process(here)
        assert main(words) == 0
    else:
        with Program([*SERL, *words], folder / "train.out") as program:
            program.succeed(LIMIT_S)
    run = serl.open_run(max(folder.glob("runs/*/2*"), key=lambda path: path.name))
    return {text.partition(" of model")[0] for text in run.steps["reward_provenance"]}
