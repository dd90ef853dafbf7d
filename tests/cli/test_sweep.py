from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import pytest
import yaml

from serl.cli import compare as compare_command
from serl.cli import sweep as command
from serl.cli.main import main
from serl.runs.config import TrainConfig
from serl.runs.folder import RunFolder
from serl.runs.sweep import read_sweep, sweep_runs
from serl.system.jobs import Job

TRAINING = """
import json, re, sys, time
from pathlib import Path
run = Path(sys.argv[1])
steps = int(re.search(r"^  steps: (.*)", (run / "config.yaml").read_text(), re.M)[1])
print("trains", flush=True)
if steps == 13:
    sys.exit("out of luck")
if steps == 60 and not (run / "slept").exists():
    (run / "slept").touch()
    time.sleep(60)
row = {"kind": "evaluation", "time_s": 1.0, "steps": 9, "checkpoint": 9, "purpose": "final"}
row |= {"trials": 10, "successes": 9 if steps == 20 else 2, "cycle_time_s": 3.0}
(run / "metrics.jsonl").write_text(json.dumps(row) + chr(10))
sys.exit(1)  # as for a low success rate
"""
SLOW = [
    sys.executable,
    "-c",
    "import signal, time; signal.signal(signal.SIGTERM, lambda *_: exit(print('saved')));"
    "print('trains', flush=True); time.sleep(60)",
]
TRAINING_JOB = command.training
TINY = {"demos": 0, "agent": {"hidden": [8, 8], "device": "cpu"}}


@pytest.fixture(autouse=True)
def training(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace `serl train --resume` by a script that ends at once, and draw no page."""

    def job(run: RunFolder, name: str) -> Job:
        return Job(name, (sys.executable, "-c", TRAINING, str(run.path)), run.log / "train.log")

    pytest.importorskip("rclpy")
    monkeypatch.setattr(command, "training", job)
    monkeypatch.setattr(compare_command, "write_comparison", lambda *given: None)


@pytest.fixture
def sweep(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    def run(steps: list[int], *words: str, seeds: tuple[int, ...] = (0,)) -> tuple[int, str]:
        file = tmp_path / "grid.yaml"
        values = {"tasks": ["reach"], "seeds": list(seeds), "settings": TINY}
        file.write_text(yaml.safe_dump(values | {"factors": {"steps": steps}}))
        code = main(["sweep", str(file), "--out", str(tmp_path / "out"), *words])
        printed = capsys.readouterr()
        return code, printed.out + printed.err

    return run


def test_sweep_skips_finished_runs(
    tmp_path: Path, sweep: Callable[..., tuple[int, str]], capsys: pytest.CaptureFixture[str]
) -> None:
    code, text = sweep([10, 20], "--jobs", "2")
    assert code == 0
    assert text.count("starts") == text.count(": finished") == 2
    assert "runs: 1 of 2" in text
    assert f"serl compare {tmp_path}/out/steps-10 {tmp_path}/out/steps-20" in text
    code, text = sweep([10, 20], seeds=(0, 1))
    assert code == 0
    assert "2 of 4 runs are finished" in text
    assert text.count("starts") == 2
    folders = [str(tmp_path / "out" / f"steps-{n}") for n in (10, 20)]
    assert main(["compare", *folders, "--metric", "steps_to_90"]) == 0
    assert "steps-20 is better than steps-10 in steps to 90 %" in capsys.readouterr().out


def test_sweep_continues_after_failed_run_and_retries_it(
    tmp_path: Path, sweep: Callable[..., tuple[int, str]]
) -> None:
    for word in ("starts", "continues"):
        code, text = sweep([13, 20])
        assert code == 1
        assert f"steps-13/reach-0: {word}" in text
        assert "steps-13/reach-0: ended with exit code 1: out of luck" in text
        assert "1 run failed" in text
    assert (tmp_path / "out/steps-13/reach-0/log/train.log").read_text().count("trains") == 2


def test_interrupted_sweep_resumes(tmp_path: Path, sweep: Callable[..., tuple[int, str]]) -> None:
    slept = tmp_path / "out/steps-60/reach-0/slept"

    def interrupt() -> None:
        deadline_s = time.monotonic() + 240
        while not slept.exists() and time.monotonic() < deadline_s:
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGTERM)  # unlike SIGINT, never ignored

    threading.Thread(target=interrupt).start()
    code, text = sweep([60, 20])
    assert code == 130
    assert "everything is stopped and saved" in text
    assert not (tmp_path / "out/steps-20").exists()
    code, text = sweep([60, 20])
    assert code == 0
    assert "steps-60/reach-0: continues" in text
    assert "steps-20/reach-0: starts" in text


def test_slurm_script_runs_one_run_per_array_task(
    tmp_path: Path, sweep: Callable[..., tuple[int, str]]
) -> None:
    code, script = sweep([10, 20], "--slurm", "--jobs", "3", seeds=(0, 1))
    assert code == 0
    assert "#SBATCH --array=0-3%3\n" in script
    assert subprocess.run(["bash", "-n"], input=script, text=True).returncode == 0
    (line,) = [line for line in script.splitlines() if "--only" in line]
    assert line.endswith(
        f'{tmp_path}/grid.yaml --out {tmp_path}/out --only "$SLURM_ARRAY_TASK_ID" &'
    )
    assert list((tmp_path / "out").iterdir()) == []
    code, text = sweep([10, 20], "--only", "3", seeds=(0, 1))
    assert (code, "serl compare" in text) == (0, False), "it takes two folders"
    assert [path.name for path in (tmp_path / "out").glob("*/*")] == ["reach-1"]
    code, text = sweep([10, 20], "--only", "4", seeds=(0, 1))
    assert (code, text) == (2, "serl: --only: expected 0 to 3, got 4\n")


def test_slurm_script_quotes_paths(tmp_path: Path) -> None:
    folder = tmp_path / "my sweep #1"
    script = command.slurm_script(folder / "a grid.yaml", folder, 2, 1)
    options = [shlex.split(line) for line in script.splitlines() if line.startswith("#SBATCH")]
    assert all(len(words) == 2 for words in options)  # Slurm takes quotes as a shell does
    assert ["#SBATCH", "--job-name=serl-a grid"] in options
    assert ["#SBATCH", f"--output={folder}/slurm-%a.txt"] in options


def test_slurm_task_forwards_termination_to_training(
    tmp_path: Path, sweep: Callable[..., tuple[int, str]]
) -> None:
    _, script = sweep([10], "--slurm")
    (line,) = [line for line in script.splitlines() if "--only" in line]
    (tmp_path / "array.sh").write_text(script.replace(line, f"{shlex.join(SLOW)} &"))
    task = subprocess.Popen(["bash", tmp_path / "array.sh"], stdout=subprocess.PIPE, text=True)
    assert task.stdout is not None
    assert task.stdout.readline() == "trains\n"
    task.terminate()
    assert task.communicate(timeout=120)[0] == "saved\n"


def test_sweep_refuses_invalid_settings_before_first_run(
    tmp_path: Path, sweep: Callable[..., tuple[int, str]]
) -> None:
    for words, message in (
        (([10, -1],), "steps: expected at least"),
        (([10], "--jobs", "0"), "--jobs: expected at least 1"),
    ):
        code, text = sweep(*words)
        assert code == 2
        assert message in text
        assert not (tmp_path / "out").exists()
    assert main(["sweep", str(tmp_path / "none.yaml")]) == 2


def test_adaptive_compare_adds_seeds_until_difference_is_significant(
    tmp_path: Path, sweep: Callable[..., tuple[int, str]], capsys: pytest.CaptureFixture[str]
) -> None:
    sweep([10, 20, 30], "--slurm", seeds=tuple(range(100, 109)))  # only writes the file
    file, out = str(tmp_path / "grid.yaml"), tmp_path / "out"

    def compare(other: str, *words: str) -> tuple[int, str]:
        folders = [str(out / name) for name in ("steps-10", other)]
        code = main(["compare", *folders, "--factor", "steps", "--jobs", "2", *words])
        printed = capsys.readouterr()
        return code, printed.out + printed.err

    plan = ("--adaptive", file, "--block", "3")
    code, text = compare("steps-20", *plan, "--blocks", "3")
    assert code == 0
    # With three seeds the lowest p-value, 2 of 20 permutations, is above a third of 5 %.
    assert "after 3 of at most 9 seeds: steps-20 is not shown to differ" in text
    state = "after 6 of at most 9 seeds: steps-20 differs from steps-10 (error at most 5%)"
    assert f"{state}; no more are needed" in text
    for name in ("steps-10", "steps-20"):
        seeds = sorted(path.name for path in (out / name).iterdir())
        assert seeds == [f"reach-{seed}" for seed in range(100, 106)]
    code, text = compare("steps-20", "--adaptive", "--block", "5", "--blocks", "2")
    assert (code, text.count("starts")) == (0, 0)
    assert "after 5 of at most 10 seeds: steps-20 differs from steps-10" in text
    code, text = compare("steps-40", *plan, "--blocks", "2")
    assert (code, text) == (2, f"serl: {out}/steps-40: is no configuration of {file}\n")
    code, text = compare("steps-20", *plan)
    assert (code, text) == (2, f"serl: {file}: 9 seeds, expected 12: 4 blocks of 3\n")


def test_interrupted_adaptive_compare_continues(
    tmp_path: Path, sweep: Callable[..., tuple[int, str]], capsys: pytest.CaptureFixture[str]
) -> None:
    """An interruption leaves a run of a later block unfinished."""
    seeds = tuple(range(100, 106))
    sweep([10, 20], "--slurm", seeds=seeds)  # only writes the file
    file, out = tmp_path / "grid.yaml", tmp_path / "out"
    late = next(run for run in sweep_runs(read_sweep(file), out) if run.seed > 102)
    late.open(datetime.now())
    folders = [str(out / name) for name in ("steps-10", "steps-20")]
    words = ["--factor", "steps", "--jobs", "2", "--block", "3", "--blocks", "2"]
    assert main(["compare", *folders, *words, "--adaptive", str(file)]) == 0
    assert "after 6 of at most 6 seeds: steps-20 differs" in capsys.readouterr().out


@pytest.mark.parametrize(("robot", "without"), [(None, 1), ("sim", 1), ("franka", 0)])
def test_simulated_run_of_sweep_takes_domain_of_its_own(
    tmp_path: Path, robot: str | None, without: int
) -> None:
    """Runs of two configurations have equal names, and so equal namespaces."""
    config = TrainConfig(task="reach", robot=robot, intervention="none")
    job = TRAINING_JOB(RunFolder.create(tmp_path, config, datetime.now()), "run")
    assert job.without == ("ROS_DOMAIN_ID",) * without
