"""Benchmark of a finished racing_car run: lap time against the demonstration's.

    serl train racing_car && python tests/bench/bench_practice.py runs/racing_car/2*

Exit code 1 unless its lap is 1.3 times as fast as the demonstrated one, which was driven at 60 % of
the scripted driver's best speed or more, within 20 minutes of driving, resets included, unaided.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from itertools import accumulate
from pathlib import Path

from serl import plugins
from serl.errors import BadInput
from serl.log.episode_reader import count_records, episode_name, episode_paths
from serl.log.metrics import MetricsRow
from serl.report.curves import WINDOW, running_mean, series
from serl.report.run_data import RunData, read_run
from serl.runs.config import TrainConfig
from serl.runs.folder import RunFolder
from serl.runs.task_setup import make_task
from tests.bench.task_bench import expert_episode

PACE, FASTER, MINUTES = 0.60, 1.3, 20.0
LAPS = 5


def main() -> int:
    """Print a table; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path, nargs="+", help="folders of finished runs")
    good = [judge(RunFolder.open(path)) for path in parser.parse_args().run]
    return 0 if all(good) else 1


def judge(run: RunFolder) -> bool:
    """Print the results of a run; return whether they reach the target."""
    data = read_run(run.path)
    if not data.finals or not data.demonstrated_s > 0:
        raise BadInput(f"{run.path}: expected a demonstration and final trials")
    best_s, shown_s = expert_lap_s(run.config), data.demonstrated_s
    final, minutes = data.finals[-1], driven_minutes(run)
    lap_s = final["cycle_time_s"] or math.inf
    row = first_faster(data, shown_s / FASTER)
    reached = minutes[row["episode"]] if row else math.inf
    print(f"{run.path}")
    print(f"scripted driver, as fast as it can  {best_s:.2f} s a lap")
    print(
        f"demonstration                       {shown_s:.2f} s, {best_s / shown_s:.0%} of its speed"
    )
    print(
        f"trained, {final['successes']} of {final['trials']} trials        {lap_s:.2f} s, "
        f"{shown_s / lap_s:.2f} times as fast as demonstrated"
    )
    print(
        f"driven in all                       {minutes[max(minutes)]:.1f} minutes, with recoveries"
    )
    after = f"after {reached:.1f} minutes" if row else "never"
    print(f"mean of {WINDOW} training laps         {FASTER} times as fast {after}")
    print(f"help                                {data.help}\n")
    unaided = not data.help.human_steps and not data.help.requests
    quick = shown_s / lap_s >= FASTER and reached <= MINUTES
    return quick and unaided and best_s / shown_s >= PACE


def expert_lap_s(config: TrainConfig) -> float:
    """Return the mean lap time of the expert at full pace, s."""
    settings = config.model_copy(update={"task_config": {**config.task_config, "pace": 1.0}})
    task = make_task(settings)
    with plugins.make_simulation(task) as robot:
        laps = [expert_episode(task, robot, seed) for seed in range(LAPS)]
    return statistics.mean(lap.steps for lap in laps) / task.config.rate_hz


def driven_minutes(run: RunFolder) -> dict[int, float]:
    """Return the driven minutes until each episode's end, resets included.

    Raises:
        BadInput: The run has several actors or a restarted one.
    """
    rate_hz = make_task(run.config).config.rate_hz
    paths = [path for actor in run.actors() for path in episode_paths(run.episodes(actor))]
    if len({(path.parent, episode_name(path).epoch) for path in paths}) != 1:
        raise BadInput(f"{run.path}: expected one actor that was never started again")
    steps = accumulate(count_records(path) - 1 for path in paths)
    numbers = (episode_name(path).episode for path in paths)
    return {number: count / rate_hz / 60.0 for number, count in zip(numbers, steps, strict=True)}


def first_faster(data: RunData, lap_s: float) -> MetricsRow | None:
    """Return the row of the first lap whose last `WINDOW` laps are on average no slower."""
    laps = [row for row in data.episodes if row["success"]]
    quick = running_mean(series(laps, "duration_s"))[WINDOW - 1 :] <= lap_s
    return laps[WINDOW - 1 + int(quick.argmax())] if quick.any() else None


if __name__ == "__main__":
    sys.exit(main())
