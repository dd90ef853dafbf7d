"""Benchmark of the arm's motion while the learner or link dies or hangs.

    python tests/bench/bench_bystanders.py [--seconds 30] [--rounds 4]

One training, `serl train reach --robot sim` in real time: simulated arm, guard, actor, link and
learner in separate processes. Phases alternate: all processes run, then the learner is killed,
restarts or hangs, then the link. The log gives the intervals between the actor's actions. A control
period is late if it begins over a tenth of a period after it should.

Exit code 1 if the share of late periods exceeds that of undisturbed operation by more than three
standard errors of the difference, which chance exceeds once in 700 times. With 1,200 periods each
and 1 % late undisturbed, the limit is 2.6 %; with none late undisturbed, it is ten periods.
"""

from __future__ import annotations

import argparse
import math
import os
import signal
import sys
import tempfile
import time
from bisect import bisect
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from serl.log.episode_reader import read_records
from serl.ros.processes import all_processes, run_processes
from serl.runs.config import resolve
from serl.runs.folder import RunFolder
from serl.runs.task_setup import make_spec, make_task
from serl.system.supervisor import Supervisor
from serl.types import Step

ACTOR = "actor0"
WELL = "all are well"
STRUCK = ("learner", f"link-{ACTOR}")
STRIKES = (signal.SIGKILL, signal.SIGSTOP)
_START_LIMIT_S = 300.0
_SETTLE_S = 5.0
_ERRORS = 3.0


class Turn(NamedTuple):
    """Phase of the benchmark with begin and end on the monotonic clock."""

    name: str
    begin_s: float
    end_s: float


def main() -> int:
    """Print the table; return 1 if a phase disturbs the motion."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=30.0, help="of each turn")
    parser.add_argument("--rounds", type=int, default=4)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        settings = {"task": "reach", "robot": "sim", "demos": 0, "steps": 1_000_000}
        config = resolve(settings | {"intervention": "none"})
        run = RunFolder.create(Path(folder), config, datetime.now())
        specs = [replace(spec, restarts=10_000) for spec in all_processes(run)]
        with run_processes(run, specs) as supervisor:
            until_it_learns(run, supervisor)
            turns = [
                turn for _ in range(options.rounds) for turn in strike(supervisor, options.seconds)
            ]
        return report(periods_s(run, turns), 1.0 / make_task(config).config.rate_hz)


def until_it_learns(run: RunFolder, supervisor: Supervisor) -> None:
    """Wait for the first row of the learner's metrics."""
    deadline_s = time.monotonic() + _START_LIMIT_S
    while not (run.metrics.exists() and run.metrics.stat().st_size):
        assert time.monotonic() < deadline_s, "nothing is learned"
        supervisor.check()
        time.sleep(0.2)
    time.sleep(_SETTLE_S)


def strike(supervisor: Supervisor, seconds: float) -> Iterator[Turn]:
    """Disturb each process in each way, with an undisturbed phase before each."""
    for process in STRUCK:
        for number in STRIKES:
            yield pass_time(WELL, seconds)
            os.kill(supervisor.pids()[process], number)
            yield pass_time(f"{process} {number.name}", seconds)
            if number is signal.SIGSTOP:
                os.kill(supervisor.pids()[process], signal.SIGCONT)
            else:
                supervisor.check()
                yield pass_time(f"{process} comes up again", seconds)
            time.sleep(_SETTLE_S)


def pass_time(name: str, seconds: float) -> Turn:
    """Let a phase pass and return it; its start is included."""
    begin_s = time.monotonic()
    time.sleep(seconds)
    return Turn(name, begin_s, time.monotonic())


def periods_s(run: RunFolder, turns: list[Turn]) -> dict[str, list[float]]:
    """Return the intervals between actions of an episode, by phase, s."""
    begins = [turn.begin_s for turn in turns]
    found: dict[str, list[float]] = {turn.name: [] for turn in turns}
    records = read_records(run.episodes(ACTOR), make_spec(make_task(run.config)))
    for first, second in pairwise(records):
        if not (isinstance(first, Step) and isinstance(second, Step)) or second.key.index == 0:
            continue
        turn = turns[max(0, bisect(begins, second.monotonic_s) - 1)]
        if turn.begin_s <= second.monotonic_s <= turn.end_s:
            found[turn.name].append(second.monotonic_s - first.monotonic_s)
    return found


def report(periods: dict[str, list[float]], period_s: float) -> int:
    """Print a row per phase; return 1 if more periods are late than undisturbed."""
    print("| what | control periods | ms: median | p99 | max | late | share | of that when well |")
    print("|---|---|---|---|---|---|---|---|")
    well = [each > 1.1 * period_s for each in periods[WELL]]
    worse = []
    for name, found in periods.items():
        late = [each > 1.1 * period_s for each in found]
        median, p99, most = (1e3 * np.quantile(found, share) for share in (0.5, 0.99, 1.0))
        ratio = f"{np.mean(late) / np.mean(well):.2f}" if any(well) else "-"
        cells = (
            f"{median:.1f} | {p99:.1f} | {most:.1f} | {sum(late)} | {np.mean(late):.2%} | {ratio}"
        )
        print(f"| {name} | {len(found):,} | {cells} |")
        rise = float(np.mean(late) - np.mean(well))
        if rise > _ERRORS * error_of_rise(late, well):
            worse.append(f"{name}: {rise:.2%} more are late")
    print("; ".join(worse) or "none of them disturbs the motion")
    return 1 if worse else 0


def error_of_rise(one: list[bool], other: list[bool]) -> float:
    """Return the standard error of the difference of two shares under equal true shares."""
    share = (sum(one) + sum(other)) / (len(one) + len(other))
    return math.sqrt(share * (1.0 - share) * (1.0 / len(one) + 1.0 / len(other)))


if __name__ == "__main__":
    sys.exit(main())
