"""Benchmark of a policy over ROS 2, compared with the process that trained it.

    python tests/bench/bench_modes.py RUN [--checkpoint 2000] [--trials 100]

Trials of one checkpoint from the same starts: with the simulation in this process; behind its
node, in lock-step; and behind its node in real time, with the guard in the path (`serl run --robot
sim`). In lock-step every trial must have the same length and result as in this process. A
checkpoint that sometimes fails is more informative than one that never does.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from datetime import datetime
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from serl import plugins
from serl.agent import State
from serl.ros.arm.simulated import SimulatedRosArm
from serl.ros.environment import clean_shared_memory, free_domain
from serl.ros.node import RosNode
from serl.runs.checkpoint import pick
from serl.runs.config import TrainConfig
from serl.runs.deployment import load_fitting, read_trial_results
from serl.runs.folder import RunFolder
from serl.runs.task_setup import make_task
from serl.runs.trials import Examiner
from serl.training.evaluation import Purpose, wilson
from tests.ros.conftest import Run

_ARM = "actor0"

Ends = list[tuple[bool, int]]
"""Success and steps of each trial."""


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path, help="folder of a run that trained a one-arm task")
    parser.add_argument("--checkpoint", type=int, help="its steps; else the best")
    parser.add_argument("--trials", type=int, default=100)
    options = parser.parse_args()
    trained = RunFolder.open(options.run)
    checkpoint = pick(trained.checkpoints, options.checkpoint)
    weights = load_fitting(checkpoint, trained.config).arrays["actor"]
    config = trained.config.model_copy(update={"robot": None})
    print(f"{trained.path}: checkpoint {int(checkpoint.name):,}, {options.trials} trials each\n")
    print("| the arm | successes | 95 % interval | mean steps |\n|---|---|---|---|", flush=True)
    inside = tell("in this process", tried(Examiner(config), weights, options.trials))
    with tempfile.TemporaryDirectory() as folder, free_domain() as domain:
        os.environ["ROS_DOMAIN_ID"] = str(domain.id)
        os.environ["SERL_SHARED_MEMORY"] = "1"
        there = in_lock_step(Path(folder), config, weights, options.trials)
        tell("over ROS 2, in lock-step", there)
        tell(
            "over ROS 2, in real time",
            in_real_time(Path(folder), options.run, int(checkpoint.name), options.trials),
        )
    clean_shared_memory()
    same = sum(one == other for one, other in zip(inside, there, strict=True))
    print(f"\nin lock-step {same} of {len(there)} trials went as in this process, to the step")


def tell(name: str, ends: Ends) -> Ends:
    """Print a row of the table and return its values."""
    successes = sum(success for success, _ in ends)
    low, high = wilson(successes, len(ends))
    steps = sum(steps for _, steps in ends) / len(ends)
    print(
        f"| {name} | {successes} of {len(ends)} | {low:.1%} to {high:.1%} | {steps:.1f} |",
        flush=True,
    )
    return ends


def tried(examiner: Examiner, weights: State, trials: int) -> Ends:
    """Run trials from the starts of a training's final trials."""
    found = examiner.evaluate(weights, Purpose.FINAL, trials)
    return [(trial.success, trial.steps) for trial in found.trials]


def in_lock_step(folder: Path, config: TrainConfig, weights: State, trials: int) -> Ends:
    """Run trials with the simulation in a separate process, in lock-step."""
    run, task = RunFolder.create(folder, config, datetime.now()), make_task(config)
    processes, profile = Run(run.path), plugins.load("robot", "sim")
    words = ("-m", "serl.ros.nodes.sim", "--run", str(run.path), "--robot", _ARM, "--lockstep")
    with RosNode("trials", run.path, local=True) as node:
        processes.start(*words)
        try:
            tracked = task.scene.tracked
            arm = SimulatedRosArm(node, _ARM, profile, task.config, tracked, lockstep=True)
            with arm:
                return tried(Examiner(config, arm), weights, trials)
        finally:
            processes.end()


def in_real_time(folder: Path, run: Path, checkpoint: int, trials: int) -> Ends:
    """Run trials in real time, as a user executes a policy."""
    words = [sys.executable, "-m", "serl.cli.main", "run", str(run), "--robot", "sim"]
    words += [f"--checkpoint={checkpoint}", f"--episodes={trials}", f"--out={folder / 'real'}"]
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
    return [(each.success, each.steps) for each in read_trial_results(folder / "real")]


if __name__ == "__main__":
    main()
