"""`serl sweep`: train a grid of settings over tasks and seeds, here or as a Slurm array."""

from __future__ import annotations

import argparse
import shlex
import sys
from datetime import datetime
from pathlib import Path

from serl.arm_profile import is_real
from serl.cli.arguments import integer
from serl.errors import BadInput, counted
from serl.report.display import Display
from serl.runs.folder import RunFolder
from serl.runs.sweep import SweepRun, read_sweep, sweep_runs
from serl.system.files import make_folder
from serl.system.jobs import Job, run_jobs


def sweep_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `serl sweep`."""
    parser.add_argument(
        "file", type=Path, metavar="FILE", help="YAML file with tasks, seeds, settings and factors"
    )
    parser.add_argument(
        "--out", type=Path, metavar="FOLDER", help="folder of the runs, else sweeps/NAME-OF-FILE"
    )
    parser.add_argument(
        "--jobs", type=integer(1), default=1, metavar="N", help="number of concurrent trainings"
    )
    part = parser.add_mutually_exclusive_group()
    part.add_argument(
        "--slurm", action="store_true", help="train nothing; print a job array for sbatch"
    )
    part.add_argument(
        "--only", type=integer(0), metavar="N", help="train only run number N, counted from 0"
    )


def sweep(options: argparse.Namespace) -> int:
    """Train the unfinished runs of a sweep; interrupted ones continue.

    Raises:
        BadInput: the file or a setting is invalid, or a folder has other settings.
    """
    folder = (options.out or Path("sweeps") / options.file.stem).resolve()
    runs = sweep_runs(read_sweep(options.file), folder)
    for family in {id(run.family): run.family for run in runs}.values():
        _ = family.config  # raises for an invalid setting before the first run starts
    if options.slurm:
        make_folder(folder)  # of the array's output
        print(slurm_script(options.file.resolve(), folder, len(runs), options.jobs), end="")
        return 0
    if options.only is not None:
        if not 0 <= options.only < len(runs):
            raise BadInput(f"--only: expected 0 to {len(runs) - 1}, got {options.only}")
        runs = [runs[options.only]]
    failed = train_all(runs, options.jobs)
    if len(folders := sorted({str(run.path.parent) for run in runs})) > 1:
        print(f"to compare: serl compare {' '.join(map(shlex.quote, folders[:3]))}", flush=True)
    return 1 if failed else 0


def train_all(runs: list[SweepRun], count: int) -> int:
    """Train the unfinished runs, `count` at a time; return the number of those that failed."""
    from serl.ros.processes import require_ros

    require_ros()
    waiting = {run.name: run for run in runs if not run.is_finished()}
    if skipped := len(runs) - len(waiting):
        print(f"{skipped} of {len(runs)} runs are finished", flush=True)
    failed, display = list[str](), Display()
    jobs = (training(run.open(datetime.now()), run.name) for run in waiting.values())
    with display.counting("runs", len(waiting)) as advance:

        def started(job: Job) -> None:
            display.print_line(f"{job.name}: {'continues' if job.log.exists() else 'starts'}")

        def ended(job: Job, code: int) -> None:
            if waiting[job.name].is_finished():  # exit code 1 may mean a low success rate
                display.print_line(f"{job.name}: finished")
            else:
                failed.append(job.name)
                display.print_line(f"{job.name}: ended with exit code {code}: {job.last_line()}")
            advance()

        run_jobs(jobs, count, started, ended)
    if failed:
        number = counted(len(failed), "run")
        print(f"{number} failed; to try again, repeat this command", file=sys.stderr)
    return len(failed)


def training(run: RunFolder, name: str) -> Job:
    """Return the job that trains a run to its end, from its last checkpoint if it has one.

    Runs of a sweep may have one name, and so one namespace in ROS 2: in simulation each takes a
    domain of its own.
    """
    command = (sys.executable, "-m", "serl.cli.main", "train", "--resume", str(run.path))
    alone = run.config.network.local and not is_real(run.config.robot)
    return Job(name, command, run.log / "train.log", ("ROS_DOMAIN_ID",) if alone else ())


def slurm_script(file: Path, folder: Path, runs: int, jobs: int) -> str:
    """Return a batch script of Slurm with one task per run; submitted again, it continues them."""
    words = (sys.executable, "-m", "serl.cli.main", "sweep", str(file), "--out", str(folder))
    return f"""#!/bin/bash
#SBATCH --job-name={shlex.quote(f"serl-{file.stem}")}
#SBATCH --array=0-{runs - 1}%{jobs}
#SBATCH --output={shlex.quote(f"{folder}/slurm-%a.txt")}
#SBATCH --open-mode=append
#SBATCH --cpus-per-task=2
#SBATCH --signal=B:TERM@90
# Each task saves and ends 90 s before its time is up; the script is submitted again to go on.
trap 'kill -TERM "$serl"; wait "$serl"' TERM
{shlex.join(words)} --only "$SLURM_ARRAY_TASK_ID" &
serl=$!
wait "$serl"
"""
